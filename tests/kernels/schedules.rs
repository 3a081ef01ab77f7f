//! Many sequences in the pages of one pool.

use crate::caches::{dtypes, rows};
use crate::common::{Result, cases, has_empty_tensors, test_device};
use crate::{Random, bits, random};
use candle_core::{DType, Tensor};
use candle_fused::attention::{HeadLayout, Mask, Sdpa};
use candle_fused::cache::{KvCache, PagedCache, SequenceId};
use std::collections::BTreeSet;

/// A text as a schedule knows it: its rows in each layer, from `forgotten` on.
#[derive(Clone)]
struct Text {
    id: SequenceId,
    /// The rows of its positions in the table of all numbers.
    rows: Vec<u32>,
    forgotten: usize,
    /// The shortest that it may go back to.
    shortest: usize,
}

/// A thousand schedules of texts that begin, grow, fork, go back, forget and end: each text keeps its own keys, and pages are free
/// exactly if no text has them.
#[test]
fn texts_in_pages_keep_their_own_keys() -> Result {
    const LAYERS: usize = 2;
    let heads = HeadLayout::grouped(4, 2, 4);
    let numbers = random(1, "numbers", 1., (1000, 2, 4))?;
    let of_layer = |rows: &[u32], layer: usize, is_value: bool| -> candle_core::Result<Tensor> {
        let rows = numbers.index_select(&Tensor::new(rows, &test_device())?, 0)?; // (T, key heads, D)
        rows + (2 * layer + usize::from(is_value)) as f64
    };
    let dtypes = dtypes();
    for schedule in 0..u64::from(cases(1000)) {
        let mut random = Random(schedule);
        let pages = 3 + random.below(12);
        let size = 1 + random.below(5);
        let dtype = dtypes[random.below(dtypes.len())];
        let mut cache = PagedCache::new(LAYERS, heads, pages, size, dtype, &test_device())?;
        let mut texts: Vec<Text> = vec![];
        for step in 0..30 {
            let chosen = random.below(texts.len().max(1));
            match (random.below(10), texts.get(chosen).cloned()) {
                (0, _) | (_, None) => {
                    texts.push(Text { id: cache.add(), rows: vec![], forgotten: 0, shortest: 0 });
                }
                (1, Some(text)) => texts.push(Text { id: cache.fork(text.id)?, ..text }),
                (2, Some(text)) => {
                    cache.remove(text.id)?;
                    texts.remove(chosen);
                    assert!(cache.len(text.id).is_err() && cache.remove(text.id).is_err());
                }
                (3, Some(text)) => {
                    let len = random.below(text.rows.len() + 1);
                    assert_eq!(cache.rewind(text.id, len).is_ok(), len >= text.shortest);
                    if len >= text.shortest {
                        texts[chosen].rows.truncate(len);
                    }
                }
                (4, Some(text)) => {
                    let position = random.below(text.rows.len() + 1);
                    cache.forget_before(text.id, position)?;
                    let forgotten = text.forgotten.max(position / size * size);
                    if forgotten > text.forgotten {
                        texts[chosen].shortest = text.rows.len();
                    }
                    texts[chosen].forgotten = forgotten;
                    assert!(cache.forget_before(text.id, text.rows.len() + 1).is_err());
                }
                (_, Some(text)) => {
                    let t = random.below(7).max(usize::from(!has_empty_tensors()));
                    let free = cache.free_pages();
                    if let Err(e) = cache.grow(text.id, t) {
                        assert!(e.to_string().contains(&format!("{free} of {pages} are free")), "{e}");
                        assert_eq!((cache.free_pages(), cache.len(text.id)?), (free, text.rows.len()));
                        continue;
                    }
                    let new: Vec<u32> = (0..t)
                        .map(|_| u32::try_from(random.below(1000)))
                        .collect::<std::result::Result<_, _>>()?;
                    texts[chosen].rows.extend(&new);
                    for layer in 0..LAYERS {
                        cache.write(
                            layer,
                            text.id,
                            &of_layer(&new, layer, false)?,
                            &of_layer(&new, layer, true)?,
                        )?;
                    }
                }
            }
            let mut used = BTreeSet::new();
            for text in &texts {
                assert_eq!(cache.len(text.id)?, text.rows.len());
                let held = &text.rows[text.forgotten..];
                used.extend(cache.pages(0, text.id)?.table.iter().copied());
                for layer in 0..LAYERS {
                    let pages = cache.pages(layer, text.id)?;
                    assert_eq!((pages.len, pages.table.len()), (held.len(), held.len().div_ceil(size)));
                    if held.is_empty() {
                        continue;
                    }
                    for (is_value, got) in pages.gather()?.iter().enumerate() {
                        let expected = dtype.rows(&of_layer(held, layer, is_value == 1)?)?.transpose(0, 1)?;
                        assert_eq!(
                            bits(got)?,
                            bits(&expected)?,
                            "schedule {schedule}, step {step}, layer {layer}"
                        );
                    }
                }
            }
            assert_eq!(cache.free_pages(), pages - used.len(), "schedule {schedule}, step {step}");
        }
    }
    Ok(())
}

