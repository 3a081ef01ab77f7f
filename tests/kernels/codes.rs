//! Keys and values in 8 bits, against their definition in f64 and attention over them against attention over the numbers that
//! the codes stand for.

use crate::common::{Result, cases, some_padding, test_device};
use crate::{random, relative_error, same_on_any_number_of_threads};
use candle_core::{DType, Tensor, Var};
use candle_fused::Implementation::{self, Auto, Eager, Fused};
use candle_fused::attention::{
    Chosen, HeadLayout, Hidden, Inputs, Lengths, Mask, SCALE_BYTES, Sdpa, Wanted, Window, quantize_rows,
    widen_rows,
};
use proptest::prelude::*;

/// Queries, and quantized keys and values as views of a longer cache that holds both, (B, 2·key heads, capacity, D + 4).
struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Option<Tensor>,
    hidden: Vec<Hidden>,
    window: Window,
}

impl Case {
    fn new(
        (b, key_heads, group, d): (usize, usize, usize, usize),
        (t, s): (usize, usize),
        seed: u64,
    ) -> Result<Self> {
        let cache = quantize_rows(&random(seed, "kv", 1.3, (b, 2 * key_heads, s + 3, d))?)?;
        let held = cache.narrow(2, 1, s)?;
        Ok(Self {
            q: random(seed, "q", 1.3, (b, key_heads * group, t, d))?,
            k: held.narrow(1, 0, key_heads)?,
            v: held.narrow(1, key_heads, key_heads)?,
            padding: None,
            hidden: vec![],
            window: Window::CAUSAL,
        })
    }

    fn sdpa(&self, implementation: Implementation) -> Sdpa {
        Sdpa { window: self.window, implementation, ..Sdpa::default() }
    }

    fn mask(&self) -> Mask<'_> {
        Mask { padding: self.padding.as_ref(), hidden: &self.hidden, ..Mask::default() }
    }

    /// (B, T, H, D)
    fn run(&self, implementation: Implementation) -> Result<Vec<f64>> {
        let (b, h, t, d) = self.q.dims4()?;
        let context = self.sdpa(implementation).forward(&self.q, &self.k, &self.v, self.mask())?;
        assert_eq!((context.dims(), context.dtype()), (&[b, t, h, d][..], DType::F32));
        Ok(context.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
    }

    /// One number at a time, from the bytes.
    fn by_definition(&self) -> Result<Vec<f64>> {
        let ((_, h, t, d), (_, key_heads, s, _)) = (self.q.dims4()?, self.k.dims4()?);
        let q: Vec<f64> = self.q.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        let k = by_bytes(&self.k)?;
        let v = by_bytes(&self.v)?;
        let padding = self.padding.as_ref().map(Tensor::to_vec2::<u8>).transpose()?;
        let scale = 1. / (d as f64).sqrt();
        let mut out = vec![0.0; q.len()];
        for (n, query) in q.chunks_exact(d).enumerate() {
            let row = n / (h * t);
            let head = n / t % h;
            let i = n % t;
            let first = (row * key_heads + head * key_heads / h) * s;
            let sees = |&j: &usize| {
                let hides =
                    |one: &Hidden| one.head.is_none_or(|of| of == head) && (one.query, one.key) == (i, j);
                padding.as_ref().is_none_or(|rows| rows[row][j] == 1) && !self.hidden.iter().any(hides)
            };
            let keys: Vec<usize> = self.window.keys(i, t, s).filter(sees).collect();
            let score = |j: &usize| {
                let key = &k[(first + j) * d..][..d];
                scale * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>()
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|x| (x - highest).exp()).sum();
            for (j, x) in keys.iter().zip(&scores) {
                for (c, value) in v[(first + j) * d..][..d].iter().enumerate() {
                    out[((row * t + i) * h + head) * d + c] += (x - highest).exp() / total * value;
                }
            }
        }
        Ok(out)
    }

    /// The keys and values as plain numbers.
    fn widened(&self) -> Result<[Tensor; 2]> {
        Ok([widen_rows(&self.k)?, widen_rows(&self.v)?])
    }
}

