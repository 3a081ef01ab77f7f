//! GPT-2 with cross-attention over an encoder, compared with transformers (tests/data).

use crate::common::{Result, assert_close, reference, test_device};
use crate::gpt_bigcode::{BOTH, TOLERANCE, assert_output, load_by};
use crate::gradients::{assert_gradients, trainable};
use crate::models::load;
use candle_core::{DType, Tensor, Var};
use gpt2_model::attention::Chosen;
use gpt2_model::hooks::{Point, on};
use gpt2_model::training::TrainingBatch;
use gpt2_model::{
    Block, ChosenWeights, Config, Encoder, ForwardArgs, Gpt2LMHeadModel, Implementation, KvCache, LayerCache,
    Pass, Training, init,
};
use std::collections::HashMap;

fn encoder(expected: &HashMap<String, Tensor>) -> Encoder<'_> {
    Encoder {
        hidden_states: &expected["encoder_hidden_states"],
        attention_mask: Some(&expected["encoder_attention_mask"]),
    }
}

#[test]
fn cross_attention_equals_transformers_with_an_encoder_and_without() -> Result {
    let expected = reference("cross")?;
    for implementation in BOTH {
        let what = format!("{implementation:?}");
        let model = load_by("cross", implementation)?;
        let args = |encoder| ForwardArgs {
            encoder,
            output_hidden_states: true,
            output_attentions: true,
            ..Default::default()
        };
        let output = model.forward(&expected["input_ids"], args(Some(encoder(&expected))))?;
        assert_close(&what, &output.logits, &expected["logits"], TOLERANCE);
        assert_eq!(output.transformer.cross_attentions.len(), 2);
        assert_output(&what, &output.transformer, &expected);

        let alone = model.forward(&expected["input_ids"], args(None))?;
        assert_close(&what, &alone.logits, &expected["alone.logits"], TOLERANCE);
        assert!(alone.transformer.cross_attentions.is_empty());
        for (i, tensor) in alone.transformer.hidden_states.iter().enumerate() {
            assert_close(&what, tensor, &expected[&format!("alone.hidden_states.{i}")], TOLERANCE);
        }
    }
    Ok(())
}

#[test]
fn cross_attention_gets_pytorchs_gradients_and_so_does_its_encoder() -> Result {
    let expected = reference("cross")?;
    let ids = &expected["input_ids"];
    let inputs = ids.narrow(1, 0, 8)?;
    let targets = ids.narrow(1, 1, 8)?.contiguous()?;
    for implementation in BOTH {
        let (variables, model) = trainable("cross", implementation)?;
        let hidden_states = Var::from_tensor(&expected["encoder_hidden_states"])?;
        let encoder = Encoder { hidden_states: &hidden_states, ..encoder(&expected) };
        let args = ForwardArgs { encoder: Some(encoder), ..Default::default() };
        let loss = model.loss(&TrainingBatch::new(inputs.clone(), targets.clone()), args)?;
        assert_close("loss", &loss, &expected["loss"], 1e-5);
        let gradients = loss.backward()?;
        let what = format!("{implementation:?}");
        let of_encoder = gradients.get(&hidden_states).ok_or("no gradient reaches the encoder")?;
        assert_close(&what, of_encoder, &expected["grad.encoder_hidden_states"], 1e-4);
        let own = expected.iter().filter(|(name, _)| *name != "grad.encoder_hidden_states");
        let own = own.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        assert_gradients(&what, &variables, &gradients, &own)?;
    }
    Ok(())
}

