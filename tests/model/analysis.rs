//! Analyses, compared with slow, simple computations.

use crate::common::{Result, assert_close, reference};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_model::analysis::{RepeatedTokens, attention_rollout, chance_scores, head_scores, logit_lens};
use gpt2_model::{Conv1D, ForwardArgs, Gpt2LMHeadModel, Implementation};

fn model() -> Result<(Gpt2LMHeadModel, Tensor)> {
    Ok((load("odd", DType::F32)?, reference("odd")?["T33.input_ids"].clone()))
}

#[test]
fn the_logit_lens_reads_every_layers_residual_and_ends_with_the_model() -> Result {
    let (model, ids) = model()?;
    let expected = reference("odd")?;
    let lens = logit_lens(&model, &ids, 20, None)?; // (3, 1, V)
    assert_eq!(lens.dims(), [3, 1, 101]);
    let own = expected["T33.logits"].narrow(1, 20, 1)?.squeeze(1)?;
    assert_close("the last layer's", &lens.get(2)?, &own, 3e-5);
    let f64s = |t: &Tensor| t.to_dtype(DType::F64);
    for layer in 0..2 {
        // ln_f and lm_head by their formulas, in f64, on the output of transformers' blocks.
        let x = f64s(&expected[&format!("T33.hidden_states.{layer}")])?.get(0)?.get(20)?; // (C)
        let centered = x.broadcast_sub(&x.mean_all()?)?;
        let deviation = (centered.sqr()?.mean_all()? + model.config().layer_norm_epsilon)?.sqrt()?;
        let ln_f = &model.transformer.ln_f;
        let normed = ((centered.broadcast_div(&deviation)? * f64s(&ln_f.weight)?)? + f64s(&ln_f.bias)?)?
            .unsqueeze(1)?;
        let logits = f64s(&model.lm_head.weight()?)?.matmul(&normed)?.squeeze(1)?; // (V)
        assert_close("a layer's", &lens.get(layer)?.get(0)?, &logits.to_dtype(DType::F32)?, 3e-5);
    }
    let error = logit_lens(&model, &ids, 33, None).unwrap_err().to_string();
    assert!(error.contains("position 33") && error.contains("0 to 32"), "{error}");
    Ok(())
}

#[test]
fn rollout_follows_every_path_through_the_layers() -> Result {
    let (model, ids) = model()?;
    let attentions = model
        .forward(&ids, ForwardArgs { output_attentions: true, ..Default::default() })?
        .transformer
        .attentions;
    let rollout = attention_rollout(&attentions)?;
    // Path by path: position i takes half of itself, and half of each head's mean.
    let mean = |layer: usize| attentions[layer].get(0)?.mean(0)?.to_vec2::<f32>();
    let (first, second) = (mean(0)?, mean(1)?);
    let mixed =
        |weights: &[Vec<f32>], i: usize, j: usize| 0.5 * weights[i][j] + if i == j { 0.5 } else { 0.0 };
    let expected = (0..33 * 33).map(|n| {
        let (i, j) = (n / 33, n % 33);
        (j..=i).map(|k| mixed(&second, i, k) * mixed(&first, k, j)).sum::<f32>()
    });
    let expected = Tensor::from_iter(expected, &Device::Cpu)?.reshape((1, 33, 33))?;
    assert_close("two layers", &rollout[1], &expected, 1e-5);
    Ok(())
}

#[test]
fn uniform_attention_scores_chance() -> Result {
    let (mut model, _) = model()?;
    // With a score of 0 for every key, attention is uniform.
    for block in &mut model.transformer.h {
        let (weight, bias) = (block.attn.c_attn.weight()?, block.attn.c_attn.bias().ok_or("a bias")?.clone());
        block.attn.c_attn = Conv1D::new(weight.zeros_like()?, bias.zeros_like()?)?;
    }
    let texts = RepeatedTokens::random(Some(3), (8, 3), 2, 101, 5);
    let [previous, duplicate, induction] = chance_scores(&texts);
    for score in head_scores(&model.transformer, &texts, None)?.iter().flatten() {
        for (score, chance) in [
            (score.previous_token, previous),
            (score.duplicate_token, duplicate),
            (score.induction, induction),
        ] {
            assert!((score.mean - chance).abs() < 1e-6 && score.standard_error < 1e-6, "{score:?}");
        }
    }
    assert_eq!(model.config().attn_implementation.on(&Device::Cpu), Implementation::Fused);
    for (lengths, rows) in [((0, 2), 1), ((5, 2), 0), ((39, 2), 1), ((5, 1), 1)] {
        let texts = RepeatedTokens::random(None, lengths, rows, 101, 5);
        let error = head_scores(&model.transformer, &texts, None).unwrap_err().to_string();
        assert!(error.contains("at most 77 tokens"), "{error}");
    }
    Ok(())
}
