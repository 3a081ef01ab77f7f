//! Measures how surprising texts are; analyses refuse wrong inputs.

use crate::common::{Result, some_ids, test_device};
use crate::hooks::hooked;
use crate::inputs::assert_refused;
use crate::models::random_model;
use candle_core::{D, DType, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_model::analysis::{
    Ablation, Centering, Contrast, FunctionMetric, Metric, Parts, PredictedEnd, RepeatedTokens,
    ablation_effects, activation_patching, attribution_patching, direct_attribution, head_scores,
    likelihoods, surprises,
};
use gpt2_model::hooks::{Head, Intervention, Interventions, Point, on};
use gpt2_model::training::TrainingBatch;
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
use std::cell::RefCell;
use std::sync::Arc;

/// Texts of different lengths, with more tokens than logits are computed for at a time.
#[test]
fn texts_that_run_together_are_as_surprising_as_each_alone() -> Result {
    let model = random_model(2, 4, 200)?;
    let texts: Vec<Vec<u32>> = [150, 1, 200, 2]
        .iter()
        .map(|&t| Ok(some_ids(t, t)?.flatten_all()?.to_vec1()?))
        .collect::<Result<_>>()?;
    let slices: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let changes = Interventions::new([Intervention::ZeroAblate(Head { layer: 0, head: 1 })], model.config())?;
    let none = Interventions::default();
    for (hooks, with_summaries) in [(&none, false), (&changes, true)] {
        let found = surprises(&model, &slices, with_summaries, Some(hooks))?;
        assert_eq!(found.summaries.len(), if with_summaries { 2 } else { 0 });
        for (ids, nats) in texts.iter().zip(&found.nats) {
            let input = model.ids(ids)?;
            let logits = model.forward(&input, hooked(hooks))?.logits.squeeze(0)?;
            let logs = log_softmax(&logits, D::Minus1)?.to_vec2::<f32>()?;
            assert_eq!(nats.len(), ids.len() - 1);
            for (i, nats) in nats.iter().enumerate() {
                let expected = -f64::from(logs[i][ids[i + 1] as usize]);
                assert!((nats - expected).abs() < 1e-4, "token {i} of {}: {nats}, not {expected}", ids.len());
            }
        }
    }
    let alone = surprises(&model, &[&[5]], false, None)?;
    assert!(alone.nats.len() == 1 && alone.nats[0].is_empty());
    let lists: [&[&[u32]]; 3] = [&[], &[&[]], &[&[1, 2], &[]]];
    for texts in lists {
        assert_refused(surprises(&model, texts, false, None), "texts of at least one token each");
    }
    Ok(())
}

/// A hook at the logits changes them, whichever function asks for them, and sees those of every position.
#[test]
fn a_hook_at_the_logits_acts_on_surprises_likelihoods_and_losses() -> Result {
    let model = random_model(2, 4, 12)?;
    let lift = Tensor::arange(0f32, 37.0, model.device())?.sin()?; // (V)
    let seen = RefCell::new(vec![]);
    let hook = on([Point::Logits], |_, logits| {
        seen.borrow_mut().push(logits.dims().to_vec());
        Ok(Some(logits.broadcast_add(&lift)?))
    });
    let texts: [&[u32]; 2] = [&[1, 2, 3, 4, 5, 6], &[7, 8, 9]];
    let ends = texts.map(|ids| PredictedEnd { ids, predicted: 2 });
    let found = surprises(&model, &texts, false, Some(&hook))?.nats;
    let likely = likelihoods(&model, &ends, Some(&hook))?;
    let plain = surprises(&model, &texts, false, None)?.nats;
    for (row, ids) in texts.iter().enumerate() {
        let logits = model.forward(&model.ids(ids)?, ForwardArgs::default())?.logits.squeeze(0)?;
        let logs = log_softmax(&logits.broadcast_add(&lift)?, D::Minus1)?.to_vec2::<f32>()?;
        let expected: Vec<f64> =
            ids[1..].iter().zip(&logs).map(|(&id, logs)| -f64::from(logs[id as usize])).collect();
        // f32 sums in another order.
        for (a, b) in found[row].iter().zip(&expected) {
            assert!((a - b).abs() < 1e-4, "{a}, not {b}");
        }
        let sum: f64 = expected[expected.len() - 2..].iter().sum();
        assert!((likely[row].log_prob + sum).abs() < 1e-4, "{}, not {}", likely[row].log_prob, -sum);
        assert!((found[row][0] - plain[row][0]).abs() > 1e-3, "the hook changes nothing");
    }
    let batch = TrainingBatch::new(model.ids(&texts[0][..5])?, model.ids(&texts[0][1..])?);
    let args = ForwardArgs { hooks: Some(&hook), ..ForwardArgs::default() };
    let loss = f64::from(model.loss(&batch, args)?.to_scalar::<f32>()?);
    let mean = found[0].iter().sum::<f64>() / 5.0;
    assert!((loss - mean).abs() < 1e-4, "{loss}, not {mean}");
    // The longest text, without its last token, the batch.
    assert_eq!(*seen.borrow(), [[2, 6, 37], [2, 5, 37], [1, 5, 37]]);
    Ok(())
}

#[test]
fn texts_and_tokens_that_do_not_fit_an_analysis_are_refused() -> Result {
    let model = random_model(2, 4, 8)?;
    let one = some_ids(4, 1)?;
    let other = some_ids(4, 2)?;
    let two = Tensor::cat(&[&one, &other], 0)?;
    let none = one.narrow(1, 0, 0)?;
    let metric = &Metric::Logit(1);
    assert_refused(ablation_effects(&model, &two, metric, Ablation::Zero, None), "[2, 4]: expected one text");
    for (clean, corrupt, part) in [
        (&two, &two, "[2, 4] and the corrupted one [2, 4]"),
        (&one, &two, "[1, 4] and the corrupted one [2, 4]"),
        (&none, &none, "at least one token"),
    ] {
        let contrast = Contrast { clean, corrupt, metric, hooks: None };
        assert_refused(attribution_patching(&model, &contrast), part);
        assert_refused(activation_patching(&model, &contrast, &[Parts::Mlps], &mut |_, _| Ok(())), part);
    }
    // One number of all copies together would be taken for that of a copy that runs alone.
    let together = FunctionMetric::of_all(|logits: &Tensor| Ok((0.0, logits.zeros_like()?)));
    let together = &Metric::OfText(Arc::new(together));
    let contrast = Contrast { clean: &one, corrupt: &other, metric: together, hooks: None };
    let part = "measures all texts together";
    for parts in [Parts::Mlps, Parts::Heads] {
        assert_refused(activation_patching(&model, &contrast, &[parts], &mut |_, _| Ok(())), part);
    }
    assert_refused(ablation_effects(&model, &one, together, Ablation::Zero, None), part);
    let direct = |ids: &Tensor, metric| direct_attribution(&model, ids, &metric, Centering::Centered, None);
    assert_refused(direct(&none, metric.clone()), "at least one token");
    assert_refused(direct(&one, Metric::Logit(37)), "target 37 is not in 0..37");
    let difference = |answer, against| Metric::difference(answer, against);
    assert_refused(direct(&one, difference(37, 1)), "target 37 is not in 0..37");
    assert_refused(direct(&one, difference(1, 37)), "target 37 is not in 0..37");
    direct(&one, Metric::Logit(36))?;

    // Texts of exactly as many tokens as the model reads.
    let scores = |bos| head_scores(&model.transformer, &RepeatedTokens::random(bos, (4, 2), 1, 37, 5), None);
    assert!(scores(None).is_ok());
    assert_refused(scores(Some(1)), "1 rows of 9 tokens, 4 of them repeated");
    Ok(())
}

/// The mean of an unembedding with more rows than are added up at a time.
#[test]
fn shares_of_a_large_vocabulary_sum_to_the_centered_logit() -> Result {
    let config = Config {
        vocab_size: 5000,
        n_positions: 8,
        n_embd: 8,
        n_layer: 1,
        n_head: 2,
        initializer_range: 0.3,
        ..Config::gpt2()
    };
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F64, &test_device()), &config)?;
    let ids = some_ids(5, 1)?;
    let found = direct_attribution(&model, &ids, &Metric::Logit(4999), Centering::Centered, None)?;
    let logits = model.forward(&ids, ForwardArgs::default())?.logits.get(0)?.get(4)?.to_vec1::<f64>()?;
    let expected = logits[4999] - logits.iter().sum::<f64>() / 5000.0;
    assert!((found.total - expected).abs() < 1e-12 && (found.sum()? - expected).abs() < 1e-10, "{found:?}");
    assert!(expected.abs() > 0.01, "{expected}");
    Ok(())
}
