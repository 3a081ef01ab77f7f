//! Keys and values in pages: the same bits as for the same keys one after another.

use crate::common::{Result, cases, has_empty_tensors, largest, test_device};
use crate::{Random, bits, random};
use candle_core::{DType, IndexOp, Tensor, Var};
use candle_fused::attention::{Lengths, Mask, Pages, Sdpa, Wanted, Window, quantize_rows};
use candle_fused::flash::flash_attn_varlen_paged_windowed;
use candle_fused::{Dropout, Implementation};
use proptest::prelude::*;

/// A pool of `pages` pages, of which `table` holds `rows` (1, heads, S, D) in order; the others hold what no one may read.
fn pool(rows: &Tensor, table: &[u32], pages: usize, size: usize) -> candle_core::Result<Tensor> {
    let (_, heads, s, d) = rows.dims4()?;
    let junk = match rows.dtype() {
        DType::U8 => Tensor::full(255u8, (pages * size, heads, d), &test_device())?,
        dtype => Tensor::full(f32::NAN, (pages * size, heads, d), &test_device())?.to_dtype(dtype)?,
    };
    let junk = junk.contiguous()?;
    let rows = rows.squeeze(0)?.transpose(0, 1)?.contiguous()?; // (S, heads, D)
    for (n, first) in (0..s).step_by(size).enumerate() {
        let part = rows.narrow(0, first, size.min(s - first))?;
        junk.slice_set(&part, 0, table[n] as usize * size)?;
    }
    junk.reshape((pages, size, heads, d))
}

/// `n` different pages of `pages`, in an order of their own.
fn shuffled(n: usize, pages: usize, seed: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..u32::MAX).take(pages).collect();
    let mut random = Random(seed);
    for i in (1..all.len()).rev() {
        all.swap(i, random.below(i + 1));
    }
    all.truncate(n);
    all
}

#[derive(Debug, Clone)]
struct Case {
    t: usize,
    s: usize,
    size: usize,
    key_heads: usize,
    group: usize,
    d: usize,
    dv: usize,
    /// Of queries, and of keys and values.
    dtypes: (DType, DType),
    window: Window,
    softcap: Option<f64>,
    /// Whether pages lie head by head.
    by_head: bool,
    seed: u64,
}

fn any_case() -> impl Strategy<Value = Case> {
    use DType::{BF16, F16, F32, F64, U8};
    const DTYPES: &[(DType, DType)] =
        &[(F32, F32), (F16, F16), (BF16, BF16), (F32, F16), (F32, BF16), (F32, U8), (F64, F64), (F16, F32)];
    const WINDOWS: &[Window] = &[
        Window::CAUSAL,
        Window::ALL,
        Window { left: Some(8), right: Some(0) },
        Window { left: Some(4), right: Some(3) },
    ];
    let sizes = prop_oneof![(1usize..60, 1usize..90), (1usize..5, 513usize..1200)];
    let numbers = (sizes, 1usize..40, 1usize..3, 1usize..4, 1usize..40, 1usize..40);
    let others = (prop::sample::select(DTYPES), prop::sample::select(WINDOWS));
    (numbers, others, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        |(numbers, others, capped, by_head, seed)| {
            let ((t, s), size, key_heads, group, d, dv) = numbers;
            let ((dtypes, window), softcap) = (others, capped.then_some(2.0));
            Case { t, s, size, key_heads, group, d, dv, dtypes, window, softcap, by_head, seed }
        },
    )
}

