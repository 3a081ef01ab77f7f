//! Attention sinks, from those that hardly count to those that take almost all.

use crate::common::{Result, test_device};
use crate::extras::{finite, flat, some_case};
use crate::{random, relative_error};
use candle_core::{DType, Tensor, Var};
use candle_fused::Implementation::{Eager, Fused};
use candle_fused::attention::{Chosen, Mask, Sdpa, Wanted, Window, quantize_rows, widen_rows};

/// A sink takes its share of each row: weights, kernel and summaries agree with the definition from a sink that hardly counts to one
/// that takes almost all, and a query that sees no key gives zeros.
#[test]
fn weights_and_summaries_leave_the_sinks_their_share() -> Result {
    let case = some_case();
    let [q, k, v] = case.qkv()?;
    let padding = Tensor::new(case.padding(), &test_device())?;
    let mask = Mask { padding: Some(&padding), ..Mask::default() };
    let sinks = Tensor::new(&[f32::NEG_INFINITY, -100., 1.5, 200.], &test_device())?;
    for t in [70, 3] {
        let q = q.narrow(2, 0, t)?;
        let run = |dtype, implementation| -> Result<Vec<(&str, Tensor)>> {
            let [q, k, v] = [&q, &k, &v].map(|x| x.to_dtype(dtype));
            let attention =
                Sdpa { sinks: Some(sinks.clone()), window: Window::ALL, implementation, ..Sdpa::default() };
            let wanted = Wanted { lse: true, weights: &[Chosen::default()], summary: true };
            let attended = attention.attend(&q?, &k?, &v?, mask, wanted)?;
            let summary = attended.summary.ok_or("a summary")?;
            Ok(vec![
                ("weights", attended.weights[0].clone()),
                ("context", attended.context),
                ("log-sums", attended.lse.ok_or("log-sums")?),
                ("entropy", summary.entropy),
                ("distance", summary.mean_distance),
                ("on self", summary.on_self),
                ("on first", summary.on_first),
                ("largest", summary.max),
            ])
        };
        let expected = run(DType::F64, Eager)?;
        // Row 0 of the batch is padding alone.
        let sums = expected[0].1.sum(3)?.narrow(2, 0, 1)?;
        let sums = flat(&sums)?;
        assert_eq!(sums[..4], [0.; 4], "{sums:?}");
        assert!((sums[4] - 1.).abs() < 1e-12 && (sums[5] - 1.).abs() < 1e-12 && sums[7] < 1e-80, "{sums:?}");
        assert!(sums[6] > 0.5 && sums[6] < 0.99, "{sums:?}");
        for ((what, got), (_, expected)) in run(DType::F32, Fused)?.iter().zip(&expected) {
            let error = relative_error(&finite(&flat(got)?), &finite(&flat(expected)?));
            assert!(error < 1e-5, "{what}, T {t}: {error}");
        }
    }
    Ok(())
}

/// A sink of -inf has no effect, and one of `f32::MIN` nearly none, also where a row sees no key.
#[test]
fn sinks_without_weight_have_gradients_of_zero() -> Result {
    let case = some_case();
    let [q, k, v] = case.qkv()?;
    let padding = Tensor::new(case.padding(), &test_device())?;
    let mask = Mask { padding: Some(&padding), ..Mask::default() };
    for low in [f32::NEG_INFINITY, f32::MIN] {
        let gradients = |dtype, implementation| -> Result<[Tensor; 2]> {
            let sinks = Var::from_tensor(&Tensor::new(&[low, 0., low, 1.], &test_device())?)?;
            let [q, k, v] = [&q, &k, &v].map(|x| x.to_dtype(dtype));
            let q = Var::from_tensor(&q?)?;
            let attention = Sdpa {
                sinks: Some(sinks.as_tensor().clone()),
                window: Window::ALL,
                implementation,
                ..Sdpa::default()
            };
            let context = attention.forward(&q, &k?, &v?, mask)?;
            let of = context.sqr()?.sum_all()?.backward()?;
            let found = [q, sinks].map(|var| of.get(&var).cloned().ok_or("a gradient"));
            let [of_q, of_sinks] = found;
            Ok([of_q?, of_sinks?])
        };
        let expected = gradients(DType::F64, Eager)?;
        for (got, expected) in gradients(DType::F32, Fused)?.iter().zip(&expected) {
            let error = relative_error(&flat(got)?, &flat(expected)?);
            assert!(error < 1e-5, "{low}: {error}");
        }
        let of_sinks = flat(&expected[1])?;
        assert_eq!((of_sinks[0], of_sinks[2]), (0., 0.), "{of_sinks:?}");
    }
    Ok(())
}