/// Decoding several texts in pages at once gives what each gives in a cache of its own.
#[test]
fn texts_decoded_together_get_what_each_gets_alone() -> Result {
    let heads = HeadLayout::grouped(6, 2, 16);
    for dtype in dtypes() {
        let mut cache = PagedCache::new(1, heads, 40, 16, dtype, &test_device())?;
        let a = cache.add();
        let b = cache.add();
        let mut alone = [KvCache::new(300, dtype), KvCache::new(300, dtype)];
        let at = |n: usize| n * 170;
        // A prompt of each, then tokens of both.
        let mut lengths = [0, 0];
        for queries in [[50, 33], [1, 1], [1, 1], [3, 1], [0, 1]] {
            let mut q = vec![];
            let mut expected = vec![];
            for (n, (&t, text)) in queries.iter().zip([a, b]).enumerate() {
                let from = at(n) + lengths[n];
                let [k, v] = ["k", "v"].map(|name| rows(name, 1, from, from + t, 16));
                let k = k?;
                let v = v?;
                cache.grow(text, t)?;
                let by_position = |x: &Tensor| x.squeeze(0)?.transpose(0, 1);
                cache.write(0, text, &by_position(&k)?, &by_position(&v)?)?;
                lengths[n] += t;
                let of_q = random(6, "q", 1., (1, 6, 400, 16))?.narrow(2, from, t)?;
                q.push(by_position(&of_q)?);
                let (k, v) = alone[n].append(&k, &v)?;
                if t > 0 {
                    let context = Sdpa::default().forward(&of_q, &k, &v, Mask::default())?;
                    expected.extend(bits(&context)?);
                }
            }
            let pages = [cache.pages(0, a)?, cache.pages(0, b)?];
            let got = Sdpa::default().forward_varlen_paged(&Tensor::cat(&q, 0)?, &queries, &pages)?;
            assert_eq!(bits(&got)?, expected, "{dtype:?}, {queries:?}");
        }
    }
    Ok(())
}