/// Text in chunks and single tokens over a cache, which keeps the encoder's keys.
#[test]
fn cross_attention_over_a_cache_equals_one_pass() -> Result {
    let expected = reference("cross")?;
    let model = load("cross", DType::F32)?;
    let ids = &expected["input_ids"];
    let logits = &expected["logits"];
    let mut cache = KvCache::new(model.config(), 2, 9, DType::F32, &test_device())?;
    // A cleared cache takes another encoder.
    for hidden_states in
        [expected["encoder_hidden_states"].copy()?, expected["encoder_hidden_states"].copy()?]
    {
        let encoder = Encoder { hidden_states: &hidden_states, ..encoder(&expected) };
        let mut start = 0;
        for len in [4, 1, 3, 1] {
            let args = ForwardArgs {
                cache: Some(&mut cache),
                encoder: Some(encoder),
                last_logits_only: len == 3,
                ..Default::default()
            };
            let got = model.forward(&ids.narrow(1, start, len)?, args)?.logits;
            let first = if len == 3 { start + len - 1 } else { start };
            start += len;
            assert_close("a chunk", &got, &logits.narrow(1, first, start - first)?, TOLERANCE);
        }
        let other = expected["encoder_hidden_states"].copy()?;
        for (encoder, part) in [
            (Some(Encoder { hidden_states: &other, attention_mask: None }), "other encoder hidden states"),
            (None, "pass its hidden states with every token"),
        ] {
            cache.truncate(5);
            let args = ForwardArgs { cache: Some(&mut cache), encoder, ..Default::default() };
            let message = model.forward(&ids.narrow(1, 5, 1)?, args).expect_err(part).to_string();
            assert!(message.contains(part), "{message}");
        }
        cache.clear();
    }
    Ok(())
}

/// The refused pass leaves neither positions nor keys behind.
#[test]
fn a_block_alone_refuses_another_encoder_before_it_touches_the_cache() -> Result {
    let expected = reference("cross")?;
    let model = load("cross", DType::F32)?;
    let (block, x) = (&model.transformer.h[0], &expected["hidden_states.0"]); // (B, T, C)
    let mut cache = LayerCache::new(model.config(), 2, 9, DType::F32, &test_device())?;
    let other = expected["encoder_hidden_states"].copy()?;
    let mut run = |start: usize, len: usize, hidden_states: &Tensor| {
        let encoder = Some(Encoder { hidden_states, attention_mask: None });
        let pass = Pass { encoder, cache: Some(&mut cache), ..Default::default() };
        block.forward_with(&x.narrow(1, start, len)?.contiguous()?, pass)
    };
    run(0, 4, &expected["encoder_hidden_states"])?;
    assert!(run(4, 5, &other).is_err());
    let after = run(4, 5, &expected["encoder_hidden_states"])?.hidden_state;
    let encoder = Some(Encoder { hidden_states: &other, attention_mask: None });
    let whole = block.forward_with(x, Pass { encoder, ..Default::default() })?.hidden_state;
    assert_close("after a refusal", &after, &whole.narrow(1, 4, 5)?, TOLERANCE);
    Ok(())
}

/// An encoder that comes in mid-text, in a pass that fails in a later layer.
#[test]
fn a_failed_pass_leaves_no_encoder_behind() -> Result {
    let expected = reference("cross")?;
    let model = load("cross", DType::F32)?;
    let ids = &expected["input_ids"];
    let mut cache = KvCache::new(model.config(), 2, 9, DType::F32, &test_device())?;
    model.forward(&ids.narrow(1, 0, 4)?, ForwardArgs { cache: Some(&mut cache), ..Default::default() })?;
    let next = ids.narrow(1, 4, 1)?;
    let beyond = [ChosenWeights { layer: 1, of: Chosen { heads: Some(vec![7]), queries: None } }];
    let args = ForwardArgs {
        cache: Some(&mut cache),
        encoder: Some(encoder(&expected)),
        cross_weights: &beyond,
        ..Default::default()
    };
    assert!(model.forward(&next, args).is_err(), "head 7 of 3");
    let after = model.forward(&next, ForwardArgs { cache: Some(&mut cache), ..Default::default() })?.logits;
    let alone = model.forward(&ids.narrow(1, 0, 5)?, ForwardArgs::default())?.logits;
    assert_close("after a failure", &after, &alone.narrow(1, 4, 1)?, TOLERANCE);
    // A cache that held one in the text before.
    cache.clear();
    let whole =
        ForwardArgs { cache: Some(&mut cache), encoder: Some(encoder(&expected)), ..Default::default() };
    model.forward(ids, whole)?;
    cache.clear();
    let args = ForwardArgs {
        cache: Some(&mut cache),
        encoder: Some(encoder(&expected)),
        cross_weights: &beyond,
        ..Default::default()
    };
    assert!(model.forward(&next, args).is_err(), "head 7 of 3");
    let after = model.forward(&next, ForwardArgs { cache: Some(&mut cache), ..Default::default() })?.logits;
    let alone = model.forward(&next, ForwardArgs::default())?.logits;
    assert_close("after another failure", &after, &alone, TOLERANCE);
    Ok(())
}

