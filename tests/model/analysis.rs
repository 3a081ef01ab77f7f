//! Analyses, compared with transformers, with slow, simple computations, and with one pass per head.

use crate::common::{Result, assert_close, max_abs, reference, some_ids, test_device};
use crate::hooks::hooked;
use crate::hooks::interventions::expected;
use crate::models::{load, random_model};
use candle_core::{D, DType, Device, IndexOp, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_model::analysis::{
    Ablation, Centering, Metric, RepeatedTokens, ablation_effects, attention_rollout, chance_scores,
    direct_attribution, head_scores, logit_lens,
};
use gpt2_model::hooks::{Head, Intervention, Interventions};
use gpt2_model::{Conv1D, ForwardArgs, Gpt2LMHeadModel, Implementation};

/// The token that the reference asks about.
const TARGET: u32 = 17;

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
    let first = mean(0)?;
    let second = mean(1)?;
    let mixed =
        |weights: &[Vec<f32>], i: usize, j: usize| 0.5 * weights[i][j] + if i == j { 0.5 } else { 0.0 };
    let expected = (0..33 * 33).map(|n| {
        let (i, j) = (n / 33, n % 33);
        (j..=i).map(|k| mixed(&second, i, k) * mixed(&first, k, j)).sum::<f32>()
    });
    let expected = Tensor::from_iter(expected, &test_device())?.reshape((1, 33, 33))?;
    assert_close("two layers", &rollout[1], &expected, 1e-5);
    Ok(())
}

#[test]
fn uniform_attention_scores_chance() -> Result {
    let (mut model, _) = model()?;
    // With a score of 0 for every key, attention is uniform.
    for block in &mut model.transformer.h {
        let weight = block.attn.c_attn.weight()?;
        let bias = block.attn.c_attn.bias().ok_or("a bias")?.clone();
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

#[test]
fn effects_and_attribution_are_those_of_transformers() -> Result {
    let model = load("odd", DType::F32)?;
    let expected = expected()?;
    let ids = expected["input_ids"].narrow(0, 0, 1)?;
    let expected = |name: &str| expected[name].to_device(&Device::Cpu);
    for (name, ablation) in [("zero_effects", Ablation::Zero), ("mean_effects", Ablation::Mean)] {
        let effects = ablation_effects(&model, &ids, &Metric::LogProb(TARGET), ablation, None)?;
        let error = max_abs(&(&effects.change.to_dtype(DType::F32)? - expected(name)?)?)?;
        assert!(error < 5e-5, "{name}: {error:e}");
        assert!(max_abs(&expected(name)?)? > 0.1);
    }
    let direct = direct_attribution(&model, &ids, &Metric::Logit(TARGET), Centering::Raw, None)?;
    let error = max_abs(&(direct.heads.to_dtype(DType::F32)? - expected("direct_logit_attribution")?)?)?;
    assert!(error < 2e-5, "{error:e}");
    Ok(())
}

fn log_prob(model: &Gpt2LMHeadModel, ids: &Tensor, changes: &Interventions) -> Result<f32> {
    let args = ForwardArgs { last_logits_only: true, ..hooked(changes) };
    let logits = model.forward(ids, args)?.logits;
    Ok(log_softmax(&logits, D::Minus1)?.i((0, 0, TARGET as usize))?.to_scalar()?)
}

/// More heads than run at once, and texts of one token and of many.
#[test]
fn effects_are_those_of_a_pass_a_head() -> Result {
    let model = random_model(5, 4, 600)?;
    for t in [1, 2, 400] {
        let ids = some_ids(t, 4)?;
        let plain = log_prob(&model, &ids, &Interventions::default())?;
        for ablation in [Ablation::Zero, Ablation::Mean] {
            let effects = ablation_effects(&model, &ids, &Metric::LogProb(TARGET), ablation, None)?;
            assert!((effects.plain - f64::from(plain)).abs() < 1e-5);
            for (layer, changes) in effects.change.to_vec2::<f64>()?.into_iter().enumerate() {
                for (head, change) in changes.into_iter().enumerate() {
                    let head = Head { layer, head };
                    let one = match ablation {
                        Ablation::Zero => Intervention::ZeroAblate(head),
                        Ablation::Mean => Intervention::MeanAblate(head),
                    };
                    let ablated = log_prob(&model, &ids, &Interventions::new([one], model.config())?)?;
                    let error = (change - f64::from(ablated - plain)).abs();
                    assert!(error < 2e-5, "T {t}, head {head}: {error:e}");
                }
            }
        }
    }
    let ids = some_ids(3, 4)?;
    let batch = Tensor::cat(&[some_ids(3, 4)?, some_ids(3, 5)?], 0)?;
    let err = ablation_effects(&model, &ids, &Metric::LogProb(37), Ablation::Zero, None)
        .expect_err("no such token")
        .to_string();
    assert!(err.contains("37"), "{err}");
    let err = direct_attribution(&model, &batch, &Metric::Logit(1), Centering::Raw, None)
        .expect_err("two texts")
        .to_string();
    assert!(err.contains("[2, 3]"), "{err}");
    Ok(())
}
