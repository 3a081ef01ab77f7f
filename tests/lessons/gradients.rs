//! Every parameter of every variant gets a gradient, and dropout only acts where it is asked for.

use super::{normal, stored};
use crate::common::{Result, assert_close};
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::Dropout;
use candle_nn::{VarBuilder, VarMap};
use gpt2_lessons::causal_attention::{causal_mask, masked_weights, renormalized_weights};
use gpt2_lessons::{
    CausalAttention, MultiHeadAttention, MultiHeadAttentionWrapper, PerHeadAttention, PerHeadSizes,
    SelfAttention, simple,
};
use gpt2_model::init;

/// Fails unless `loss` gives each variable a gradient that is not 0.
///
/// A bias on the keys is an exception: it adds `q·b` to every score of a row, which the softmax cancels. Apart from
/// rounding, its gradient is 0, and so is PyTorch's.
pub(super) fn assert_all_learn(variables: &VarMap, loss: &Tensor) -> Result {
    let gradients = loss.backward()?;
    let held = variables.data().lock().map_err(|e| e.to_string())?;
    assert!(!held.is_empty());
    for (name, var) in held.iter() {
        let gradient = gradients.get(var).ok_or_else(|| format!("{name} has no gradient"))?;
        let largest = gradient.abs()?.max_all()?.to_scalar::<f32>()?;
        if name.ends_with("W_key.bias") {
            assert!(largest < 1e-5, "{name}: {largest}");
        } else {
            assert!(largest > 1e-4 && largest.is_finite(), "{name}: {largest}");
        }
    }
    Ok(())
}

