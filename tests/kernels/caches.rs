//! Caches of keys and values against the keys and values themselves.

use crate::common::{Result, test_device};
use crate::{bits, random};
use candle_core::{DType, Tensor};
use candle_fused::Implementation;
use candle_fused::attention::{Chosen, HeadLayout, Mask, Sdpa, Window, widen_rows};
use candle_fused::cache::{CacheDType, KvCache, PagedCache, RowCache};

/// The dtypes of a cache; only the CPU has rows of codes.
pub(crate) fn dtypes() -> Vec<CacheDType> {
    let mut dtypes: Vec<_> = [DType::F32, DType::F16, DType::BF16].map(CacheDType::Plain).into();
    if test_device().is_cpu() {
        dtypes.push(CacheDType::Q8_0);
    }
    dtypes
}

/// Keys or values of positions `from..to` of a text: (B, 2, T, width)
pub(crate) fn rows(name: &str, b: usize, from: usize, to: usize, width: usize) -> Result<Tensor> {
    Ok(random(5, name, 1., (b, 2, 400, width))?.narrow(2, from, to - from)?)
}

#[test]
fn a_cache_returns_what_was_appended() -> Result {
    for dtype in dtypes() {
        let mut cache = KvCache::new(40, dtype);
        let mut at = 0;
        for t in [7, 1, 1, 12, 3] {
            let k = rows("k", 2, at, at + t, 16)?;
            let v = rows("v", 2, at, at + t, 9)?;
            let (k, v) = cache.append(&k, &v)?;
            at += t;
            for (name, width, got) in [("k", 16, k), ("v", 9, v)] {
                assert_eq!(
                    bits(&got)?,
                    bits(&dtype.rows(&rows(name, 2, 0, at, width)?)?)?,
                    "{dtype:?}, {at} {name}"
                );
            }
            assert_eq!(cache.len(), at);
        }
        let mut fork = cache.fork()?;
        cache.rewind(5)?;
        let (k, _) = cache.append(&rows("other", 2, 0, 4, 16)?, &rows("v", 2, 5, 9, 9)?)?;
        let expected = Tensor::cat(&[rows("k", 2, 0, 5, 16)?, rows("other", 2, 0, 4, 16)?], 2)?;
        assert_eq!(bits(&k)?, bits(&dtype.rows(&expected)?)?);
        // The fork has its own memory.
        let (k, _) = fork.append(&rows("k", 2, 24, 25, 16)?, &rows("v", 2, 24, 25, 9)?)?;
        assert_eq!(bits(&k)?, bits(&dtype.rows(&rows("k", 2, 0, 25, 16)?)?)?);
        fork.reset();
        assert!(fork.is_empty() && cache.current_seq_len() == 9);
    }
    Ok(())
}