#[test]
fn a_cache_in_halves_holds_the_encoder_in_halves_and_no_gradient() -> Result {
    let expected = reference("cross")?;
    let (_variables, model) = trainable("cross", Implementation::Auto)?;
    for (dtype, tolerance) in [(DType::F16, 10. * 2f64.powi(-11)), (DType::BF16, 10. * 2f64.powi(-8))] {
        let mut cache = KvCache::new(model.config(), 2, 9, dtype, &test_device())?;
        let args =
            ForwardArgs { cache: Some(&mut cache), encoder: Some(encoder(&expected)), ..Default::default() };
        let logits = model.forward(&expected["input_ids"], args)?.logits;
        assert_close(&format!("{dtype:?}"), &logits, &expected["logits"], tolerance);
        let gradients = logits.sum_all()?.backward()?;
        let c_attn = &model.transformer.h[0].crossattention.as_ref().ok_or("there")?.c_attn;
        assert!(gradients.get(&c_attn.weight()?).is_none(), "a cache is for inference");
    }
    Ok(())
}

#[test]
fn chosen_weights_of_cross_attention_are_those_of_all() -> Result {
    let expected = reference("cross")?;
    let model = load("cross", DType::F32)?;
    let of = Chosen { heads: Some(vec![2, 0]), queries: Some(vec![8, 3]) };
    let chosen = [ChosenWeights { layer: 1, of: of.clone() }, ChosenWeights { layer: 0, of }];
    let args = ForwardArgs {
        encoder: Some(encoder(&expected)),
        cross_weights: &chosen,
        last_logits_only: true,
        ..Default::default()
    };
    let output = model.forward(&expected["input_ids"], args)?;
    assert_close("last", &output.logits, &expected["logits"].narrow(1, 8, 1)?, TOLERANCE);
    assert!(output.transformer.cross_attentions.is_empty() && output.transformer.weights.is_empty());
    for (got, layer) in output.transformer.cross_weights.iter().zip([1, 0]) {
        let heads = Tensor::new(&[2u32, 0], &test_device())?;
        let queries = Tensor::new(&[8u32, 3], &test_device())?;
        let all = &expected[&format!("cross_attentions.{layer}")]; // (B, H, T, S)
        assert_close("weights", got, &all.index_select(&heads, 1)?.index_select(&queries, 2)?, TOLERANCE);
    }
    Ok(())
}