/// Makes a layer from new variables, and checks that each gets a gradient from the sum of squares of its output.
fn learns(forward: impl Fn(VarBuilder<'static>) -> candle_core::Result<Tensor>) -> Result {
    let variables = VarMap::new();
    let output = forward(init::seeded_variables(9, &variables, DType::F32, &Device::Cpu))?;
    assert_all_learn(&variables, &output.sqr()?.sum_all()?)
}

#[test]
fn every_parameter_of_every_variant_gets_a_gradient() -> Result {
    let x = normal(9, (2, 5, 6))?; // (B, T, d_in)
    let drop = Dropout::new(0.2, 9, 0)?;
    learns(|vb| SelfAttention::load_parameters(vb, 6, 4)?.forward(&x))?;
    learns(|vb| SelfAttention::load(vb, 6, 4, true)?.forward(&x))?;
    learns(|vb| CausalAttention::load(vb, 6, 4, 8, true)?.forward(&x))?;
    learns(|vb| CausalAttention::load(vb, 6, 4, 8, false)?.forward_with(&x, Some(&drop)))?;
    learns(|vb| MultiHeadAttentionWrapper::load(vb, 6, 2, 8, 3, true)?.forward(&x))?;
    learns(|vb| MultiHeadAttentionWrapper::load(vb, 6, 2, 8, 2, false)?.forward_with(&x, &[drop; 2]))?;
    learns(|vb| MultiHeadAttention::load(vb, 6, 4, 8, 2, true)?.forward(&x))?;
    learns(|vb| MultiHeadAttention::load(vb, 6, 4, 8, 2, false)?.forward_with(&x, Some(&drop)))?;
    let sizes = PerHeadSizes { d_model: 6, d_k: 3, d_v: 2, n_head: 3 };
    learns(|vb| PerHeadAttention::load(vb, sizes, true)?.forward(&x))?;
    learns(|vb| PerHeadAttention::load(vb, sizes, false)?.forward(&x))
}

/// Both ways of masking and simple self-attention pass a gradient to their input: hidden scores get exactly 0.
#[test]
fn hidden_scores_get_no_gradient_and_visible_ones_do() -> Result {
    let mask = causal_mask(5, &Device::Cpu)?;
    let target = normal(2, (5, 5))?;
    let gradient = |weights: &dyn Fn(&Tensor) -> candle_core::Result<Tensor>| -> Result<Tensor> {
        let scores = Var::from_tensor(&normal(1, (5, 5))?)?;
        let gradients = (weights(&scores)? * &target)?.sum_all()?.backward()?;
        Ok(gradients.get(&scores).ok_or("no gradient")?.clone())
    };
    let before = gradient(&|scores| masked_weights(scores, &mask))?;
    let after = gradient(&|scores| renormalized_weights(scores, &mask))?;
    assert_close("both maskings", &after, &before, 1e-5);
    for (i, row) in before.to_vec2::<f32>()?.iter().enumerate() {
        assert!(row[i + 1..].iter().all(|g| *g == 0.), "row {i}: {row:?}");
        // The first row sees one word, whose weight is 1 for any score.
        assert!(row[..=i].iter().all(|g| (g.abs() > 1e-4) == (i > 0)), "row {i}: {row:?}");
    }
    let x = Var::from_tensor(&normal(3, (5, 4))?)?;
    let gradients = simple::self_attention(&x)?.sqr()?.sum_all()?.backward()?;
    assert!(gradients.get(&x).ok_or("no gradient")?.abs()?.min_all()?.to_scalar::<f32>()? > 1e-4);
    Ok(())
}

#[test]
fn the_split_layers_gradients_are_pytorchs() -> Result {
    let stored = stored()?;
    let variables = VarMap::new();
    for (name, tensor) in &stored {
        if let Some(name) = name.strip_prefix("biased.")
            && !name.starts_with("expected.")
        {
            let mut held = variables.data().lock().map_err(|e| e.to_string())?;
            held.insert(name.to_string(), Var::from_tensor(tensor)?);
        }
    }
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let layer = MultiHeadAttention::load(vb, 3, 4, 5, 2, true)?;
    let gradients = layer.forward(&stored["biased.x"])?.sqr()?.sum_all()?.backward()?;
    let held = variables.data().lock().map_err(|e| e.to_string())?;
    let expected = stored.iter().filter_map(|(n, t)| Some((n.strip_prefix("biased.expected.grad.")?, t)));
    let mut compared = 0;
    for (name, expected) in expected {
        let got = gradients.get(&held[name]).ok_or_else(|| format!("{name} has no gradient"))?;
        if name == "W_key.bias" {
            // 0 on paper, so both are rounding errors.
            assert!((got - expected)?.abs()?.max_all()?.to_scalar::<f32>()? < 1e-6);
        } else {
            assert_close(name, got, expected, 1e-5);
        }
        compared += 1;
    }
    assert_eq!(compared, 8);
    Ok(())
}

#[test]
fn forward_never_drops_and_forward_with_does() -> Result {
    let vb = init::seeded(5, DType::F32, &Device::Cpu);
    let single = CausalAttention::load(vb.pp("single"), 6, 4, 8, false)?;
    let stack = MultiHeadAttentionWrapper::load(vb.pp("stack"), 6, 2, 8, 2, false)?;
    let split = MultiHeadAttention::load(vb.pp("split"), 6, 4, 8, 2, false)?;
    let x = normal(5, (2, 8, 6))?;
    let run = |drop: Dropout| -> Result<[Vec<f32>; 3]> {
        let outputs = [
            single.forward_with(&x, Some(&drop))?,
            stack.forward_with(&x, &[drop; 2])?,
            split.forward_with(&x, Some(&drop))?,
        ];
        let [a, b, c] = outputs.map(|output| output.flatten_all()?.to_vec1());
        Ok([a?, b?, c?])
    };
    let [a, b, c] = [single.forward(&x)?, stack.forward(&x)?, split.forward(&x)?]
        .map(|x| x.flatten_all()?.to_vec1::<f32>());
    let without = [a?, b?, c?];
    assert_eq!(run(Dropout::new(0., 1, 0)?)?, without, "a rate of 0 drops nothing");
    let dropped = run(Dropout::new(0.5, 1, 0)?)?;
    assert_eq!(dropped, run(Dropout::new(0.5, 1, 0)?)?, "the same seed drops the same");
    for (with, without) in dropped.iter().zip(&without) {
        assert_ne!(with, without);
    }
    for (a, b) in dropped.iter().zip(run(Dropout::new(0.5, 2, 0)?)?.iter()) {
        assert_ne!(a, b, "another seed drops others");
    }
    Ok(())
}

/// Dropout scales up what it keeps to preserve the expectation: the mean over many masks is the output without dropout.
#[test]
fn dropout_keeps_the_expectation() -> Result {
    let layer = MultiHeadAttention::load(init::seeded(8, DType::F32, &Device::Cpu), 6, 4, 8, 2, false)?;
    let x = normal(8, (1, 6, 6))?;
    let draws = 4000;
    let mut sum = layer.forward(&x)?.zeros_like()?;
    for seed in 0..draws {
        sum = (sum + layer.forward_with(&x, Some(&Dropout::new(0.3, seed, 0)?))?)?;
    }
    // A standard error is about sqrt(0.3/0.7/4000) = 1% of a weight.
    assert_close("mean", &(sum / draws as f64)?, &layer.forward(&x)?, 0.05);
    Ok(())
}
