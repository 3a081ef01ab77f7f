//! A pass takes and refuses the right inputs, and its hooks learn about them.

use crate::common::{Result, assert_close, some_ids, test_device};
use crate::gradients::trainable;
use crate::hooks::hooked;
use crate::models::{load, random_model};
use candle_core::{DType, Tensor};
use gpt2_model::analysis::{Ablation, Metric, ablation_effects};
use gpt2_model::hooks::{Point, on};
use gpt2_model::mask::{left_padding, position_ids};
use gpt2_model::training::{Documents, TrainingBatch, cross_entropy};
use gpt2_model::{
    Config, Encoder, ForwardArgs, Gpt2LMHeadModel, Implementation, KvCache, LayerCache, Pass, Training, init,
};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Two rows of `t` tokens.
pub(super) fn batch(t: usize) -> Result<Tensor> {
    Ok(Tensor::cat(&[some_ids(t, 1)?, some_ids(t, 2)?], 0)?)
}

#[track_caller]
pub(super) fn assert_refused<T>(result: candle_core::Result<T>, part: &str) {
    let error = result.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

#[test]
fn hooks_learn_at_every_point_what_the_pass_holds() -> Result {
    let model = random_model(2, 4, 16)?;
    let ids = batch(8)?;
    let mask = left_padding(&[8, 6], 8, &test_device())?;
    let positions = position_ids(&mask)?;
    let seen = RefCell::new(vec![]);
    let hook = on(Point::of_model(2), |at, _| {
        seen.borrow_mut().push((at.point, at.past, at.cached, at.padding.map(|x| x.dims().to_vec())));
        Ok(None)
    });
    let mut cache = KvCache::new(model.config(), 2, 8, DType::F32, &test_device())?;
    for (cached, start, len, padded) in
        [(false, 0, 8, false), (false, 0, 8, true), (true, 0, 5, true), (true, 5, 3, true)]
    {
        let mask = mask.narrow(1, 0, start + len)?;
        let positions = positions.narrow(1, start, len)?;
        let args = ForwardArgs {
            cache: cached.then_some(&mut cache),
            attention_mask: padded.then_some(&mask),
            position_ids: padded.then_some(&positions),
            ..hooked(&hook)
        };
        model.forward(&ids.narrow(1, start, len)?, args)?;
        let mut points = BTreeSet::new();
        for (point, past, has_cache, padding) in seen.take() {
            let expected = (padded && point != Point::Logits).then(|| vec![2, start + len]);
            assert_eq!((past, has_cache, padding), (start, cached, expected), "{point}");
            points.insert(point);
        }
        assert_eq!(points, Point::of_model(2).collect());
    }
    Ok(())
}

#[test]
fn ids_that_are_none_or_too_many_are_refused() -> Result {
    let model = random_model(2, 4, 8)?;
    let run = |ids: &Tensor| model.forward(ids, ForwardArgs::default());
    for shape in [(1, 0), (0, 3), (0, 0)] {
        let none = some_ids(8, 1)?.narrow(0, 0, shape.0.min(1))?.narrow(1, 0, shape.1)?;
        assert_refused(run(&none), "a prompt needs at least one token");
    }
    run(&some_ids(8, 1)?)?;
    assert_refused(run(&some_ids(9, 1)?), "9 tokens are more than the model's n_positions = 8");
    assert_refused(run(&Tensor::new(&[[1f32, 2.]], &test_device())?), "token ids must be integers, got F32");
    assert_refused(
        run(&Tensor::new(&[[1i64, -1]], &test_device())?),
        "token id -1 is not in 0..37 (vocab_size)",
    );
    assert_refused(run(&Tensor::new(&[[37u32]], &test_device())?), "token id 37 is not in 0..37");
    run(&Tensor::new(&[[36i64, 0]], &test_device())?)?;
    // The way of the analyses and of recomputed gradients.
    let effects = |t: usize| -> Result<candle_core::Result<_>> {
        let ids = some_ids(t.max(1), 1)?.narrow(1, 0, t)?;
        Ok(ablation_effects(&model, &ids, &Metric::Logit(1), Ablation::Zero, None))
    };
    effects(8)??;
    assert_refused(effects(9)?, "9 tokens, expected 1 to the model's n_positions = 8");
    assert_refused(effects(0)?, "0 tokens, expected 1 to");
    Ok(())
}

#[test]
fn positions_are_of_each_row_or_of_all() -> Result {
    let model = random_model(2, 4, 16)?;
    let ids = batch(5)?;
    let run = |positions: &Tensor| {
        model.forward(&ids, ForwardArgs { position_ids: Some(positions), ..Default::default() })
    };
    let plain = model.forward(&ids, ForwardArgs::default())?.logits;
    let one = Tensor::arange(0u32, 5, &test_device())?.unsqueeze(0)?;
    let both = Tensor::cat(&[&one, &one], 0)?;
    assert_close("one row", &run(&one)?.logits, &plain, 1e-6);
    assert_close("two rows", &run(&both)?.logits, &plain, 1e-6);
    let three = Tensor::cat(&[&one, &one, &one], 0)?;
    for wrong in [&three, &both.narrow(1, 0, 4)?, &one.narrow(1, 0, 4)?] {
        assert_refused(run(wrong), "must be [2, 5] or [1, 5]");
    }
    assert_refused(run(&(one + 12.0)?), "position 16 is not in 0..16 (n_positions)");
    assert_refused(left_padding(&[2, 4], 3, &test_device()), "a row of 4 tokens does not fit 3 columns");
    Ok(())
}

#[test]
fn a_cache_of_another_batch_or_of_another_model_is_refused() -> Result {
    let model = random_model(2, 4, 8)?;
    let three = Config { n_layer: 3, ..model.config().clone() };
    for (config, rows, part) in [
        (model.config(), 1, "made for a batch of 1 and 2 layers, got a batch of 2 and 2 layers"),
        (&three, 2, "made for a batch of 2 and 3 layers, got a batch of 2 and 2 layers"),
    ] {
        let mut cache = KvCache::new(config, rows, 8, DType::F32, &test_device())?;
        let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
        assert_refused(model.forward(&batch(3)?, args), part);
    }
    let mut cache = KvCache::new(model.config(), 2, 7, DType::F32, &test_device())?;
    assert!(cache.is_empty() && cache.capacity() == 7);
    let args = ForwardArgs { cache: Some(&mut cache), ..Default::default() };
    model.forward(&batch(3)?, args)?;
    assert!(!cache.is_empty() && cache.current_seq_len() == 3);
    assert_refused(cache.with_rows(&[0, 2]), "KvCache: rows of the copy");
    assert_refused(cache.with_rows(&[0, 2]), "text 2 does not exist; there are 2");
    cache.reset();
    assert!(cache.is_empty());
    let mut layer = LayerCache::new(model.config(), 1, 4, DType::F32, &test_device())?;
    let keys = |heads: usize, t: usize| Tensor::ones((1, heads, t, 4), DType::F32, &test_device());
    assert_refused(layer.append(&keys(1, 2)?, &keys(1, 2)?), "one shape [1, 2, T, 4], got [1, 1, 2, 4]");
    assert_refused(layer.append(&keys(2, 2)?, &keys(2, 1)?), "one shape [1, 2, T, 4], got [1, 2, 2, 4]");
    let of_two_texts = Tensor::ones((2, 2, 3, 4), DType::F32, &test_device())?;
    assert_refused(layer.append(&of_two_texts, &of_two_texts), "[1, 2, T, 4], got [2, 2, 3, 4]");
    layer.append(&keys(2, 3)?, &keys(2, 3)?)?;
    assert_eq!((layer.len(), layer.current_seq_len(), layer.is_empty()), (3, 3, false));
    assert_refused(layer.append(&keys(2, 2)?, &keys(2, 2)?), "3 positions are held and 2 more do not fit");
    layer.append(&keys(2, 1)?, &keys(2, 1)?)?;
    Ok(())
}

#[test]
fn targets_that_do_not_fit_have_no_loss() -> Result {
    let (_variables, model) = trainable("gradients", Implementation::Auto)?;
    let ids = Tensor::from_iter((0..10u32).map(|i| i * 7 % 29), &test_device())?.reshape((2, 5))?;
    let short = ids.narrow(1, 0, 4)?;
    let batch = TrainingBatch::new(ids.clone(), short.clone());
    let part = "targets [2, 4] must be of the shape of input_ids [2, 5]";
    assert_refused(model.loss(&batch, ForwardArgs::default()), part);
    assert_refused(model.recomputed_gradients(&ids, &short, None), part);
    let logits = model.forward(&ids, ForwardArgs::default())?.logits;
    assert_refused(cross_entropy(&logits, &short), "need targets [2, 5], got [2, 4]");
    let documents = Documents { starts: ids.zeros_like()?, learned: ids.flatten_all()?.narrow(0, 0, 0)? };
    let batch = TrainingBatch { documents: Some(documents), ..TrainingBatch::new(ids.clone(), ids.clone()) };
    assert_refused(model.loss(&batch, ForwardArgs::default()), "nothing is learned");
    Ok(())
}

#[test]
fn what_covers_all_positions_is_refused_for_the_last_alone() -> Result {
    let model = random_model(2, 4, 8)?;
    let block = &model.transformer.h[0];
    let x = Tensor::ones((1, 3, 8), DType::F32, &test_device())?;
    let nothing = on([], |_, _| Ok(None));
    let last = || Pass { last_position_only: true, ..Default::default() };
    assert_eq!(block.forward_with(&x, last())?.hidden_state.dims(), [1, 1, 8]);
    let part = "last_position_only cannot be combined";
    assert_refused(block.forward_with(&x, Pass { output_attention_outputs: true, ..last() }), part);
    assert_refused(block.forward_with(&x, Pass { hooks: Some(&nothing), ..last() }), part);
    assert_refused(block.attn.forward_with(&x, Pass { hooks: Some(&nothing), ..last() }), part);
    assert_refused(block.forward_with(&x.narrow(1, 0, 0)?, Pass::default()), "x has no positions");

    let mut cross = load("cross", DType::F32)?;
    cross.transformer.h[0].ln_cross_attn = None;
    let x = Tensor::ones((2, 3, 12), DType::F32, &test_device())?;
    let encoder = Some(Encoder { hidden_states: &x, attention_mask: None });
    let halves = cross.transformer.h[0].forward_with(&x, Pass { encoder, ..Default::default() });
    assert_refused(halves, "belong together");
    cross.transformer.h[1].crossattention = None;
    assert_refused(cross.transformer.h[1].forward_with(&x, Pass::default()), "belong together");
    Ok(())
}

/// The weights of every query are drawn, so that the last one's are those of the whole pass.
#[test]
fn the_last_logits_of_a_training_pass_are_those_of_the_whole() -> Result {
    let config = Config { attn_pdrop: 0.5, resid_pdrop: 0.0, ..random_model(3, 5, 24)?.config().clone() };
    let model = Gpt2LMHeadModel::load(init::seeded(7, DType::F32, &test_device()), &config)?;
    let ids = batch(20)?;
    let training = Some(Training { seed: 1, step: 2 });
    let args = || ForwardArgs { training, ..Default::default() };
    let whole = model.forward(&ids, args())?.logits.narrow(1, 19, 1)?;
    let last = model.forward(&ids, ForwardArgs { last_logits_only: true, ..args() })?.logits;
    assert_close("last", &last, &whole, 1e-5);
    let plain = model.forward(&ids, ForwardArgs { last_logits_only: true, ..Default::default() })?.logits;
    assert!(crate::common::relative_error(&last, &plain)? > 1e-3, "nothing is dropped");
    Ok(())
}