fn check_case(case: &Case) -> Result {
    let &Case {
        t,
        s,
        size,
        key_heads,
        group,
        d,
        dv,
        dtypes: (of_q, of_keys),
        window,
        softcap,
        by_head,
        seed,
    } = case;
    let keys = |name, width| {
        let x = random(seed, name, 1., (1, key_heads, s, width))?;
        if of_keys == DType::U8 { quantize_rows(&x) } else { x.to_dtype(of_keys) }
    };
    let k = keys("k", d)?;
    let v = keys("v", dv)?;
    let q = random(seed, "q", 1., (1, key_heads * group, t, d))?.to_dtype(of_q)?;
    let used = s.div_ceil(size);
    let table = shuffled(used + 2, used + 3, seed);
    let pool = |rows| -> candle_core::Result<Tensor> {
        let pool = pool(rows, &table, used + 3, size)?;
        if by_head { pool.transpose(1, 2)?.contiguous()?.transpose(1, 2) } else { Ok(pool) }
    };
    let pool_k = pool(&k)?;
    let pool_v = pool(&v)?;
    let pages = Pages { k: &pool_k, v: &pool_v, table: &table, len: s };
    let sdpa = Sdpa { window, softcap, ..Sdpa::default() };
    let wanted = Wanted { lse: true, summary: true, weights: &[candle_fused::attention::Chosen::default()] };
    let expected = sdpa.attend(&q, &k, &v, Mask::default(), wanted)?;
    let got = sdpa.attend_paged(&q, pages, Mask::default(), wanted)?;
    assert_eq!(bits(&got.context)?, bits(&expected.context)?, "context");
    assert_eq!(bits(&got.weights[0])?, bits(&expected.weights[0])?, "weights");
    let lse = |attended: Option<Tensor>| bits(&attended.ok_or("no log-sums")?);
    assert_eq!(lse(got.lse)?, lse(expected.lse)?, "log-sums");
    let entropy =
        |summary: Option<candle_fused::attention::Summary>| bits(&summary.ok_or("no summary")?.entropy);
    assert_eq!(entropy(got.summary)?, entropy(expected.summary)?, "summaries");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(120), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pages_change_no_bit(case in any_case()) {
        if let Err(e) = check_case(&case) {
            return Err(TestCaseError::fail(e.to_string()));
        }
    }
}

#[test]
fn gradients_reach_the_pools() -> Result {
    let s = 7;
    let size = 3;
    let table = [4u32, 0, 2];
    let [k, v] = ["k", "v"].map(|name| random(1, name, 1., (1, 2, s, 5)));
    let k = k?;
    let v = v?;
    let q = random(1, "q", 1., (1, 4, 3, 5))?;
    let zeros = |x: &Tensor| pool(x, &table, 5, size)?.where_finite();
    let pool_k = Var::from_tensor(&zeros(&k)?)?;
    let pool_v = Var::from_tensor(&zeros(&v)?)?;
    let k = Var::from_tensor(&k)?;
    let v = Var::from_tensor(&v)?;
    let weigh = random(1, "w", 1., (1, 3, 4, 5))?;
    let sdpa = Sdpa::default();
    let pages = Pages { k: &pool_k, v: &pool_v, table: &table, len: s };
    let of_pools = (sdpa.forward_paged(&q, pages, Mask::default())? * &weigh)?.sum_all()?.backward()?;
    let plain = (sdpa.forward(&q, &k, &v, Mask::default())? * &weigh)?.sum_all()?.backward()?;
    for (pools, tensors) in [(&pool_k, &k), (&pool_v, &v)] {
        let expected = plain.get(tensors).ok_or("no gradient")?;
        let got = of_pools.get(pools).ok_or("no gradient of a pool")?;
        // What lies in no page of the text gets none.
        assert!(got.i(1)?.abs()?.sum_all()?.to_scalar::<f32>()? == 0.0);
        let pages = Pages { k: got, v: got, table: &table, len: s };
        assert_eq!(bits(&pages.gather()?[0])?, bits(expected)?);
    }
    Ok(())
}

/// Strided pools are gathered, too; dropout draws one mask for all sequences; sinks and masks belong to the sequence.
#[test]
fn everything_else_is_as_for_keys_one_after_another() -> Result {
    let (s, size) = (50, 8);
    let table = shuffled(7, 9, 3);
    let x = |name| random(1, name, 1., (1, 2, s, 16));
    let k = x("k")?;
    let v = x("v")?;
    let q = random(1, "q", 1., (1, 4, 9, 16))?;
    let strided = |rows: &Tensor| -> candle_core::Result<Tensor> {
        pool(rows, &table, 9, size)?.transpose(1, 2)?.contiguous()?.transpose(1, 2)
    };
    let pool_k = strided(&k)?;
    let pool_v = strided(&v)?;
    let pages = Pages { k: &pool_k, v: &pool_v, table: &table, len: s };
    let padding =
        Tensor::from_iter((0..s).map(|key| u8::from(key % 5 != 1)), &test_device())?.reshape((1, s))?;
    let added = random(1, "added", 1., (1, 1, 9, s))?;
    let sinks = Tensor::new(&[0.5f32, -1., 2., 0.], &test_device())?;
    for implementation in [Implementation::Auto, Implementation::Eager] {
        let attention = Sdpa { implementation, ..Sdpa::default() };
        for mask in [
            Mask { padding: Some(&padding), ..Mask::default() },
            Mask { added: Some(&added), ..Mask::default() },
        ] {
            for attention in [attention.clone(), Sdpa { sinks: Some(sinks.clone()), ..attention.clone() }] {
                let got = attention.forward_paged(&q, pages, mask)?;
                assert_eq!(bits(&got)?, bits(&attention.forward(&q, &k, &v, mask)?)?);
            }
        }
        // Two sequences in one call: the second drops as the later rows of a batch do.
        let attention = Sdpa { dropout: Some(Dropout::new(0.5, 1, 2)?), ..attention };
        let by_position = |x: &Tensor| x.squeeze(0)?.transpose(0, 1)?.contiguous();
        let twice = |x: &Tensor| -> candle_core::Result<Tensor> {
            let x = by_position(x)?;
            Tensor::cat(&[&x, &x], 0)
        };
        let got = attention.forward_varlen_paged(&twice(&q)?, &[9, 9], &[pages, pages])?;
        let lengths = Lengths::new(&[9, 9], &[s, s])?;
        let expected = attention.forward_varlen(&twice(&q)?, &twice(&k)?, &twice(&v)?, &lengths)?;
        assert_eq!(bits(&got)?, bits(&expected)?);
        assert_ne!(bits(&got.narrow(0, 0, 9)?)?, bits(&got.narrow(0, 9, 9)?)?);
    }
    Ok(())
}

