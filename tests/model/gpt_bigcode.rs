//! gpt_bigcode, compared with transformers (tests/data).

use crate::common::{Result, assert_close, data, reference, test_device};
use crate::gradients::{assert_gradients, trainable};
use crate::models::load;
use candle_core::{DType, Tensor};
use gpt2_loader::{Checkpoint, Source};
use gpt2_model::hooks::{Hooks, Point, on};
use gpt2_model::linear::BlockFormat;
use gpt2_model::training::TrainingBatch;
use gpt2_model::{Config, Encoder, ForwardArgs, Gpt2LMHeadModel, Implementation, KvCache, ModelOutput, init};
use std::collections::HashMap;

pub(crate) const TOLERANCE: f64 = 3e-5;
pub(crate) const BOTH: [Implementation; 2] = [Implementation::Eager, Implementation::Fused];

pub(crate) fn load_by(case: &str, implementation: Implementation) -> Result<Gpt2LMHeadModel> {
    let checkpoint = Checkpoint::open(&Source::directory(data(case)).open()?)?;
    Ok(checkpoint.with_implementation(implementation).load_model(DType::F32, &test_device())?)
}

/// Compares the model's output with every tensor of it that the reference holds.
pub(crate) fn assert_output(what: &str, output: &ModelOutput, expected: &HashMap<String, Tensor>) {
    for (kind, tensors, count) in [
        ("hidden_states", &output.hidden_states, 3),
        ("attentions", &output.attentions, 2),
        ("cross_attentions", &output.cross_attentions, output.cross_attentions.len()),
    ] {
        assert_eq!(tensors.len(), count, "{what}: {kind}");
        for (i, tensor) in tensors.iter().enumerate() {
            let name = format!("{kind}.{i}");
            assert_close(&format!("{what}, {name}"), tensor, &expected[&name], TOLERANCE);
        }
    }
}

#[test]
fn gpt_bigcode_equals_transformers_with_one_head_of_keys_and_with_many() -> Result {
    for case in ["bigcode", "bigcode_heads"] {
        let expected = reference(case)?;
        for implementation in BOTH {
            let what = format!("{case}, {implementation:?}");
            let model = load_by(case, implementation)?;
            let args =
                ForwardArgs { output_hidden_states: true, output_attentions: true, ..Default::default() };
            let output = model.forward(&expected["input_ids"], args)?;
            assert_close(&what, &output.logits, &expected["logits"], TOLERANCE);
            assert_output(&what, &output.transformer, &expected);
        }
    }
    Ok(())
}

#[test]
fn gpt_bigcode_gets_pytorchs_gradients() -> Result {
    for case in ["bigcode", "bigcode_heads"] {
        let expected = reference(case)?;
        let ids = &expected["input_ids"]; // (2, 9)
        let inputs = ids.narrow(1, 0, 8)?;
        let targets = ids.narrow(1, 1, 8)?.contiguous()?;
        for implementation in BOTH {
            let (variables, model) = trainable(case, implementation)?;
            let loss =
                model.loss(&TrainingBatch::new(inputs.clone(), targets.clone()), ForwardArgs::default())?;
            assert_close(case, &loss, &expected["loss"], 1e-5);
            assert_gradients(
                &format!("{case}, {implementation:?}"),
                &variables,
                &loss.backward()?,
                &expected,
            )?;
        }
    }
    Ok(())
}

/// A prompt, its chunks and single tokens over a cache, whole and for the last position alone.
#[test]
fn gpt_bigcode_over_a_cache_equals_one_pass() -> Result {
    for case in ["bigcode", "bigcode_heads"] {
        let expected = reference(case)?;
        let ids = &expected["input_ids"];
        let logits = &expected["logits"];
        for (implementation, last_logits_only) in BOTH.into_iter().flat_map(|i| [(i, false), (i, true)]) {
            let model = load_by(case, implementation)?;
            let mut cache = KvCache::new(model.config(), 2, 9, DType::F32, &test_device())?;
            let mut start = 0;
            for len in [4, 1, 3, 1] {
                let chunk = ids.narrow(1, start, len)?;
                let args = ForwardArgs { cache: Some(&mut cache), last_logits_only, ..Default::default() };
                let got = model.forward(&chunk, args)?.logits;
                let first = if last_logits_only { start + len - 1 } else { start };
                start += len;
                let expected = logits.narrow(1, first, start - first)?;
                assert_close(&format!("{case}, up to {start}"), &got, &expected, TOLERANCE);
            }
        }
    }
    Ok(())
}

