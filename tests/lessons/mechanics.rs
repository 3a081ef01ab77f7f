//! "The Mechanics of Causal Self Attention": causal self-attention by its formulas, and why scores are divided by `√d`.
//!
//! It prints no number. Its claims: `E[q·k]` = 0 and `Var(q·k)` = d for independent entries of variance 1,
//! `Var(q·k/√d)` = 1, the rows of the weights are distributions over no later words, and heads go side by side.

use super::normal;
use crate::common::{Result, assert_close};
use candle_core::{D, DType, Device, Tensor};
use gpt2_lessons::causal_attention::{causal_mask, masked_weights};
use gpt2_lessons::self_attention::{scale, scores};
use gpt2_lessons::{PerHeadAttention, PerHeadSizes, simple};
use gpt2_model::init;

#[test]
fn the_variance_of_a_score_is_d_and_scaled_it_is_1() -> Result {
    let n = 4096;
    for d in [4, 16, 64, 256, 1024] {
        let q = normal(1, (n, d))?;
        let k = normal(2, (n, d))?;
        let dots = (q * k)?.sum(D::Minus1)?.to_dtype(DType::F64)?; // (n)
        let mean = dots.mean_all()?.to_scalar::<f64>()?;
        let variance = |x: &Tensor| {
            Result::Ok(x.sqr()?.mean_all()?.to_scalar::<f64>()? - x.mean_all()?.to_scalar::<f64>()?.powi(2))
        };
        let plain = variance(&dots)?;
        let scaled = variance(&scale(&dots, d)?)?;
        // Five standard errors. A score is a sum of d products of kurtosis 9, so its own kurtosis is 3 + 6/d, and
        // the variance of a variance is (kurtosis - 1)/n of its square.
        let error = 5. * ((2. + 6. / d as f64) / n as f64).sqrt();
        assert!((plain / d as f64 - 1.).abs() < error, "Var(q·k) at d = {d}: {plain}");
        assert!((scaled - 1.).abs() < error, "Var(q·k/√d) at d = {d}: {scaled}");
        assert!(mean.abs() < 5. * (d as f64 / n as f64).sqrt(), "E[q·k] at d = {d}: {mean}");
    }
    Ok(())
}

/// The purpose of the scale: the gradient that a score gets through the softmax.
#[test]
fn without_the_scale_wide_keys_leave_the_softmax_no_gradient() -> Result {
    let q = normal(3, (64, 1024))?;
    let k = normal(4, (64, 1024))?;
    let v = normal(5, (64, 8))?;
    let gradient = |divide: bool| -> Result<f32> {
        let scores = scores(&q, &k)?;
        let scores = candle_core::Var::from_tensor(&if divide { scale(&scores, 1024)? } else { scores })?;
        let loss = simple::context(&simple::softmax(&scores)?, &v)?.sum_all()?;
        let gradients = loss.backward()?;
        Ok(gradients.get(&scores).ok_or("no gradient")?.abs()?.mean_all()?.to_scalar()?)
    };
    let with = gradient(true)?;
    let without = gradient(false)?;
    assert!(with > 5. * without, "{with} with the scale, {without} without");
    Ok(())
}

#[test]
fn rows_of_the_weights_are_distributions_over_the_past() -> Result {
    let q = normal(6, (9, 4))?;
    let k = normal(7, (9, 4))?;
    let weights = masked_weights(&scale(&scores(&q, &k)?, 4)?, &causal_mask(9, &Device::Cpu)?)?;
    let ones = Tensor::ones(9, DType::F32, &Device::Cpu)?;
    assert_close("row sums", &weights.sum(1)?, &ones, 1e-6);
    for (i, row) in weights.to_vec2::<f32>()?.iter().enumerate() {
        assert!(
            row[..=i].iter().all(|w| *w > 0.) && row[i + 1..].iter().all(|w| *w == 0.),
            "row {i}: {row:?}"
        );
    }
    Ok(())
}

/// An output depends on no later input: word 5 changes, and outputs 0 to 4 stay as they are, bit for bit.
#[test]
fn an_output_depends_on_no_later_word() -> Result {
    let sizes = PerHeadSizes { d_model: 6, d_k: 2, d_v: 2, n_head: 3 };
    let mut layer = PerHeadAttention::load(init::seeded(3, DType::F32, &Device::Cpu), sizes, true)?;
    layer.w_o = None; // the document ends at Concat
    let x = normal(8, (9, 6))?;
    let changed = Tensor::cat(&[x.narrow(0, 0, 5)?, normal(9, (1, 6))?, x.narrow(0, 6, 3)?], 0)?;
    let before = layer.forward(&x)?.to_vec2::<f32>()?;
    let after = layer.forward(&changed)?.to_vec2::<f32>()?;
    assert_eq!(before[..5], after[..5]);
    assert!(before[5..].iter().zip(&after[5..]).all(|(a, b)| a != b), "each later word sees word 5");
    Ok(())
}
