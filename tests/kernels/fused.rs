//! Attention, eager and fused, against its definition in f64.

use crate::common::{Result, cases, some_padding, test_device};
use crate::{packed_views, random, relative_error, same_on_any_number_of_threads};
use candle_core::{DType, Tensor};
use candle_fused::Implementation::{self, Eager, Fused};
use candle_fused::attention::{CausalBias, FEW_QUERIES, Mask, Sdpa};
use proptest::prelude::*;

/// q, k and v as views of one packed projection, as `c_attn` returns them, and a padding mask.
struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Option<Vec<Vec<u8>>>,
    scale: f64,
}

impl Case {
    /// Normally distributed numbers of deviation `spread`; T queries at the end of S keys.
    fn random(
        (b, h, d): (usize, usize, usize),
        (t, s): (usize, usize),
        spread: f64,
        seed: u64,
    ) -> Result<Self> {
        let [q, k, v] = packed_views(&random(seed, "x", spread, (b, s, 3, h, d))?, t)?;
        Ok(Self { q, k, v, padding: None, scale: 1. / (d as f64).sqrt() })
    }

    fn run(&self, implementation: Implementation) -> Result<Tensor> {
        let s = self.k.dim(2)?;
        let padding = self.padding.clone().map(|p| Tensor::new(p, &test_device())).transpose()?;
        let mask = Mask { padding: padding.as_ref(), ..Default::default() };
        let bias = Some(CausalBias::new(s + 3, &test_device()));
        let attention = Sdpa { scale: Some(self.scale), bias, implementation, ..Sdpa::default() };
        Ok(attention.forward(&self.q, &self.k, &self.v, mask)?) // (B, T, H, D)
    }