#[test]
fn gpt_bigcode_in_halves_and_quantized_is_off_by_rounding_only() -> Result {
    for case in ["bigcode", "bigcode_heads"] {
        let expected = reference(case)?;
        for (dtype, tolerance) in [(DType::F16, 10. * 2f64.powi(-11)), (DType::BF16, 10. * 2f64.powi(-8))] {
            let output = load(case, dtype)?.forward(&expected["input_ids"], ForwardArgs::default())?;
            assert_close(&format!("{case} {dtype:?}"), &output.logits, &expected["logits"], tolerance);
        }
    }
    // Blocks of 32 need wider layers than the reference data have.
    let config =
        Config { n_embd: 64, n_head: 4, n_inner: None, ..load("bigcode", DType::F32)?.config().clone() };
    let ids = &reference("bigcode")?["input_ids"];
    let shapes = |model: &Gpt2LMHeadModel| {
        let list = model.named_parameters().into_iter();
        list.map(|(name, values)| (name, values.shape())).collect::<Vec<_>>()
    };
    let cross =
        Config { model_type: "gpt2".into(), multi_query: None, add_cross_attention: true, ..config.clone() };
    for config in [Config { multi_query: Some(false), ..config.clone() }, config, cross] {
        let plain = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &test_device()), &config)?;
        let hidden_states = Tensor::ones((2, 5, 64), DType::F32, &test_device())?;
        let run = |model: &Gpt2LMHeadModel| {
            let encoder = Encoder { hidden_states: &hidden_states, attention_mask: None };
            let encoder = config.add_cross_attention.then_some(encoder);
            model.forward(ids, ForwardArgs { encoder, ..Default::default() })
        };
        let expected = run(&plain)?.logits;
        let quantized = plain.clone().quantize(BlockFormat::Q8_0)?;
        assert_eq!(shapes(&quantized), shapes(&plain));
        quantized.check_layers()?;
        assert_close(&config.model_type, &run(&quantized)?.logits, &expected, 0.02);
    }
    Ok(())
}

/// Hooks on keys and values see one head of them, or as many as there are, and replace them.
#[test]
fn hooks_replace_the_keys_and_values_of_gpt_bigcode() -> Result {
    for (case, heads) in [("bigcode", 1), ("bigcode_heads", 3)] {
        let model = load(case, DType::F32)?;
        let expected = reference(case)?;
        let ids = &expected["input_ids"];
        let run = |hooks: &dyn Hooks| -> Result<Tensor> {
            Ok(model.forward(ids, ForwardArgs { hooks: Some(hooks), ..Default::default() })?.logits)
        };
        for (point, other) in [(Point::K(0), Point::V(0)), (Point::V(0), Point::K(0))] {
            let same = on([point, other], |_, x| {
                assert_eq!(x.dims(), [2, 9, heads, 4]);
                Ok(Some(x.copy()?))
            });
            assert_close("unchanged", &run(&same)?, &expected["logits"], TOLERANCE);
            let zeros = on([point], |_, x| Ok(Some(x.zeros_like()?)));
            let difference = (run(&zeros)? - &expected["logits"])?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(difference > 0.01, "{case}: {point} of zeros changes nothing");
        }
        // Without values attention adds its bias alone, whatever the keys are.
        let no_values = on([Point::V(0)], |_, x| Ok(Some(x.zeros_like()?)));
        let neither = on([Point::K(0), Point::V(0)], |_, x| Ok(Some(x.zeros_like()?)));
        assert_close("no values", &run(&no_values)?, &run(&neither)?, 1e-6);
    }
    Ok(())
}

#[test]
fn recomputed_gradients_of_gpt_bigcode_are_those_of_the_loss() -> Result {
    for case in ["bigcode", "bigcode_heads"] {
        let (expected, (variables, model)) = (reference(case)?, trainable(case, Implementation::Auto)?);
        let ids = &expected["input_ids"];
        let inputs = ids.narrow(1, 0, 8)?;
        let targets = ids.narrow(1, 1, 8)?.contiguous()?;
        let (_, gradients) = model.recomputed_gradients(&inputs, &targets, None)?;
        assert_gradients(case, &variables, &gradients, &expected)?;
    }
    let (expected, (_, cross)) = (reference("cross")?, trainable("cross", Implementation::Auto)?);
    let ids = &expected["input_ids"];
    let message = cross.recomputed_gradients(ids, ids, None).expect_err("no encoder").to_string();
    assert!(message.contains("Gpt2LMHeadModel::loss with an encoder"), "{message}");
    Ok(())
}