/// Neither a capacity that overflows nor one that no system gives ends the process.
#[test]
fn a_cache_that_cannot_be_allocated_is_an_error() -> Result {
    let one = Tensor::ones((1, 2, 1, 64), DType::F32, &test_device())?;
    let dtypes = dtypes().into_iter().chain([CacheDType::Plain(DType::F64)]);
    for dtype in dtypes {
        // 1 << 44 positions are more than 2^47 bytes, which is all that a process can address.
        for capacity in [1usize << 44, 1 << 55, 1 << 60, usize::MAX] {
            let mut cache = KvCache::new(capacity, dtype);
            let message = cache.append(&one, &one).err().ok_or("no memory is as large")?.to_string();
            let says =
                message.contains("choose a smaller capacity") || message.contains("more than any memory");
            assert!(says && message.contains("[1, 2, "), "{capacity}: {message}");
            assert!(cache.is_empty());
            assert!(RowCache::new([1, 2, capacity, 64], dtype, &test_device()).is_err());
            let pages = PagedCache::new(1, HeadLayout::all(2, 64), 1 << 30, capacity, dtype, &test_device());
            assert!(pages.is_err());
        }
        // Nothing of what was refused stays.
        let mut cache = KvCache::new(4, dtype);
        assert_eq!(cache.append(&one, &one)?.0.dims()[2], 1);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_leaves_the_cache_as_it_was() -> Result {
    let mut cache = KvCache::new(6, CacheDType::Q8_0);
    let k = rows("k", 1, 0, 4, 8)?;
    let v = rows("v", 1, 0, 4, 8)?;
    cache.append(&k, &v)?;
    let nan = (&v * f64::NAN)?;
    let mut refused = |k: &Tensor, v: &Tensor, expected: &str| {
        let message = cache.append(k, v).expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
        assert_eq!(cache.len(), 4);
    };
    refused(&k, &v, "4 positions are held and 4 more do not fit the capacity of 6");
    refused(&k.narrow(2, 0, 2)?, &nan.narrow(2, 0, 2)?, "NaN");
    refused(&k.narrow(2, 0, 2)?, &v.narrow(2, 0, 1)?, "as many texts, heads and positions");
    refused(
        &rows("k", 1, 0, 1, 9)?,
        &rows("v", 1, 0, 1, 8)?,
        "[1, 2, 1, 9] on Cpu do not fit a cache of q8_0",
    );
    refused(&rows("k", 2, 0, 1, 8)?, &rows("v", 2, 0, 1, 8)?, "[2, 2, 1, 8] on Cpu do not fit");
    refused(
        &k.narrow(2, 0, 1)?.to_dtype(DType::F16)?,
        &v.narrow(2, 0, 1)?,
        "q8_0 takes keys and values in f32, got f16",
    );
    assert!(cache.rewind(5).expect_err("there are 4").to_string().contains("there are 4"));
    let (got, _) = cache.append(&rows("k", 1, 4, 6, 8)?, &rows("v", 1, 4, 6, 8)?)?;
    assert_eq!(bits(&got)?, bits(&CacheDType::Q8_0.rows(&rows("k", 1, 0, 6, 8)?)?)?);
    assert!(KvCache::new(4, DType::U32).append(&k, &v).is_err());
    for capacity in [usize::MAX, usize::MAX / 64] {
        let message = KvCache::new(capacity, DType::F32).append(&k, &v).expect_err("too large").to_string();
        assert!(
            message.contains("more than any memory") && message.contains(&capacity.to_string()),
            "{message}"
        );
    }
    // What an empty cache refuses does not settle its shapes.
    let mut cache = KvCache::new(4, CacheDType::Q8_0);
    assert!(
        cache.append(&k, &nan).is_err()
            && cache.append(&rows("k", 1, 0, 5, 8)?, &rows("v", 1, 0, 5, 8)?).is_err()
    );
    cache.append(&rows("k", 3, 0, 4, 6)?, &rows("v", 3, 0, 4, 5)?)?;
    assert!(KvCache::new(4, DType::F32).rewind(1).is_err());
    Ok(())
}

#[test]
fn an_empty_cache_takes_rows_of_other_shapes() -> Result {
    let mut cache = KvCache::new(8, DType::F32);
    assert!(cache.k()?.is_none() && cache.v()?.is_none());
    cache.append(&rows("k", 1, 0, 5, 16)?, &rows("v", 1, 0, 5, 9)?)?;
    cache.reset();
    for (b, width, of_values) in [(3, 16, 9), (3, 12, 9), (1, 16, 16), (1, 16, 9)] {
        let k = rows("k", b, 0, 4, width)?;
        let v = rows("v", b, 0, 4, of_values)?;
        cache.append(&k, &v)?;
        let [of_k, of_v] = [cache.k()?, cache.v()?].map(|rows| rows.ok_or("it holds rows"));
        assert_eq!((bits(&of_k?)?, bits(&of_v?)?, cache.len()), (bits(&k)?, bits(&v)?, 4));
        assert!(cache.append(&rows("k", 2, 4, 5, width)?, &rows("v", 2, 4, 5, of_values)?).is_err());
        cache.reset();
    }
    // Rows of the same shapes get the same memory.
    let (before, _) = cache.append(&rows("k", 1, 0, 4, 16)?, &rows("v", 1, 0, 4, 9)?)?;
    cache.reset();
    cache.append(&rows("other", 1, 0, 4, 16)?, &rows("v", 1, 0, 4, 9)?)?;
    assert_eq!(bits(&before)?, bits(&rows("other", 1, 0, 4, 16)?)?);
    Ok(())
}

#[test]
fn a_clone_goes_its_own_way_and_rows_are_read_without_appending() -> Result {
    let mut cache = KvCache::new(8, CacheDType::Q8_0);
    let mut empty = cache.clone();
    cache.append(&rows("k", 2, 0, 4, 16)?, &rows("v", 2, 0, 4, 9)?)?;
    let mut clone = cache.clone();
    clone.rewind(2)?;
    clone.append(&rows("other", 2, 0, 2, 16)?, &rows("other", 2, 0, 2, 9)?)?;
    empty.append(&rows("other", 2, 0, 1, 16)?, &rows("other", 2, 0, 1, 9)?)?;
    let [k, v] = [cache.k()?, cache.v()?].map(|rows| rows.ok_or("it holds rows"));
    assert_eq!(bits(&k?)?, bits(&CacheDType::Q8_0.rows(&rows("k", 2, 0, 4, 16)?)?)?);
    assert_eq!(bits(&v?)?, bits(&CacheDType::Q8_0.rows(&rows("v", 2, 0, 4, 9)?)?)?);
    Ok(())
}

/// The columns of numbers can be cut, the columns of codes cannot: the scale of a row comes last.
#[test]
fn a_part_of_a_row_of_codes_is_refused() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 16))?;
    let mut cache = RowCache::new([1, 2, 9, 16], CacheDType::Q8_0, q.device())?;
    let k = cache.append(&rows("k", 1, 0, 7, 16)?)?;
    let attend = |v: &Tensor| Sdpa::default().forward(&q, &k, v, Mask::default());
    assert_eq!(attend(&k)?.dims(), [1, 3, 2, 16]);
    let cut = k.narrow(3, 0, 12)?;
    let weights = Sdpa::default().weights(&q.narrow(3, 0, 8)?, &cut, Mask::default(), &Chosen::default());
    let eager = Sdpa { implementation: Implementation::Eager, ..Sdpa::default() };
    for result in [attend(&cut), weights, eager.forward(&q, &k, &cut, Mask::default()), widen_rows(&cut)] {
        let message = result.expect_err("a part of each row").to_string();
        assert!(
            message.contains("part of a row has no scale") && message.contains("widen_rows"),
            "{message}"
        );
    }
    Ok(())
}