    /// The definition, one number at a time: query i of T sees the keys 0..=S-T+i that are not padding.
    fn by_definition(&self) -> Result<Vec<f64>> {
        let (b, h, t, d) = self.q.dims4()?;
        let s = self.k.dim(2)?;
        let flat = |x: &Tensor| -> Result<Vec<f64>> { Ok(x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?) };
        let q = flat(&self.q)?;
        let k = flat(&self.k)?;
        let v = flat(&self.v)?;
        let row = |x: &[f64], len: usize, b: usize, h_: usize, i: usize| {
            let start = ((b * h + h_) * len + i) * d;
            x[start..start + d].to_vec()
        };
        let mut out = vec![0.0; b * t * h * d];
        for (bi, hi, i) in (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..t).map(move |i| (b, h, i)))) {
            let query = row(&q, t, bi, hi, i);
            let sees = |j: &usize| self.padding.as_ref().is_none_or(|p| p[bi][*j] == 1);
            let keys: Vec<usize> = (0..=s - t + i).filter(sees).collect();
            let score = |&j: &usize| {
                self.scale * query.iter().zip(row(&k, s, bi, hi, j)).map(|(a, b)| a * b).sum::<f64>()
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|x| (x - highest).exp()).sum();
            for (&j, x) in keys.iter().zip(&scores) {
                for (c, value) in row(&v, s, bi, hi, j).iter().enumerate() {
                    out[((bi * t + i) * h + hi) * d + c] += (x - highest).exp() / total * value;
                }
            }
        }
        Ok(out)
    }

    /// The largest error of `implementation`, relative to the largest value.
    fn error(&self, implementation: Implementation) -> Result<f64> {
        let expected = self.by_definition()?;
        let got = self.run(implementation)?;
        let (b, h, t, d) = self.q.dims4()?;
        assert_eq!(got.dims(), [b, t, h, d]);
        assert_eq!(got.dtype(), self.q.dtype());
        let got: Vec<f64> = got.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok(relative_error(&got, &expected))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(96)))]

    /// Measured over thousands of cases: at most 2e-6 in f32, and the halves' own rounding.
    #[test]
    fn any_shape_equals_the_definition(b in 1usize..5, h in 1usize..6, d in 1usize..131, s in 1usize..301,
                                       t in 1usize..301, seed in 0u64..100_000, padded: bool) {
        let check = || -> Result {
            let t = t.min(s);
            // The definition is slow, so use only one row and head of the largest sizes.
            let (b, h) = if b * h * d * t * s > 40_000_000 { (1, 1) } else { (b, h) };
            let mut case = Case::random((b, h, d), (t, s), 1.5, seed)?;
            if padded {
                case.padding = Some(some_padding(b, s, seed));
            }
            for implementation in [Fused, Eager] {
                let error = case.error(implementation)?;
                assert!(error <= 5e-6, "{implementation:?}: {error:e}");
            }
            for (dtype, rounding) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
                let half = Case {
                    q: case.q.to_dtype(dtype)?, k: case.k.to_dtype(dtype)?, v: case.v.to_dtype(dtype)?,
                    padding: case.padding.clone(), scale: case.scale,
                };
                // The inputs are rounded on both sides; only the output's own rounding remains.
                let error = half.error(Fused)?;
                assert!(error <= 1.1 * rounding, "{dtype:?}: {error:e}");
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    /// q, k and v with different strides each: any order of the dimensions, every other row, an offset,
    /// or one row for all heads (stride 0).
    #[test]
    fn any_strides_give_what_contiguous_tensors_give(order in 0usize..24, step in 1usize..3, shared: bool,
                                                     t in 1usize..70, seed in 0u64..1000) {
        let check = || -> Result {
            let (b, h, s, d) = (2, 3, 70, 9);
            let strided = |name: &str| -> Result<Tensor> {
                let sizes = [b + 1, h, s * step, d + 2];
                let mut order: Vec<usize> = permutation(order);
                let stored: Vec<usize> = order.iter().map(|&i| sizes[i]).collect();
                let x = random(seed, name, 1., stored)?;
                let mut back = vec![0; 4];
                order.drain(..).enumerate().for_each(|(at, i)| back[i] = at);
                let x = x.permute(back)?.narrow(0, 1, b)?.narrow(3, 1, d)?; // (B, H, S·step, D)
                let x = if step == 1 { x } else { x.narrow(2, s / 2, s)? };
                Ok(if shared { x.narrow(1, 0, 1)?.broadcast_as((b, h, s, d))? } else { x })
            };
            let q = strided("q")?.narrow(2, s - t, t)?;
            let k = strided("k")?;
            let v = strided("v")?;
            let case = Case { q, k, v, padding: None, scale: 0.4 };
            let plain = Case {
                q: case.q.force_contiguous()?, k: case.k.force_contiguous()?, v: case.v.force_contiguous()?,
                padding: None, scale: 0.4,
            };
            let got = case.run(Fused)?;
            let expected = plain.run(Fused)?;
            let flat = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
            assert_eq!(flat(&got)?, flat(&expected)?);
            assert!(case.error(Fused)? <= 5e-6);
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

/// The n-th order of 0, 1, 2, 3.
fn permutation(mut n: usize) -> Vec<usize> {
    let mut rest = vec![0, 1, 2, 3];
    (1..=4)
        .rev()
        .map(|left| {
            let i = n % left;
            n /= left;
            rest.remove(i)
        })
        .collect()
}

#[test]
fn extreme_scores_stay_finite_and_tiny_ones_exact() -> Result {
    for (spread, tolerance) in [(300.0, 5e-6), (1e-20, 5e-6)] {
        // Scores of about spread² · sqrt(D): one key takes all, or all keys are equal.
        let case = Case::random((1, 2, 16), (70, 70), spread, 5)?;
        let error = case.error(Fused)?;
        // A score of 1e6 is known to 1e6 · 2^-24, and so is the logarithm of its weight.
        let tolerance = if spread > 1.0 { 0.1 } else { tolerance };
        assert!(error <= tolerance, "spread {spread}: {error:e}");
    }
    Ok(())
}

/// Keys that grow along S: each step of a tile meets a maximum far above the last one, so the kernel has to rescale
/// its sums again and again.
#[test]
fn a_maximum_that_keeps_rising_rescales_what_was_summed() -> Result {
    for (t, s) in [(700, 700), (3, 700)] {
        let mut case = Case::random((1, 2, 16), (t, s), 1.0, 9)?;
        let ramp: Vec<f32> = (0..s).map(|j| 0.1 + j as f32 * 0.03).collect();
        case.k = case.k.broadcast_mul(&Tensor::from_vec(ramp, (1, 1, s, 1), &test_device())?)?;
        let error = case.error(Fused)?;
        assert!(error <= 2e-5, "T {t}: {error:e}"); // scores of up to 100, known to 100 · 2^-24
    }
    Ok(())
}

/// Decoding after a past that begins with padding, longer than a span.
#[test]
fn a_hidden_beginning_changes_nothing() -> Result {
    for t in [1, 2, 4, 5] {
        let mut case = Case::random((2, 2, 16), (t, 1300), 1.0, 10)?;
        case.padding = Some(vec![(0..1300).map(|j| u8::from(j >= 700)).collect(), vec![0; 1300]]);
        assert!(case.error(Fused)? <= 5e-6, "T {t}");
        let zeros = case.run(Fused)?.narrow(0, 1, 1)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(zeros == 0.0, "a row that sees nothing gives {zeros}");
    }
    Ok(())
}

/// Scores of ±1e4, known to 1e4 · 2^-24: one key takes nearly all, and the others' weights underflow.
#[test]
fn large_scores_keep_what_f32_knows_of_them() -> Result {
    let mut case = Case::random((1, 2, 8), (90, 90), 1.0, 6)?;
    case.scale = 1e4 / 8.0;
    let error = case.error(Fused)?;
    assert!(error <= 1e-2, "{error:e}");
    assert!(case.error(Eager)? <= 1e-2);
    Ok(())
}

#[test]
fn equal_keys_share_their_weight_and_denormal_inputs_count_as_they_are() -> Result {
    let mut case = Case::random((1, 2, 8), (90, 90), 1.0, 6)?;
    case.k = case.k.narrow(2, 3, 1)?.broadcast_as(case.k.shape())?;
    assert!(case.error(Fused)? <= 5e-6);
    for part in [&mut case.q, &mut case.k, &mut case.v] {
        *part = (&*part * 1e-20)?.affine(1e-20, 0.)?; // 1e-40: below the smallest normal number
    }
    assert!(case.v.abs()?.max_all()?.to_scalar::<f32>()? > 0.0, "nothing is left of the inputs");
    // A denormal has few digits, so allow for the spacing of the values relative to their size.
    let error = case.error(Fused)?;
    assert!(error <= 2e-5, "{error:e}");
    Ok(())
}

/// A key whose score is -inf for every query has no weight, and a query that sees only that one gets zeros.
#[test]
fn a_score_of_minus_infinity_has_no_weight() -> Result {
    for (t, s) in [(80, 80), (2, 80)] {
        let mut case = Case::random((1, 1, 4), (t, s), 1.0, 8)?;
        case.q = case.q.abs()?.affine(1.0, 0.1)?; // above 0
        let mut keys: Vec<f32> = case.k.flatten_all()?.to_vec1()?;
        keys[..4].fill(f32::NEG_INFINITY);
        case.k = Tensor::from_vec(keys, case.k.shape(), &test_device())?;
        let got: Vec<Vec<f32>> = case.run(Fused)?.to_vec3_of_head(0)?;
        let mut keys: Vec<f32> = case.k.flatten_all()?.to_vec1()?;
        keys[..4].fill(0.0);
        let without = Case {
            q: case.q.clone(),
            k: Tensor::from_vec(keys, case.k.shape(), &test_device())?,
            v: case.v.clone(),
            padding: Some(vec![(0..s).map(|j| u8::from(j > 0)).collect()]),
            scale: case.scale,
        };
        let expected = without.run(Fused)?.to_vec3_of_head(0)?;
        for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
            assert!((got - expected).abs() <= 1e-6, "T {t}: {got}, not {expected}");
        }
        if t == s {
            assert_eq!(got[0], [0.0; 4], "query 0 sees key 0 alone");
        }
    }
    Ok(())
}

#[test]
fn nan_and_infinity_show_where_they_are_seen_and_nowhere_else() -> Result {
    let (t, d) = (100, 8);
    for bad in [f32::NAN, f32::INFINITY] {
        for part in ["q", "k", "v"] {
            let at = 60;
            let mut case = Case::random((1, 2, d), (t, t), 1.0, 3)?;
            let clean = case.run(Fused)?.to_vec3_of_head(1)?;
            let tensor = match part {
                "q" => &mut case.q,
                "k" => &mut case.k,
                _ => &mut case.v,
            };
            // Row 60 of head 1 becomes `bad`.
            let mut values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
            values[(t + at) * d..(t + at + 1) * d].fill(bad);
            *tensor = Tensor::from_vec(values, (1, 2, t, d), &test_device())?;
            let got = case.run(Fused)?.to_vec3_of_head(1)?;
            for i in 0..t {
                let seen = if part == "q" { i == at } else { i >= at };
                if seen {
                    assert!(got[i].iter().any(|x| !x.is_finite()), "{bad} in {part}: row {i} hides it");
                } else {
                    for (a, b) in got[i].iter().zip(&clean[i]) {
                        assert!((a - b).abs() < 1e-5, "{bad} in {part}: row {i} is {a}, was {b}");
                    }
                }
            }
        }
    }
    Ok(())
}

trait Head {
    fn to_vec3_of_head(&self, h: usize) -> Result<Vec<Vec<f32>>>;
}

impl Head for Tensor {
    /// (1, T, H, D) -> the rows of head `h`
    fn to_vec3_of_head(&self, h: usize) -> Result<Vec<Vec<f32>>> {
        Ok(self.squeeze(0)?.narrow(1, h, 1)?.squeeze(1)?.to_vec2()?)
    }
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() -> Result {
    for (t, s) in [(130, 150), (1, 1700), (4, 1100)] {
        let case = Case::random((2, 3, 20), (t, s), 1.0, 11)?;
        same_on_any_number_of_threads(|| {
            Ok(case.run(Fused)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
        })?;
    }
    Ok(())
}

#[test]
fn a_few_queries_have_the_bits_of_a_call_of_their_own() -> Result {
    let t = FEW_QUERIES;
    let s = 1100;
    let case = Case::random((2, 3, 20), (t, s), 1.0, 11)?;
    let all = case.run(Fused)?;
    for i in 0..t {
        let keys = s - t + i + 1;
        let alone = Case {
            q: case.q.narrow(2, i, 1)?,
            k: case.k.narrow(2, 0, keys)?,
            v: case.v.narrow(2, 0, keys)?,
            padding: None,
            scale: case.scale,
        };
        let alone = alone.run(Fused)?;
        let flat = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
        assert_eq!(flat(&alone)?, flat(&all.narrow(1, i, 1)?)?, "query {i}");
    }
    Ok(())
}

#[test]
fn dtypes_that_differ_take_the_eager_way() -> Result {
    let mut case = Case::random((1, 2, 4), (9, 9), 1.0, 2)?;
    let expected = case.run(Eager)?;
    case.k = case.k.to_dtype(DType::F64)?;
    case.v = case.v.to_dtype(DType::F64)?;
    crate::common::assert_close("f64 keys", &case.run(Fused)?, &expected, 1e-6);
    Ok(())
}

#[test]
fn values_near_the_largest_f32_are_averaged_and_do_not_overflow() -> Result {
    let mut case = Case::random((1, 1, 4), (60, 60), 1.0, 4)?;
    case.v = Tensor::full(2e38f32, (1, 1, 60, 4), &test_device())?;
    for x in case.run(Fused)?.flatten_all()?.to_vec1::<f32>()? {
        assert!((x / 2e38 - 1.0).abs() < 1e-5, "{x}");
    }
    Ok(())
}
