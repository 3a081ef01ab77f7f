//! The effect of heads on a prediction, compared with transformers, and with one pass per head.

use super::hooked;
use super::interventions::expected;
use crate::common::{Result, max_abs, some_ids};
use crate::models::{load, random_model};
use candle_core::{D, DType, IndexOp, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_model::analysis::{Ablation, Centering, Metric, ablation_effects, direct_attribution};
use gpt2_model::hooks::{Head, Intervention, Interventions};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};

/// The token that the reference asks about.
const TARGET: u32 = 17;

#[test]
fn effects_and_attribution_are_those_of_transformers() -> Result {
    let (model, expected) = (load("odd", DType::F32)?, expected()?);
    let ids = expected["input_ids"].narrow(0, 0, 1)?;
    for (name, ablation) in [("zero_effects", Ablation::Zero), ("mean_effects", Ablation::Mean)] {
        let effects = ablation_effects(&model, &ids, Metric::LogProb(TARGET), ablation, None)?;
        let error = max_abs(&(&effects.change.to_dtype(DType::F32)? - &expected[name])?)?;
        assert!(error < 5e-5, "{name}: {error:e}");
        assert!(max_abs(&expected[name])? > 0.1);
    }
    let direct = direct_attribution(&model, &ids, Metric::Logit(TARGET), Centering::Raw, None)?;
    let error = max_abs(&(direct.heads.to_dtype(DType::F32)? - &expected["direct_logit_attribution"])?)?;
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
            let effects = ablation_effects(&model, &ids, Metric::LogProb(TARGET), ablation, None)?;
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
    let (ids, batch) = (some_ids(3, 4)?, Tensor::cat(&[some_ids(3, 4)?, some_ids(3, 5)?], 0)?);
    let err = ablation_effects(&model, &ids, Metric::LogProb(37), Ablation::Zero, None)
        .expect_err("no such token")
        .to_string();
    assert!(err.contains("37"), "{err}");
    let err = direct_attribution(&model, &batch, Metric::Logit(1), Centering::Raw, None)
        .expect_err("two texts")
        .to_string();
    assert!(err.contains("[2, 3]"), "{err}");
    Ok(())
}