/// Values that overflow in a sum go row by row.
#[test]
fn sinks_join_rows_of_huge_values() -> Result {
    let [q, k, v] = some_case().qkv()?;
    let sinks = Tensor::new(&[0f32, 1., 2., 3.], &test_device())?;
    let attention = |implementation| Sdpa { sinks: Some(sinks.clone()), implementation, ..Sdpa::default() };
    let v = (v * 1e36)?;
    let implementations = [Fused, Eager];
    let [got, expected] = implementations
        .map(|implementation| flat(&attention(implementation).forward(&q, &k, &v, Mask::default())?));
    let error = relative_error(&got?, &expected?);
    assert!(error < 1e-5, "{error}");
    Ok(())
}

#[test]
fn sinks_that_do_not_fit_are_refused() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 8))?;
    for sinks in
        [Tensor::zeros(3, DType::F32, &test_device())?, Tensor::zeros(2, DType::U32, &test_device())?]
    {
        let attention = Sdpa { sinks: Some(sinks), ..Sdpa::default() };
        let message =
            attention.forward(&q, &q, &q, Mask::default()).expect_err("it does not fit").to_string();
        assert!(message.contains("sinks must be floats [2]"), "{message}");
    }
    Ok(())
}

/// Without keys the log-sum is the sink, and its gradient is 1.
#[test]
fn queries_without_keys_see_the_sinks_alone() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 8))?;
    let sinks = Var::new(&[0.5f32, -2.], &test_device())?;
    let padding = Tensor::zeros((1, 5), DType::U8, &test_device())?;
    for (implementation, s) in [(Fused, 0), (Fused, 5), (Eager, 5)] {
        let k = random(1, "k", 1., (1, 2, s, 8))?;
        let padding = padding.narrow(1, 0, s)?;
        let mask = Mask { padding: Some(&padding), ..Mask::default() };
        let attention = Sdpa { sinks: Some(sinks.as_tensor().clone()), implementation, ..Sdpa::default() };
        let attended = attention.attend(&q, &k, &k, mask, Wanted { lse: true, ..Wanted::default() })?;
        let lse = attended.lse.ok_or("log-sums")?;
        assert_eq!(flat(&attended.context)?, [0.; 48]);
        assert_eq!(flat(&lse)?, [0.5, 0.5, 0.5, -2., -2., -2.], "{implementation:?}, S {s}");
        let gradients = lse.sum_all()?.backward()?;
        assert_eq!(flat(gradients.get(&sinks).ok_or("no gradient")?)?, [3., 3.]);
    }
    Ok(())
}

/// Keys and values in 8 bits and in halves are widened when sinks are learned.
#[test]
fn narrow_keys_have_gradients_of_sinks() -> Result {
    let [q, k, _] = some_case().qkv()?;
    let sinks = Var::new(&[0.5f32, -2., 1., 0.], &test_device())?;
    let [codes, halves] = [quantize_rows(&k)?, k.to_dtype(DType::BF16)?];
    for (narrow, wide) in [(&codes, widen_rows(&codes)?), (&halves, halves.to_dtype(DType::F32)?)] {
        let gradient = |q: &Tensor, k: &Tensor, implementation| -> Result<Vec<f64>> {
            let attention =
                Sdpa { sinks: Some(sinks.as_tensor().clone()), implementation, ..Sdpa::default() };
            let gradients = attention.forward(q, k, k, Mask::default())?.sqr()?.sum_all()?.backward()?;
            flat(gradients.get(&sinks).ok_or("no gradient")?)
        };
        let expected = gradient(&q.to_dtype(DType::F64)?, &wide.to_dtype(DType::F64)?, Eager)?;
        assert!(relative_error(&gradient(&q, narrow, Fused)?, &expected) < 1e-5);
    }
    Ok(())
}

/// One key with the score 3/4 beside a sink z has the weight `w = 1 / (1 + exp(z - 3/4))`, whose slope in z is `-w·(1 - w)`.
#[test]
fn weights_have_gradients_of_sinks() -> Result {
    let q = Tensor::new(&[[[[1.5f32]]]], &test_device())?;
    let k = Tensor::new(&[[[[0.5f32]]]], &test_device())?;
    for (implementation, z) in [(Fused, -1f32), (Fused, 2.), (Eager, 2.)] {
        let sinks = Var::new(&[z], &test_device())?;
        let attention = Sdpa {
            scale: Some(1.),
            sinks: Some(sinks.as_tensor().clone()),
            implementation,
            ..Sdpa::default()
        };
        let w = 1. / (1. + (f64::from(z) - 0.75).exp());
        let (_, beside) = attention.forward_with_weights(&q, &k, &k, Mask::default())?;
        for weights in [beside, attention.weights(&q, &k, Mask::default(), &Chosen::default())?] {
            assert!((flat(&weights)?[0] - w).abs() < 1e-6);
            let gradients = weights.sum_all()?.backward()?;
            let slope = flat(gradients.get(&sinks).ok_or("no gradient")?)?[0];
            assert!((slope + w * (1. - w)).abs() < 1e-6, "{implementation:?}, {z}: {slope}");
        }
    }
    Ok(())
}