/// Neither of two sequences that share a page writes to it, except for the positions that it has added itself since.
#[test]
fn no_write_reaches_a_page_of_another_sequence() -> Result {
    let heads = HeadLayout::all(1, 2);
    let mut cache = PagedCache::new(1, heads, 20, 4, DType::F32, &test_device())?;
    let rows = |t: usize, number: f32| Tensor::full(number, (t, 1, 2), &test_device());
    let write = |cache: &PagedCache, id, t, number| cache.write(0, id, &rows(t, number)?, &rows(t, number)?);
    let numbers = |cache: &PagedCache, id| -> Result<Vec<f32>> {
        let [k, _] = cache.pages(0, id)?.gather()?;
        Ok(k.narrow(3, 0, 1)?.flatten_all()?.to_vec1()?)
    };
    let a = cache.add();
    cache.grow(a, 8)?;
    write(&cache, a, 8, 1.)?;
    let b = cache.fork(a)?;
    let refused = |cache: &PagedCache, id, t| {
        let message = write(cache, id, t, 9.).expect_err("shared").to_string();
        assert!(message.contains(&format!("share the last {t} positions")), "{message}");
    };
    refused(&cache, b, 1);
    cache.grow(b, 1)?;
    write(&cache, b, 1, 2.)?;
    refused(&cache, b, 3);
    cache.rewind(b, 6)?;
    refused(&cache, b, 1);
    cache.grow(b, 3)?; // copies the page of positions 4 and 5
    write(&cache, b, 3, 3.)?;
    assert_eq!(numbers(&cache, a)?, [1.; 8]);
    assert_eq!(numbers(&cache, b)?, [1., 1., 1., 1., 1., 1., 3., 3., 3.]);
    // Room that was made before the fork belongs to both.
    cache.grow(a, 2)?;
    let c = cache.fork(a)?;
    refused(&cache, a, 2);
    refused(&cache, c, 2);
    cache.remove(c)?;
    write(&cache, a, 2, 4.)?;
    assert_eq!(numbers(&cache, a)?, [1., 1., 1., 1., 1., 1., 1., 1., 4., 4.]);
    let other = PagedCache::new(1, heads, 20, 4, DType::F32, &test_device())?.add();
    assert!(cache.len(other).is_err(), "a sequence of another cache");
    Ok(())
}

#[test]
fn a_sequence_that_forgot_does_not_go_back() -> Result {
    let mut cache = PagedCache::new(1, HeadLayout::all(1, 2), 20, 4, DType::F32, &test_device())?;
    let id = cache.add();
    cache.grow(id, 20)?;
    cache.forget_before(id, 3)?; // frees no page
    cache.rewind(id, 18)?;
    cache.forget_before(id, 9)?;
    cache.grow(id, 2)?;
    cache.rewind(id, 18)?;
    let message = cache.rewind(id, 17).expect_err("its query may see position 8").to_string();
    assert!(message.contains("the first 8 were forgotten when there were 18"), "{message}");
    Ok(())
}

#[test]
fn a_paged_cache_refuses_what_it_does_not_have() -> Result {
    let heads = HeadLayout::all(2, 8);
    let new = |pages, size, dtype| PagedCache::new(1, heads, pages, size, dtype, &test_device());
    assert!(
        new(0, 4, DType::F32).is_err()
            && new(4, 0, DType::F32).is_err()
            && new(4, 4, DType::U32).is_err()
            && new(4, usize::MAX, DType::F32).is_err()
    );
    let mut cache = new(4, 4, DType::F32)?;
    let text = cache.add();
    cache.grow(text, 5)?;
    let x = |t: usize, heads: usize, d: usize| Tensor::zeros((t, heads, d), DType::F32, &test_device());
    let refused = |result: candle_core::Result<()>, expected: &str| {
        let message = result.expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
    };
    refused(cache.write(1, text, &x(1, 2, 8)?, &x(1, 2, 8)?), "there is no layer 1");
    refused(cache.write(0, text, &x(6, 2, 8)?, &x(6, 2, 8)?), "up to 5 positions");
    refused(cache.write(0, text, &x(1, 3, 8)?, &x(1, 2, 8)?), "[1, 3, 8]");
    refused(cache.write(0, text, &x(1, 2, 8)?, &x(1, 2, 9)?), "[1, 2, 9]");
    refused(cache.write(0, text, &x(1, 2, 8)?, &x(2, 2, 8)?), "[2, 2, 8]");
    refused(cache.grow(text, usize::MAX), "too many");
    refused(cache.grow(text, 12), "need 3 pages of 4 positions, and 2 of 4 are free");
    cache.grow(text, 11)?;
    assert_eq!((cache.free_pages(), cache.total_pages(), cache.page_size()), (0, 4, 4));
    Ok(())
}
