//! Every stage, compared with the activations that transformers produced (tests/data, eager f32), and causality.

use crate::common::{Result, assert_close, reference, some_ids, test_device};
use crate::models::{load, random_model};
use candle_core::{DType, IndexOp, Module, Tensor};
use gpt2_model::{CausalLMOutput, CausalSelfAttention, Config, ForwardArgs, Gpt2LMHeadModel, Pass, init};
use std::collections::HashMap;

/// The required tolerance; the measured errors are 2e-7 to 2e-6.
const TOLERANCE: f64 = 3e-5;

fn everything(model: &Gpt2LMHeadModel, ids: &Tensor) -> Result<CausalLMOutput> {
    let args = ForwardArgs { output_hidden_states: true, output_attentions: true, ..Default::default() };
    Ok(model.forward(ids, args)?)
}

fn assert_all_close(case: &str, prefix: &str, output: &CausalLMOutput, expected: &HashMap<String, Tensor>) {
    assert_close(
        &format!("{case} {prefix}logits"),
        &output.logits,
        &expected[&format!("{prefix}logits")],
        TOLERANCE,
    );
    let mut compared = 0;
    for (kind, tensors) in
        [("hidden_states", &output.transformer.hidden_states), ("attentions", &output.transformer.attentions)]
    {
        for (i, got) in tensors.iter().enumerate() {
            let name = format!("{prefix}{kind}.{i}");
            if let Some(expected) = expected.get(&name) {
                assert_close(&format!("{case} {name}"), got, expected, TOLERANCE);
                compared += 1;
            }
        }
    }
    let held = expected
        .keys()
        .filter(|k| {
            k.starts_with(&format!("{prefix}hidden_states")) || k.starts_with(&format!("{prefix}attentions"))
        })
        .count();
    assert_eq!(compared, held, "{case}: every stage that the reference holds is compared");
}

#[test]
fn logits_hidden_states_and_attentions_equal_transformers() -> Result {
    let model = load("odd", DType::F32)?;
    let expected = reference("odd")?;
    for t in [1, 2, 33, 77] {
        let prefix = format!("T{t}.");
        let output = everything(&model, &expected[&format!("{prefix}input_ids")])?;
        assert_all_close("odd", &prefix, &output, &expected);
    }
    Ok(())
}

#[test]
fn every_config_flag_computes_what_transformers_computes() -> Result {
    for case in [
        "gelu",
        "gelu_pytorch_tanh",
        "relu",
        "silu",
        "no_scale",
        "inverse_layer",
        "reorder",
        "inner",
        "untied",
    ] {
        let model = load(case, DType::F32)?;
        let expected = reference(case)?;
        assert_all_close(case, "", &everything(&model, &expected["input_ids"])?, &expected);
    }
    Ok(())
}

#[test]
fn each_stage_of_a_block_equals_transformers() -> Result {
    let model = load("odd", DType::F32)?;
    let expected = reference("odd")?;
    let stage = |name: &str| &expected[&format!("T33.{name}")];
    let block = &model.transformer.h[0];
    let x = stage("hidden_states.0");

    let ln_1 = block.ln_1.forward(x)?;
    assert_close("ln_1", &ln_1, stage("h.0.ln_1"), TOLERANCE);
    assert_close("c_attn", &block.attn.c_attn.forward(&ln_1)?, stage("h.0.attn.c_attn"), TOLERANCE);
    let attn = block.attn.forward_with(&ln_1, Pass::default())?;
    assert_close("attn", &attn, stage("h.0.attn.c_proj"), TOLERANCE);
    let context = stage("h.0.attn.context");
    assert_close("c_proj", &block.attn.c_proj.forward(context)?, stage("h.0.attn.c_proj"), TOLERANCE);
    let ln_2 = block.ln_2.forward(&(x + &attn)?)?;
    assert_close("ln_2", &ln_2, stage("h.0.ln_2"), TOLERANCE);
    assert_close("c_fc", &block.mlp.c_fc.forward(&ln_2)?, stage("h.0.mlp.c_fc"), TOLERANCE);
    let act = stage("h.0.mlp.act");
    assert_close("mlp.c_proj", &block.mlp.c_proj.forward(act)?, stage("h.0.mlp.c_proj"), TOLERANCE);
    assert_close("mlp", &block.mlp.forward(&ln_2)?, stage("h.0.mlp.c_proj"), TOLERANCE);
    let args = Pass { output_attention_outputs: true, ..Default::default() };
    let output = block.forward_with(x, args)?;
    assert_close("block", &output.hidden_state, stage("h.0"), TOLERANCE);
    let attention_output = output.attention_output.ok_or("it was asked for")?;
    assert_close("attention_output", &attention_output, stage("h.0.attn.c_proj"), TOLERANCE);
    Ok(())
}