#[test]
fn dropout_of_cross_attention_is_its_own_and_the_same_each_time() -> Result {
    let expected = reference("cross")?;
    let model = load("cross", DType::F32)?;
    let mut config = Config { resid_pdrop: 0., attn_pdrop: 0.5, ..model.config().clone() };
    let run = |config: &Config, step: u64| -> Result<Tensor> {
        let model = Gpt2LMHeadModel::load(init::seeded(5, DType::F32, &test_device()), config)?;
        let training = Some(Training { seed: 1, step });
        let encoder = Some(encoder(&expected));
        let args = ForwardArgs { training, encoder, output_attentions: true, ..Default::default() };
        let output = model.forward(&expected["input_ids"], args)?.transformer;
        let own = &output.attentions[0];
        let cross = &output.cross_attentions[0];
        let dropped = |x: &Tensor| -> Result<Vec<bool>> {
            Ok(x.narrow(3, 0, 3)?.flatten_all()?.to_vec1::<f32>()?.into_iter().map(|x| x == 0.).collect())
        };
        assert!(dropped(cross)?.contains(&true), "the weights of cross-attention are not dropped");
        let last = |x: &Tensor| x.narrow(2, 8, 1)?.narrow(0, 0, 1)?.contiguous();
        assert_ne!(dropped(&last(own)?)?, dropped(&last(cross)?)?, "one mask for both attentions");
        Ok(output.last_hidden_state)
    };
    let bits = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    let a = run(&config, 1)?;
    assert_eq!(bits(&a)?, bits(&run(&config, 1)?)?);
    assert_ne!(bits(&a)?, bits(&run(&config, 2)?)?);
    config.attn_pdrop = 0.4;
    assert_ne!(bits(&a)?, bits(&run(&config, 1)?)?);
    Ok(())
}

/// Half of what cross-attention adds is dropped, and the rest doubled: its own half, not that of self-attention.
#[test]
fn dropout_falls_on_what_cross_attention_adds() -> Result {
    let expected = reference("cross")?;
    let config = Config { resid_pdrop: 0.5, attn_pdrop: 0., ..load("cross", DType::F32)?.config().clone() };
    let block = Block::load(init::seeded(5, DType::F32, &test_device()), &config, 0)?;
    let encoder = Encoder { attention_mask: None, ..encoder(&expected) };
    let x = &expected["hidden_states.0"];
    let added = |pass: Pass, hooks_at: Point| -> Result<Tensor> {
        let seen = std::cell::RefCell::new(None);
        let keep = on([hooks_at], |_, x| {
            *seen.borrow_mut() = Some(x.copy()?);
            Ok(None)
        });
        block.forward_with(x, Pass { hooks: Some(&keep), ..pass })?;
        drop(keep);
        seen.into_inner().ok_or_else(|| "the hook was not called".into())
    };
    let training = Some(Training { seed: 1, step: 1 });
    let with = added(Pass { training, encoder: Some(encoder), ..Default::default() }, Point::ResidMid(0))?;
    let without = added(Pass { training, ..Default::default() }, Point::ResidMid(0))?;
    let own = added(Pass { training, ..Default::default() }, Point::AttnOut(0))?;
    let zeros = |x: &Tensor| -> Result<Vec<bool>> {
        Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(|x| x.abs() < 1e-6).collect())
    };
    let cross = zeros(&(with - without)?)?;
    let own = zeros(&own)?;
    let share = |zeros: &[bool]| zeros.iter().filter(|x| **x).count() as f64 / zeros.len() as f64;
    assert!((0.35..0.65).contains(&share(&cross)), "{} of the numbers are dropped", share(&cross));
    assert_ne!(cross, own);
    Ok(())
}