/// Whatever a window forgets, its queries get what they get from a whole cache.
#[test]
fn a_window_forgets_what_no_query_sees() -> Result {
    for (window, capacity) in [(1, 1), (1, 3), (5, 5), (5, 6), (5, 12), (8, 40)] {
        for dtype in dtypes() {
            let sdpa = Sdpa { window: Window::sliding(window), ..Sdpa::default() };
            let (mut cache, mut whole) =
                (KvCache::sliding(window, capacity, dtype)?, KvCache::new(200, dtype));
            let mut at = 0;
            for t in [3, 1, 1, 1, 1, 1, 7, 1, 2, 30, 1, 1, 1, 5, 0, 41, 1] {
                let part = |name| rows(name, 1, at, at + t, 8);
                let k = part("k")?;
                let v = part("v")?;
                at += t;
                let got = cache.append(&k, &v)?;
                let expected = whole.append(&k, &v)?;
                assert_eq!(cache.len(), at);
                assert!(
                    got.0.dim(2)? <= capacity.max(window - 1 + t),
                    "{window} of {capacity}, {t}: {:?}",
                    got.0
                );
                if t > 0 {
                    let q = rows("q", 1, at - t, at, 8)?;
                    let [got, expected] =
                        [got, expected].map(|(k, v)| sdpa.forward(&q, &k, &v, Mask::default()));
                    let got = bits(&got?)?;
                    let expected = bits(&expected?)?;
                    // Sums begin at other keys, and are taken in other blocks.
                    for (a, b) in got.iter().zip(&expected) {
                        let a = f32::from_bits(*a);
                        let b = f32::from_bits(*b);
                        assert!((a - b).abs() < 2e-6, "{window} of {capacity} at {at}, {dtype:?}: {a} {b}");
                    }
                }
            }
        }
    }
    assert!(KvCache::sliding(0, 5, DType::F32).is_err() && KvCache::sliding(6, 5, DType::F32).is_err());
    Ok(())
}

#[test]
fn a_window_goes_back_as_far_as_it_remembers() -> Result {
    let mut cache = KvCache::sliding(4, 10, DType::F32)?;
    let push = |cache: &mut KvCache, from: usize, to: usize| -> Result<Tensor> {
        Ok(cache.append(&rows("k", 1, from, to, 8)?, &rows("v", 1, from, to, 8)?)?.0)
    };
    push(&mut cache, 0, 10)?;
    push(&mut cache, 10, 12)?; // positions 7 to 11 are held
    // The query of position 10 sees 7 to 10, that of position 9 would see 6.
    let message = cache.rewind(9).expect_err("6 is forgotten").to_string();
    assert!(message.contains("back to 9") && message.contains("the first 7 are forgotten"), "{message}");
    cache.rewind(10)?;
    let k = push(&mut cache, 10, 11)?;
    assert_eq!(bits(&k)?, bits(&rows("k", 1, 7, 11, 8)?)?);
    assert!(cache.rewind(usize::MAX).is_err());
    cache.reset();
    cache.rewind(0)?;
    assert_eq!(bits(&push(&mut cache, 3, 5)?)?, bits(&rows("k", 1, 3, 5, 8)?)?);
    Ok(())
}

#[test]
fn texts_of_a_batch_can_be_chosen_again() -> Result {
    let mut cache = RowCache::new([3, 2, 10, 8], DType::F32, &test_device())?;
    cache.append(&rows("k", 3, 0, 4, 8)?)?;
    let chosen = cache.with_texts(&[2, 2, 0])?;
    let expected =
        rows("k", 3, 0, 4, 8)?.contiguous()?.index_select(&Tensor::new(&[2u32, 2, 0], &test_device())?, 0)?;
    assert_eq!(bits(&chosen.rows()?)?, bits(&expected)?);
    assert!(cache.with_texts(&[3]).expect_err("there are 3").to_string().contains("text 3"));
    Ok(())
}
