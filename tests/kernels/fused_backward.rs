//! The gradients of fused attention, compared with those of the definition in f64, with finite differences,
//! and with themselves on other numbers of threads.

use crate::common::{Result, cases, some_padding, test_device};
use crate::{packed_views, random, relative_error as error, same_on_any_number_of_threads};
use candle_core::{DType, Tensor, Var};
use candle_fused::Dropout;
use candle_fused::Implementation::{self, Eager, Fused};
use candle_fused::attention::{Mask, Sdpa, Window};
use proptest::prelude::*;

/// q, k and v as views of one packed variable, as `c_attn` returns them, and the weights of the sum over the
/// context whose gradient the tests take.
struct Case {
    packed: Tensor,  // (B, S, 3, H, D)
    weights: Tensor, // (B, T, H, D)
    padding: Option<Vec<Vec<u8>>>,
    dropout: Option<Dropout>,
}

impl Case {
    fn random((b, h, d): (usize, usize, usize), (t, s): (usize, usize), seed: u64) -> Result<Self> {
        Ok(Self {
            packed: random(seed, "x", 1.2, (b, s, 3, h, d))?,
            weights: random(seed, "w", 1.2, (b, t, h, d))?,
            padding: None,
            dropout: None,
        })
    }

    fn loss(&self, packed: &Tensor, implementation: Implementation) -> Result<Tensor> {
        let [q, k, v] = packed_views(packed, self.weights.dim(1)?)?;
        let padding = self.padding.clone().map(|p| Tensor::new(p, &test_device())).transpose()?;
        let mask = Mask { padding: padding.as_ref(), ..Default::default() };
        let attention = Sdpa { dropout: self.dropout, implementation, ..Sdpa::default() };
        let context = attention.forward(&q, &k, &v, mask)?;
        Ok((context.to_dtype(DType::F64)? * self.weights.to_dtype(DType::F64)?)?.sum_all()?)
    }