trait WhereFinite {
    fn where_finite(&self) -> candle_core::Result<Tensor>;
}

impl WhereFinite for Tensor {
    /// With zeros in place of NaN.
    fn where_finite(&self) -> candle_core::Result<Tensor> {
        self.eq(self)?.where_cond(self, &self.zeros_like()?)
    }
}

/// Attention of one sequence in f64, written out. `sees(position, key)`
fn definition(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scale: f64,
    sees: impl Fn(usize, usize) -> bool,
) -> Result<Vec<f64>> {
    let rows = |x: &Tensor| x.to_dtype(DType::F64)?.to_vec3::<f64>();
    let (q, k, v) = (rows(q)?, rows(k)?, rows(v)?); // (T, H, D), (S, key heads, D), (S, key heads, Dv)
    let t = q.len();
    let s = k.len();
    let group = q[0].len() / k[0].len();
    let mut out = vec![];
    for (i, q) in q.iter().enumerate() {
        for (h, q) in q.iter().enumerate() {
            let seen: Vec<usize> = (0..s).filter(|&j| sees(s + i - t, j)).collect();
            let score = |j: &usize| scale * q.iter().zip(&k[*j][h / group]).map(|(a, b)| a * b).sum::<f64>();
            let weights: Vec<f64> = seen.iter().map(|j| score(j).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut context = vec![0.0; v[0][0].len()];
            for (j, weight) in seen.iter().zip(&weights) {
                context.iter_mut().zip(&v[*j][h / group]).for_each(|(out, v)| *out += weight / sum * v);
            }
            out.extend(context);
        }
    }
    Ok(out)
}

/// Three texts, one of them without queries, and a prefix that is seen as a whole in two places.
#[test]
fn the_function_of_flash_attention_computes_its_definition() -> Result {
    let size = 32;
    let lengths = [70usize, 40, 33];
    let queries = [70usize, 0, 5];
    let total: usize = queries.iter().sum();
    let q = random(3, "q", 1., (total, 4, 16))?;
    let tables = [[5i32, 2, 7], [1, 6, -1], [3, 4, -1]];
    let mut rows = vec![];
    let (pool_k, pool_v) = (
        Tensor::zeros((8, size, 2, 16), DType::F32, &test_device())?,
        Tensor::zeros((8, size, 2, 16), DType::F32, &test_device())?,
    );
    for (n, (&s, table)) in lengths.iter().zip(&tables).enumerate() {
        let [k, v] = ["k", "v"].map(|name| random(n as u64, name, 1., (s, 2, 16)));
        let k = k?;
        let v = v?;
        for (x, pool) in [(&k, &pool_k), (&v, &pool_v)] {
            for (page, first) in table.iter().zip((0..s).step_by(size)) {
                let part = x.narrow(0, first, size.min(s - first))?.unsqueeze(0)?;
                pool.narrow(0, usize::try_from(*page)?, 1)?.slice_set(&part, 1, 0)?;
            }
        }
        rows.push((k, v));
    }
    let starts = |lengths: [usize; 3]| {
        let mut sum = 0;
        let ends = lengths.map(|n| {
            sum += u32::try_from(n).expect("a short text");
            sum
        });
        Tensor::new(&[0, ends[0], ends[1], ends[2]], &test_device())
    };
    let table = Tensor::new(&tables, &test_device())?;
    let ranges = [[[3usize, 20], [60, 64]], [[0, 0], [0, 0]], [[30, 33], [9, 4]]];
    let prefixes =
        Tensor::new(&[[[3i32, 20], [60, 64]], [[0, 0], [0, 0]], [[30, 33], [9, 4]]], &test_device())?;
    for (prefixed, window) in [(false, None), (true, None), (true, Some(10))] {
        let got = flash_attn_varlen_paged_windowed(
            &q,
            &pool_k,
            &pool_v,
            &starts(queries)?,
            &starts(lengths)?,
            &table,
            prefixed.then_some(&prefixes),
            70,
            70,
            0.3,
            window,
            Some(0),
            size,
            None,
        )?;
        let mut expected = vec![];
        let mut first = 0;
        for (n, (k, v)) in rows.iter().enumerate().filter(|(n, _)| queries[*n] > 0) {
            let together = |position: usize, key: usize| {
                let both =
                    |&[start, end]: &[usize; 2]| [position, key].iter().all(|at| (start..end).contains(at));
                prefixed && ranges[n].iter().any(both)
            };
            let sees = |position: usize, key: usize| {
                let by_window = key <= position && window.is_none_or(|left| key + left >= position);
                by_window || together(position, key)
            };
            expected.extend(definition(&q.narrow(0, first, queries[n])?, k, v, 0.3, sees)?);
            first += queries[n];
        }
        let got: Vec<f32> = got.flatten_all()?.to_vec1()?;
        let difference = largest(got.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()));
        assert!(difference < 2e-6, "{prefixed}, {window:?}: {difference}");
    }
    Ok(())
}