#[test]
fn what_does_not_fit_cross_attention_is_refused_with_the_reason() -> Result {
    let (expected, cross, plain) =
        (reference("cross")?, load("cross", DType::F32)?, load("bigcode", DType::F32)?);
    let ids = &expected["input_ids"];
    let hidden_states = &expected["encoder_hidden_states"]; // (2, 5, 12)
    let refused = |model: &Gpt2LMHeadModel, hidden_states: &Tensor, mask: Option<&Tensor>, part: &str| {
        let encoder = Some(Encoder { hidden_states, attention_mask: mask });
        let args = ForwardArgs { encoder, ..Default::default() };
        let message = model.forward(ids, args).expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
    };
    refused(&plain, hidden_states, None, "no cross-attention");
    refused(&cross, &hidden_states.narrow(2, 0, 11)?, None, "F32 [2, S, 12], got F32 [2, 5, 11]");
    refused(&cross, &hidden_states.narrow(0, 0, 1)?, None, "got F32 [1, 5, 12]");
    refused(&cross, &hidden_states.to_dtype(DType::F64)?, None, "got F64 [2, 5, 12]");
    refused(
        &cross,
        hidden_states,
        Some(&ids.narrow(1, 0, 4)?),
        "[2, 5] (1 = visible) over the encoder's positions",
    );
    refused(&cross, hidden_states, Some(&hidden_states.narrow(2, 0, 1)?.squeeze(2)?), "must be integers");

    let all = [ChosenWeights::default()];
    let args = ForwardArgs { cross_weights: &all, ..Default::default() };
    let message = cross.forward(ids, args).expect_err("no encoder").to_string();
    assert!(message.contains("need an encoder's hidden states"), "{message}");
    let beyond = [ChosenWeights { layer: 2, of: Chosen::default() }];
    let args =
        ForwardArgs { cross_weights: &beyond, encoder: Some(encoder(&expected)), ..Default::default() };
    let message = cross.forward(ids, args).expect_err("layer 2").to_string();
    assert!(message.contains("layer 2") && message.contains("layers 0 to 1"), "{message}");
    let block: &Block = &cross.transformer.h[0];
    let pass = Pass {
        encoder: Some(encoder(&expected)),
        cross_weights: &[Chosen::default()],
        last_position_only: true,
        ..Default::default()
    };
    let message = block.forward_with(hidden_states, pass).expect_err("the last position").to_string();
    assert!(message.contains("weights of cross-attention"), "{message}");
    Ok(())
}

/// A row whose encoder is all padding gets nothing from it but the bias of `c_proj`, never NaN.
#[test]
fn an_encoder_of_padding_alone_adds_a_bias_and_no_nan() -> Result {
    let expected = reference("cross")?;
    for implementation in BOTH {
        let model = load_by("cross", implementation)?;
        let run = |hidden_states: &Tensor| {
            let mask = Tensor::new(&[[1u32, 1, 1, 1, 1], [0, 0, 0, 0, 0]], &test_device())?;
            let encoder = Some(Encoder { hidden_states, attention_mask: Some(&mask) });
            model.forward(&expected["input_ids"], ForwardArgs { encoder, ..Default::default() })
        };
        let hidden_states = &expected["encoder_hidden_states"];
        let a = run(hidden_states)?.logits;
        let b = run(&(hidden_states * 3.)?)?.logits;
        let row = |x: &Tensor, i: usize| x.get(i)?.flatten_all()?.to_vec1::<f32>();
        assert!(row(&a, 1)?.iter().all(|x| x.is_finite()));
        assert_eq!(row(&a, 1)?, row(&b, 1)?);
        assert_ne!(row(&a, 0)?, row(&b, 0)?);
    }
    Ok(())
}

#[test]
fn keys_of_another_number_of_heads_than_values_are_refused_by_a_cache() -> Result {
    let config = load("bigcode", DType::F32)?.config().clone();
    for config in [config.clone(), Config { multi_query: Some(false), ..config }] {
        let heads = config.heads().key_heads;
        let mut cache = LayerCache::new(&config, 1, 4, DType::F32, &test_device())?;
        let part = |heads: usize| Tensor::ones((1, heads, 2, 4), DType::F32, &test_device());
        let message = cache.append(&part(2 * heads - 1)?, &part(1)?);
        if heads > 1 {
            let message = message.expect_err("5 and 1 also make 6").to_string();
            assert!(
                message.contains("one shape [1, 3, T, 4]") && message.contains("[1, 5, 2, 4]"),
                "{message}"
            );
            assert!(cache.is_empty());
        }
        cache.reset();
        let (k, _) = cache.append(&part(heads)?, &part(heads)?)?;
        assert_eq!(k.dims(), [1, heads, 2, 4]);
    }
    Ok(())
}