#[test]
fn f64_differs_from_f32_by_rounding_only() -> Result {
    let model = load("odd", DType::F64)?;
    let expected = reference("odd")?;
    let output = everything(&model, &expected["T77.input_ids"])?;
    assert_eq!(output.logits.dtype(), DType::F64);
    assert_close("logits", &output.logits, &expected["T77.logits"], 2e-6);
    Ok(())
}

#[test]
fn halves_are_off_by_their_own_rounding_only() -> Result {
    // Rounding each weight and activation to 11 or 8 bits, through 2 layers of 5 roundings each.
    for (dtype, tolerance) in [(DType::F16, 10. * 2f64.powi(-11)), (DType::BF16, 10. * 2f64.powi(-8))] {
        let model = load("odd", dtype)?;
        let expected = reference("odd")?;
        let output = everything(&model, &expected["T33.input_ids"])?;
        assert_eq!((output.logits.dtype(), output.transformer.attentions[0].dtype()), (dtype, DType::F32));
        assert_close(&format!("{dtype:?}"), &output.logits, &expected["T33.logits"], tolerance);
    }
    Ok(())
}

#[test]
fn the_last_logits_alone_are_the_last_of_all() -> Result {
    let model = load("odd", DType::F32)?;
    let expected = reference("odd")?;
    let args = ForwardArgs { last_logits_only: true, ..Default::default() };
    let logits = model.forward(&expected["T33.input_ids"], args)?.logits;
    assert_eq!(logits.dims(), [1, 1, 101]);
    assert_close("last", &logits, &expected["T33.logits"].i((.., 32..33))?, TOLERANCE);
    Ok(())
}

#[test]
fn padded_batches_equal_transformers_where_a_token_is_visible() -> Result {
    let model = load("padded", DType::F32)?;
    let expected = reference("padded")?;
    for side in ["left", "right"] {
        let part = |name: &str| &expected[&format!("{side}.{name}")];
        let args = ForwardArgs {
            attention_mask: Some(part("attention_mask")),
            position_ids: Some(part("position_ids")),
            ..Default::default()
        };
        let logits = model.forward(part("input_ids"), args)?.logits; // (B, T, V)
        let visible = part("attention_mask").unsqueeze(2)?.to_dtype(DType::F32)?; // (B, T, 1)
        let got = logits.broadcast_mul(&visible)?;
        let want = part("logits").broadcast_mul(&visible)?;
        assert_close(side, &got, &want, TOLERANCE);
    }
    Ok(())
}

/// Changing a token changes nothing before it, and something at it and after it.
#[test]
fn a_token_reaches_no_position_before_it() -> Result {
    let model = random_model(3, 5, 24)?;
    let t = 24;
    let ids = some_ids(t, 0)?;
    let run = |ids: &Tensor| -> Result<Vec<Vec<f32>>> {
        Ok(model.forward(ids, ForwardArgs::default())?.logits.squeeze(0)?.to_vec2()?)
    };
    let before = run(&ids)?;
    for j in [0, 1, 11, t - 1] {
        let mut changed = ids.squeeze(0)?.to_vec1::<u32>()?;
        changed[j] = (changed[j] + 1) % 37;
        let after = run(&model.ids(&changed)?)?;
        assert_eq!(before[..j], after[..j], "token {j} changed what lies before it");
        for i in j..t {
            assert_ne!(before[i], after[i], "token {j} does not reach position {i}");
        }
    }
    Ok(())
}

/// A block that is loaded by itself is checked against the config, as a whole model is.
#[test]
fn a_block_whose_heads_do_not_divide_its_width_is_refused() {
    let config = Config { n_embd: 6, n_head: 4, n_positions: 8, ..Config::gpt2() };
    let vb = init::seeded(1, DType::F32, &test_device());
    let error = CausalSelfAttention::load(vb, &config, 0).expect_err("6 / 4");
    assert!(error.to_string().contains("n_head"), "{error}");
}