/// `scale·code` of each number, in order.
fn by_bytes(codes: &Tensor) -> Result<Vec<f64>> {
    let width = codes.dims().last().copied().ok_or("rows")?;
    let bytes: Vec<u8> = codes.flatten_all()?.to_vec1()?;
    let row = |row: &[u8]| -> Vec<f64> {
        let (codes, scale) = row.split_last_chunk::<4>().expect("a scale");
        let scale = f64::from(f32::from_le_bytes(*scale));
        codes.iter().map(|code| f64::from(code.cast_signed()) * scale).collect()
    };
    Ok(bytes.chunks_exact(width).flat_map(row).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(96)))]

    #[test]
    fn any_shape_equals_the_definition(b in 1usize..4, key_heads in 1usize..4, group in 1usize..6,
                                       d in 1usize..97, s in 1usize..301, t in 1usize..120, few: bool,
                                       left in 0usize..400, right in 0usize..20, padded: bool, hidden: bool,
                                       seed in 0u64..100_000) {
        let check = || -> Result {
            let (t, s) = if few { (t % 5 + 1, 4 * s) } else { (t, s) };
            let mut case = Case::new((b, key_heads, group, d), (t, s), seed)?;
            case.window = match seed % 3 {
                0 => Window::CAUSAL,
                1 => Window::ALL,
                _ => Window { left: Some(left), right: Some(right) },
            };
            if padded {
                case.padding = Some(Tensor::new(some_padding(b, s, seed), &test_device())?);
            }
            if hidden {
                let head = (seed % 2 == 0).then_some(0);
                case.hidden = (0..t).map(|query| Hidden { head, query, key: query * 7 % s }).collect();
            }
            let expected = case.by_definition()?;
            for implementation in [Fused, Eager] {
                let error = relative_error(&case.run(implementation)?, &expected);
                assert!(error <= 1e-5, "{implementation:?}: {error:e}");
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    /// Each code is the nearest, each scale the largest magnitude over 127, whatever the strides.
    #[test]
    fn codes_are_the_nearest(rows in 1usize..600, d in 1usize..90, exponent in -30i32..30, seed in 0u64..100_000) {
        let check = || -> Result {
            let x = random(seed, "x", 10f64.powi(exponent), (d, rows))?.t()?;
            let codes = quantize_rows(&x)?;
            assert_eq!((codes.dtype(), codes.dims()), (DType::U8, &[rows, d + SCALE_BYTES][..]));
            let got = by_bytes(&codes)?;
            // The product of a code and a scale is rounded once.
            let widened = widen_rows(&codes)?.flatten_all()?;
            let rounded = Tensor::new(&got[..], &test_device())?.to_dtype(DType::F32)?;
            assert_eq!(widened.to_vec1::<f32>()?, rounded.to_vec1::<f32>()?);
            for (x, got) in x.to_vec2::<f32>()?.iter().zip(got.chunks_exact(d)) {
                let largest = x.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
                for (x, got) in x.iter().zip(got) {
                    let error = (f64::from(*x) - got).abs();
                    assert!(error <= largest / 127.0 * 0.500_01, "{x}: {got} of at most {largest}");
                }
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

#[test]
fn the_smallest_and_the_largest_numbers_have_finite_codes() -> Result {
    let device = &test_device();
    for x in [0.0, 1e-45, 1e-43, 1e-38, f32::MIN_POSITIVE, 1.0, f32::MAX] {
        let row = Tensor::new(&[[x, -x, x / 3.0]], device)?;
        let got = widen_rows(&quantize_rows(&row)?)?.to_vec2::<f32>()?;
        for (got, x) in got[0].iter().zip([x, -x, x / 3.0]) {
            // A subnormal scale is known to half of the smallest number, 127 of which may be off.
            let error = f64::from(got - x).abs();
            assert!(error <= f64::from(x.abs()) / 100.0 + 127.0 * 1e-45, "{x:e}: {got:e}");
        }
    }
    let zeros = quantize_rows(&Tensor::zeros((2, 3), DType::F32, device)?)?;
    assert_eq!(zeros.to_vec2::<u8>()?, [[0; 7]; 2]);
    Ok(())
}

#[test]
fn the_number_of_threads_changes_no_bit() -> Result {
    for (t, s) in [(1, 1500), (4, 1100), (300, 300)] {
        let case = Case::new((1, 2, 3, 33), (t, s), 7)?;
        same_on_any_number_of_threads(|| case.run(Fused))?;
    }
    let x = random(3, "x", 1.0, (40, 50, 9))?;
    same_on_any_number_of_threads(|| {
        Ok(quantize_rows(&x)?.flatten_all()?.to_vec1::<u8>()?.into_iter().map(f64::from).collect())
    })
}

/// Without a stride of 1 between a row's bytes, or with one row for all keys.
#[test]
fn any_strides_give_what_contiguous_rows_give() -> Result {
    for t in [2, 30] {
        let case = Case::new((2, 2, 1, 9), (t, 40), 5)?;
        let apart = |x: &Tensor| x.transpose(1, 3)?.contiguous()?.transpose(1, 3);
        let strided = Case {
            k: apart(&case.k)?,
            v: apart(&case.v)?,
            q: case.q.clone(),
            ..Case::new((1, 1, 1, 1), (1, 1), 1)?
        };
        assert_eq!(strided.run(Fused)?, case.run(Fused)?);
        let one = |x: &Tensor| x.narrow(2, 3, 1)?.broadcast_as(x.shape());
        let same = Case { k: one(&case.k)?, v: one(&case.v)?, ..strided };
        assert!(relative_error(&same.run(Fused)?, &same.by_definition()?) <= 1e-5);
    }
    Ok(())
}

/// Weights, summaries, scores, weights of one's own and sequences of different lengths are those of the widened numbers.
#[test]
fn everything_else_is_that_of_the_widened_rows() -> Result {
    let numbers = |x: &Tensor| -> Result<Vec<f64>> { Ok(x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?) };
    for (t, implementation) in [(3, Fused), (40, Fused), (40, Eager)] {
        let mut case = Case::new((2, 2, 2, 16), (t, 50), 11)?;
        case.padding = Some(Tensor::new(some_padding(2, 50, 3), &test_device())?);
        let sdpa = case.sdpa(implementation);
        let mask = case.mask();
        let q = &case.q;
        let chosen = [Chosen { heads: Some(vec![3, 0]), queries: Some(vec![2, 1]) }, Chosen::default()];
        let wanted = Wanted { weights: &chosen, summary: true, ..Wanted::default() };
        let [k, v] = case.widened()?;
        let got = sdpa.attend(q, &case.k, &case.v, mask, wanted)?;
        let expected = sdpa.attend(q, &k, &v, mask, wanted)?;
        let close = |what: &str, got: &Tensor, expected: &Tensor| -> Result {
            let finite = |x: &Tensor| x.maximum(-1e9); // scores of hidden keys are -inf
            let error = relative_error(&numbers(&finite(got)?)?, &numbers(&finite(expected)?)?);
            assert!(error <= 1e-6, "{what}, T {t}, {implementation:?}: {error:e}");
            Ok(())
        };
        close("context", &got.context, &expected.context)?;
        for (got, expected) in got.weights.iter().zip(&expected.weights) {
            close("weights", got, expected)?;
        }
        let got = got.summary.ok_or("asked for")?;
        let expected = expected.summary.ok_or("asked for")?;
        close("entropy", &got.entropy, &expected.entropy)?;
        close("distance", &got.mean_distance, &expected.mean_distance)?;
        close("scores", &sdpa.scores(q, &case.k, mask)?, &sdpa.scores(q, &k, mask)?)?;
        let weights = sdpa.weights(q, &case.k, mask, &Chosen::default())?;
        close("weights alone", &weights, &sdpa.weights(q, &k, mask, &Chosen::default())?)?;
        let own = Sdpa::context(&weights, &case.v)?;
        assert_eq!(own.dtype(), DType::F32);
        close("context of weights", &own, &Sdpa::context(&weights, &v)?)?;

        let flat = |x: &Tensor| x.narrow(0, 0, 1)?.squeeze(0)?.transpose(0, 1); // (positions, heads, D)
        let lengths = Lengths::new(&[1, 0, t - 1], &[20, 10, 20])?;
        let varlen = |k: &Tensor, v: &Tensor| sdpa.forward_varlen(&flat(q)?, &flat(k)?, &flat(v)?, &lengths);
        close("sequences", &varlen(&case.k, &case.v)?, &varlen(&k, &v)?)?;
    }
    Ok(())
}

#[test]
fn without_keys_the_context_is_zeros() -> Result {
    let case = Case::new((1, 1, 2, 8), (3, 4), 2)?;
    let none = |x: &Tensor| x.narrow(2, 0, 0);
    let context = case.sdpa(Auto).forward(&case.q, &none(&case.k)?, &none(&case.v)?, Mask::default())?;
    assert_eq!(context.dims(), [1, 3, 2, 8]);
    assert!(context.abs()?.max_all()?.to_scalar::<f32>()? == 0.0);
    Ok(())
}

#[test]
fn the_choice_of_code_knows_quantized_keys() -> Result {
    let case = Case::new((1, 2, 1, 8), (3, 4), 2)?;
    let inputs = Inputs::from_tensors(&case.q, &case.k, &case.v, Mask::default());
    assert_eq!(case.sdpa(Auto).code_for(&inputs)?, Fused);
    assert_eq!(case.sdpa(Eager).code_for(&inputs)?, Eager);
    let learned = Inputs { gradient: true, ..inputs };
    assert!(case.sdpa(Auto).code_for(&learned).is_err());
    let plain = Inputs::new(&test_device(), DType::U8, HeadLayout::all(2, 8), 1, 3, 4);
    assert!(case.sdpa(Auto).code_for(&plain).is_err(), "queries in u8");
    Ok(())
}

#[test]
fn what_cannot_be_quantized_is_refused_by_name() -> Result {
    let refused = |x: &Tensor, part: &str| {
        let message = quantize_rows(x).expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
    };
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (row, column) in [(0, 0), (299, 4)] {
            let mut rows = vec![vec![1f32; 5]; 300];
            rows[row][column] = x;
            refused(&Tensor::new(rows, &test_device())?, "NaN or infinite");
        }
    }
    refused(&Tensor::zeros((2, 3), DType::F16, &test_device())?, "f32");
    refused(&Tensor::zeros((2, 0), DType::F32, &test_device())?, "[2, 0]");
    refused(&Tensor::zeros((), DType::F32, &test_device())?, "expected rows of numbers");
    refused(Var::zeros((2, 3), DType::F32, &test_device())?.as_tensor(), "detach");
    for codes in [
        Tensor::zeros((2, 4), DType::U8, &test_device())?,
        Tensor::zeros((2, 9), DType::F32, &test_device())?,
    ] {
        let message = widen_rows(&codes).expect_err("no rows").to_string();
        assert!(message.contains("D + 4 bytes"), "{message}");
    }
    Ok(())
}

#[test]
fn what_attention_cannot_read_is_refused_by_name() -> Result {
    let case = Case::new((1, 2, 1, 8), (3, 4), 2)?;
    let Case { q, k, v, .. } = &case;
    let [wide_k, wide_v] = case.widened()?;
    let refused = |[q, k, v]: [&Tensor; 3], part: &str| {
        let message = Sdpa::default().forward(q, k, v, Mask::default()).expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
    };
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        refused([&q.to_dtype(dtype)?, k, v], "queries in f32, got");
    }
    refused([q, k, &wide_v], "both to be quantized, got k in u8 and v in f32");
    refused([q, &wide_k, v], "both to be quantized, got k in f32 and v in u8");
    refused([Var::from_tensor(q)?.as_tensor(), k, v], "without a gradient");
    refused([q, &k.narrow(3, 0, 8)?, v], "[1, key heads, S, 12]");
    refused([q, k, &v.narrow(3, 0, 4)?], "rows of D + 4 bytes");
    refused([q, k, &v.narrow(3, 0, 2)?], "rows of D + 4 bytes");
    Ok(())
}