#[test]
fn pages_that_do_not_hold_the_text_are_refused() -> Result {
    let pool = Tensor::zeros((4, 8, 2, 16), DType::F32, &test_device())?;
    let q = Tensor::zeros((1, 4, 1, 16), DType::F32, &test_device())?;
    let other = Tensor::zeros((4, 9, 2, 16), DType::F32, &test_device())?;
    let refused = |q: &Tensor, pages: Pages, expected: &[&str]| {
        let message =
            Sdpa::default().forward_paged(q, pages, Mask::default()).expect_err("refused").to_string();
        assert!(expected.iter().all(|part| message.contains(part)), "{message}");
    };
    let pages = Pages { k: &pool, v: &pool, table: &[0, 3], len: 16 };
    assert_eq!(Sdpa::default().forward_paged(&q, pages, Mask::default())?.dims(), [1, 1, 4, 16]);
    refused(&q, Pages { len: 17, ..pages }, &["17 positions", "2 pages of 8"]);
    refused(&q, Pages { table: &[0, 4], ..pages }, &["page 4", "the 4 pages"]);
    refused(&q, Pages { v: &other, ..pages }, &["[4, 8, 2, 16]", "[4, 9, 2, 16]"]);
    refused(
        &Tensor::zeros((2, 4, 1, 16), DType::F32, &test_device())?,
        pages,
        &["[2, 4, 1, 16]", "[1, 2, 16, 16]"],
    );
    refused(&Tensor::zeros((1, 3, 1, 16), DType::F32, &test_device())?, pages, &["divides 3"]);
    // The last page that is needed is the last that is looked at.
    let pages = Pages { table: &[0, 3, 99], ..pages };
    assert!(Sdpa::default().forward_paged(&q, pages, Mask::default()).is_ok());
    // Without keys, zeros.
    let nothing =
        Sdpa::default().forward_paged(&q, Pages { table: &[], len: 0, ..pages }, Mask::default())?;
    assert_eq!(nothing.flatten_all()?.to_vec1::<f32>()?, [0.0; 64]);
    // Without queries, no rows.
    if has_empty_tensors() {
        let none = Tensor::zeros((0, 4, 16), DType::F32, &test_device())?;
        assert_eq!(Sdpa::default().forward_varlen_paged(&none, &[0], &[pages])?.dims(), [0, 4, 16]);
    }
    let sizes =
        Sdpa::default().forward_varlen_paged(&q.squeeze(0)?, &[3], &[pages]).expect_err("4 rows").to_string();
    assert!(sizes.contains("3 queries of 1"), "{sizes}");
    Ok(())
}