    /// The gradient of the packed projection, (B, S, 3, H, D), flat.
    fn gradient(&self, dtype: DType, implementation: Implementation) -> Result<Vec<f64>> {
        let packed = Var::from_tensor(&self.packed.to_dtype(dtype)?)?;
        let gradients = self.loss(&packed, implementation)?.backward()?;
        let gradient = gradients.get(&packed).ok_or("no gradient")?;
        assert_eq!((gradient.dims(), gradient.dtype()), (packed.dims(), dtype));
        Ok(gradient.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

    #[test]
    fn any_shape_has_the_definitions_gradient(b in 1usize..3, h in 1usize..4, d in 1usize..131, s in 1usize..220,
                                              t in 1usize..220, seed in 0u64..100_000, padded: bool, dropping: bool) {
        let check = || -> Result {
            let mut case = Case::random((b, h, d), (t.min(s), s), seed)?;
            if padded {
                case.padding = Some(some_padding(b, s, seed));
            }
            if dropping {
                case.dropout = Some(Dropout::new(0.3, seed, 5)?);
            }
            let expected = case.gradient(DType::F64, Eager)?;
            let fused = error(&case.gradient(DType::F32, Fused)?, &expected);
            assert!(fused <= 1e-5, "f32: {fused:e}");
            for (dtype, rounding) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
                let half = Case {
                    packed: case.packed.to_dtype(dtype)?.to_dtype(DType::F32)?,
                    weights: case.weights.clone(),
                    padding: case.padding.clone(),
                    dropout: case.dropout,
                };
                let error = error(&half.gradient(dtype, Fused)?, &half.gradient(DType::F64, Eager)?);
                // Each of the context, its gradient and the result is rounded, and heads of one or two channels subtract
                // what is nearly equal: 4.1 times the rounding was seen.
                assert!(error <= 6.0 * rounding, "{dtype:?}: {error:e}");
            }
            Ok(())
        };
        check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

#[test]
fn the_gradient_is_the_slope_of_the_values() -> Result {
    let case = Case::random((1, 2, 3), (5, 7), 4)?;
    let gradient = case.gradient(DType::F32, Fused)?;
    let values: Vec<f64> = case.packed.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let step = 1e-5;
    for (i, slope) in gradient.iter().enumerate() {
        let at = |x: f64| -> Result<f64> {
            let mut moved = values.clone();
            moved[i] += x;
            let packed = Tensor::from_vec(moved, case.packed.shape(), &test_device())?;
            Ok(case.loss(&packed, Eager)?.to_scalar()?)
        };
        let expected = (at(step)? - at(-step)?) / (2. * step);
        assert!((slope - expected).abs() <= 1e-5, "number {i}: {slope}, not {expected}");
    }
    Ok(())
}

/// Few queries, whose log-sums come from the row-by-row code, and keys that grow along S, so that the maximum keeps
/// rising.
#[test]
fn few_queries_and_rising_scores_have_the_definitions_gradient() -> Result {
    for (t, ramp) in [(1, false), (3, false), (4, true), (500, true)] {
        let mut case = Case::random((2, 2, 16), (t, 500), 12)?;
        if ramp {
            let ramp: Vec<f32> = (0..500).map(|j| 0.1 + j as f32 * 0.01).collect();
            case.packed =
                case.packed.broadcast_mul(&Tensor::from_vec(ramp, (1, 500, 1, 1, 1), &test_device())?)?;
        }
        let error = error(&case.gradient(DType::F32, Fused)?, &case.gradient(DType::F64, Eager)?);
        assert!(error <= 5e-5, "T {t}: {error:e}"); // scores of up to 200, known to 200 · 2^-24
    }
    Ok(())
}

#[test]
fn the_gradient_does_not_depend_on_the_number_of_threads() -> Result {
    let case = Case::random((2, 3, 20), (130, 150), 11)?;
    same_on_any_number_of_threads(|| case.gradient(DType::F32, Fused))
}

#[test]
fn nan_stays_in_its_row_of_the_batch() -> Result {
    let mut case = Case::random((2, 1, 4), (60, 60), 3)?;
    // Row 1 of the batch is NaN throughout.
    let mut values: Vec<f32> = case.packed.flatten_all()?.to_vec1()?;
    let half = values.len() / 2;
    values[half..].fill(f32::NAN);
    case.packed = Tensor::from_vec(values, case.packed.shape(), &test_device())?;
    let gradient = case.gradient(DType::F32, Fused)?;
    assert!(gradient[..half].iter().all(|x| x.is_finite()), "NaN reached another row of the batch");
    assert!(gradient[half..].iter().any(|x| x.is_nan()), "NaN was hidden");
    Ok(())
}

/// A query that is NaN leaves the gradients of other queries as they are, whatever of its row a tile keeps in memory.
#[test]
fn a_query_of_nan_leaves_other_queries_alone() -> Result {
    let (t, bad) = (300, 200);
    let q = random(1, "q", 1., (1, 1, t, 8))?;
    let k = random(1, "k", 1., (1, 1, t, 8))?;
    let v = random(1, "v", 1., (1, 1, t, 8))?;
    for window in [Window::CAUSAL, Window::sliding(5), Window { left: Some(3), right: Some(30) }] {
        let attention = Sdpa { window, softcap: Some(2.0), ..Sdpa::default() };
        let gradient = |q: &Tensor| -> Result<Vec<f32>> {
            let q = Var::from_tensor(q)?;
            let gradients = attention.forward(&q, &k, &v, Mask::default())?.sqr()?.sum_all()?.backward()?;
            Ok(gradients.get(&q).ok_or("no gradient")?.flatten_all()?.to_vec1()?)
        };
        let mut numbers: Vec<f32> = q.flatten_all()?.to_vec1()?;
        numbers[bad * 8..(bad + 1) * 8].fill(f32::NAN);
        let got = gradient(&Tensor::from_vec(numbers, q.shape(), &test_device())?)?;
        for (n, (got, expected)) in got.iter().zip(gradient(&q)?).enumerate() {
            if n / 8 == bad {
                assert!(got.is_nan(), "{window:?}");
            } else {
                assert!((got - expected).abs() < 1e-6, "{window:?}, query {}: {got}", n / 8);
            }
        }
    }
    Ok(())
}

/// Whether each element is not 0.
fn kept(x: &Tensor) -> candle_core::Result<Vec<bool>> {
    Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?.into_iter().map(|x| x != 0.0).collect())
}

/// With all queries and keys 0 the weights are even, and with the identity as values the context of query i is
/// row i of the weights. So is the gradient of value i, if only feature i of query i counts.
#[test]
fn every_dtype_drops_the_same_weights_forward_and_backward() -> Result {
    let (h, t) = (3, 19);
    let eye = Tensor::eye(t, DType::F32, &test_device())?;
    let run = |implementation, dtype| -> candle_core::Result<[Vec<bool>; 2]> {
        let zeros = Tensor::zeros((1, h, t, t), dtype, &test_device())?;
        let v = Var::from_tensor(&eye.to_dtype(dtype)?.broadcast_as((1, h, t, t))?.contiguous()?)?;
        let dropout = Some(Dropout::new(0.5, 1, 2)?);
        let attention = Sdpa { dropout, implementation, ..Sdpa::default() };
        let context = attention.forward(&zeros, &zeros, &v, Mask::default())?; // (1, T, H, T)
        let chosen = context.broadcast_mul(&eye.to_dtype(dtype)?.unsqueeze(1)?)?;
        let gradients = chosen.sum_all()?.backward()?;
        let gradient = gradients.get(&v).expect("a gradient").transpose(2, 3)?; // (1, H, T, T)
        Ok([kept(&context.transpose(1, 2)?)?, kept(&gradient)?])
    };
    let [expected, _] = run(Eager, DType::F32)?;
    let seen = h * t * (t + 1) / 2;
    let share = expected.iter().filter(|&&kept| kept).count() as f64 / seen as f64;
    assert!((0.4..0.6).contains(&share), "{share}");
    for implementation in [Eager, Fused] {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let [forward, backward] = run(implementation, dtype)?;
            assert_eq!(forward, expected, "{implementation:?}, {dtype:?}");
            assert_eq!(backward, expected, "backward, {implementation:?}, {dtype:?}");
        }
    }
    Ok(())
}
