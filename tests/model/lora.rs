//! Adapters: the logits and gradients that PEFT computes (tests/data/lora), on every kind of weight, merged or not.

use crate::common::{Result, assert_close, data, reference};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use gpt2_loader::{AdapterCheckpoint, AdapterFiles, Checkpoint, Source};
use gpt2_model::linear::BlockFormat;
use gpt2_model::lora::{Adapter, LoraOptions, Update};
use gpt2_model::training::{Training, TrainingBatch};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel, Implementation, KvCache};
use std::collections::HashMap;

const TOLERANCE: f64 = 3e-5;
const CASES: [&str; 11] = [
    "default",
    "every_layer",
    "rslora",
    "regex",
    "one_block",
    "blocks_by_pattern",
    "ranks",
    "excluded",
    "whole_modules",
    "whole_embedding",
    "gaussian",
];

fn expected() -> Result<HashMap<String, Tensor>> {
    reference("lora")
}

fn base(case: &str, dtype: DType) -> Result<Gpt2LMHeadModel> {
    let checkpoint = Checkpoint::open(&Source::directory(data("lora").join(case)).open()?)?;
    Ok(checkpoint.load_model(dtype, &Device::Cpu)?)
}

fn adapter(case: &str, model: &Gpt2LMHeadModel) -> Result<Adapter> {
    let files = AdapterFiles::directory(&data("lora").join(case))?;
    Ok(AdapterCheckpoint::open(&files)?.load(model.config())?)
}

fn logits(model: &Gpt2LMHeadModel, ids: &Tensor) -> Result<Tensor> {
    Ok(model.forward(ids, ForwardArgs::default())?.logits)
}

/// The same adapter in variables.
fn trainable(adapter: &Adapter) -> Result<Adapter> {
    let update = |update: &Update| {
        let [a, b] = [update.a(), update.b()].map(Var::from_tensor);
        Update::new(a?.as_tensor().clone(), b?.as_tensor().clone(), update.scaling(), update.dropout())
    };
    let updates = adapter.updates.iter().map(|(name, held)| Ok((name.clone(), update(held)?)));
    Ok(Adapter { updates: updates.collect::<Result<_>>()?, ..Adapter::default() })
}

fn max_diff(a: &Tensor, b: &Tensor) -> Result<f32> {
    Ok((a - b)?.abs()?.max_all()?.to_scalar()?)
}

#[test]
fn pefts_adapters_give_pefts_logits_merged_or_not() -> Result {
    let expected = expected()?;
    let ids = &expected["input_ids"];
    let model = base("base", DType::F32)?;
    assert_close("base", &logits(&model, ids)?, &expected["base.logits"], TOLERANCE);
    for case in CASES {
        let adapter = adapter(case, &model)?;
        let adapted = model.clone().with_adapter("default", &adapter, 1.0)?;
        let wanted = &expected[&format!("{case}.logits")];
        assert!(max_diff(wanted, &expected["base.logits"])? > 0.01, "{case} changes nothing");
        assert_close(case, &logits(&adapted, ids)?, wanted, TOLERANCE);
        let merged = adapted.clone().merged()?;
        // These updates are larger than the weights that they change: 1.3e-5 for one of them with AVX2,
        // measured. Of the size that training gives, the difference is 2.2e-6 (scripts/compare_with_peft.py).
        assert_close(case, &logits(&merged, ids)?, &logits(&adapted, ids)?, 2e-5);
        merged.check_layers()?;
        if adapter.replaced.is_empty() {
            assert!(adapted.check_layers().is_err(), "a checkpoint would lose the adapter");
            let off = logits(&adapted.without_adapters(), ids)?;
            assert_eq!(off.to_vec3::<f32>()?, logits(&model, ids)?.to_vec3::<f32>()?, "{case}");
            let taken_out = merged.with_adapter("default", &adapter, -1.0)?.merged()?;
            assert_close(case, &logits(&taken_out, ids)?, &expected["base.logits"], TOLERANCE);
        }
    }
    Ok(())
}

#[test]
fn several_adapters_at_once_and_one_of_gpt_bigcode_equal_pefts() -> Result {
    let expected = expected()?;
    let ids = &expected["input_ids"];
    let model = base("base", DType::F32)?;
    let (first, second) = (adapter("every_layer", &model)?, adapter("rslora", &model)?);
    let both = model.with_adapter("first", &first, 1.0)?.with_adapter("second", &second, 0.5)?;
    assert_close("two", &logits(&both, ids)?, &expected["two.logits"], TOLERANCE);
    assert_close("two, merged", &logits(&both.clone().merged()?, ids)?, &expected["two.logits"], TOLERANCE);
    assert!(both.with_adapter("first", &first, 1.0).is_err(), "the name is taken");

    let model = base("bigcode_base", DType::F32)?;
    let adapter = adapter("bigcode", &model)?;
    let adapted = model.with_adapter("default", &adapter, 1.0)?;
    assert_close("bigcode", &logits(&adapted, ids)?, &expected["bigcode.logits"], TOLERANCE);
    let merged = adapted.merged()?;
    merged.check_layers()?;
    assert_close("bigcode, merged", &logits(&merged, ids)?, &expected["bigcode.logits"], TOLERANCE);
    Ok(())
}

/// Prompts in chunks over a cache, and the last position alone, which computes queries and keys apart.
#[test]
fn an_adapted_model_over_a_cache_equals_one_pass() -> Result {
    let expected = expected()?;
    let ids = &expected["input_ids"];
    let model = base("base", DType::F32)?;
    let adapted = model.clone().with_adapter("default", &adapter("every_layer", &model)?, 1.0)?;
    let whole = &expected["every_layer.logits"];
    let mut cache = KvCache::new(adapted.config(), 2, 9, DType::F32, &Device::Cpu)?;
    let mut start = 0;
    for len in [4, 1, 4] {
        let args = ForwardArgs { cache: Some(&mut cache), last_logits_only: true, ..Default::default() };
        let got = adapted.forward(&ids.narrow(1, start, len)?, args)?.logits;
        start += len;
        assert_close("a chunk", &got, &whole.narrow(1, start - 1, 1)?, TOLERANCE);
    }
    Ok(())
}

#[test]
fn adapters_on_halves_and_quantized_weights_are_off_by_rounding_only() -> Result {
    let expected = expected()?;
    let ids = &expected["input_ids"];
    for (dtype, tolerance) in [(DType::F16, 10. * 2f64.powi(-11)), (DType::BF16, 10. * 2f64.powi(-8))] {
        let model = base("base", dtype)?;
        let adapted = model.clone().with_adapter("default", &adapter("every_layer", &model)?, 1.0)?;
        assert_close(
            &format!("{dtype:?}"),
            &logits(&adapted, ids)?,
            &expected["every_layer.logits"],
            tolerance,
        );
        // The sum of weight and update is rounded once more: 10.4 roundings instead of at most 10 in f16, measured.
        let merged = logits(&adapted.merged()?, ids)?;
        assert_close(
            &format!("{dtype:?}, merged"),
            &merged,
            &expected["every_layer.logits"],
            1.5 * tolerance,
        );
    }
    // Blocks of 32 need wider layers than the reference data have.
    let demo = Checkpoint::open(&Source::directory(data("../../models/tiny-shakespeare")).open()?)?;
    let plain = demo.load_model(DType::F32, &Device::Cpu)?;
    let quantized = demo.load_quantized(BlockFormat::Q8_0)?;
    let options = LoraOptions { target_modules: vec!["c_attn".into(), "c_fc".into()], ..LoraOptions::new(4) };
    let adapter = Adapter::new(plain.config(), &options, 1, &Device::Cpu)?;
    for update in adapter.updates.values() {
        let numbers = (0..update.b().elem_count()).map(|i| (i * 7 % 11) as f32 * 0.01 - 0.05);
        let b = Tensor::from_iter(numbers, &Device::Cpu)?.reshape(update.b().shape())?;
        Var::from_tensor(update.b())?.set(&b)?;
    }
    let adapted = logits(&plain.clone().with_adapter("a", &adapter, 1.0)?, ids)?;
    let on_quantized = quantized.with_adapter("a", &adapter, 1.0)?;
    assert!(max_diff(&adapted, &logits(&plain, ids)?)? > 1.0, "the adapter changes nothing");
    // 8 bits for the weights and activations of each layer cost 0.03 of the demo model's logits, measured.
    assert_close("q8_0", &logits(&on_quantized, ids)?, &adapted, 0.05);
    let error = on_quantized.merged().expect_err("quantized").to_string();
    assert!(error.contains("h.0.attn.c_attn") && error.contains("quantized"), "{error}");
    Ok(())
}

fn assert_gradients(
    what: &str,
    adapter: &Adapter,
    gradients: &GradStore,
    expected: &HashMap<String, Tensor>,
) -> Result {
    assert_eq!(adapter.updates.len(), 8);
    for (layer, update) in &adapter.updates {
        for (factor, tensor) in [("lora_A", update.a()), ("lora_B", update.b())] {
            let name = format!("grad.{layer}.{factor}.weight");
            let gradient = gradients.get(tensor).ok_or_else(|| format!("{what}: no {name}"))?;
            assert_close(&format!("{what}, {name}"), gradient, &expected[&name], 1e-4);
        }
    }
    Ok(())
}

#[test]
fn adapters_get_pytorchs_gradients_with_dropout_and_without_and_recomputed() -> Result {
    let expected = expected()?;
    let ids = &expected["input_ids"];
    let (inputs, targets) = (ids.narrow(1, 0, 8)?, ids.narrow(1, 1, 8)?.contiguous()?);
    let part = |kind: &str| -> HashMap<String, Tensor> {
        let named =
            expected.iter().filter_map(|(name, x)| Some((name.strip_prefix(kind)?.into(), x.clone())));
        named.collect()
    };
    for implementation in [Implementation::Eager, Implementation::Fused] {
        let checkpoint = Checkpoint::open(&Source::directory(data("lora").join("base")).open()?)?;
        let model = checkpoint.with_implementation(implementation).load_model(DType::F32, &Device::Cpu)?;
        let held = adapter("every_layer", &model)?;
        for (kind, rate) in [("plain.", 0.0), ("dropped.", 0.25)] {
            let expected = part(kind);
            let mut adapter = trainable(&held)?;
            for update in adapter.updates.values_mut() {
                *update = Update::new(update.a().clone(), update.b().clone(), update.scaling(), rate)?;
            }
            let adapted = model.clone().with_adapter("default", &adapter, 1.0)?;
            assert_eq!(adapted.named_variables()?.len(), 16, "the model's own weights are frozen");
            let training = Some(Training { seed: 3, step: 17 });
            // PyTorch's labels drop the last position's prediction, as these inputs do, but dropout counts rows.
            let loss = || {
                let batch = TrainingBatch::new(inputs.clone(), targets.clone());
                adapted.loss(&batch, ForwardArgs { training, ..Default::default() })
            };
            let (loss_value, gradients) = if rate == 0.0 {
                let loss = loss()?;
                (loss.to_scalar::<f32>()?, loss.backward()?)
            } else {
                let args = ForwardArgs { training, ..Default::default() };
                let logits = adapted.forward(ids, args)?.logits.narrow(1, 0, 8)?;
                let loss = gpt2_model::training::cross_entropy(&logits, &targets)?;
                (loss.to_scalar::<f32>()?, loss.backward()?)
            };
            let what = format!("{implementation:?}, {kind}");
            let wanted = expected["loss"].to_scalar::<f32>()?;
            assert!((loss_value - wanted).abs() < 1e-5, "{what}: {loss_value}, not {wanted}");
            assert_gradients(&what, &adapter, &gradients, &expected)?;
            let (again, recomputed) = adapted.recomputed_gradients(&inputs, &targets, training)?;
            let loss = loss()?;
            assert_eq!(again.to_bits(), loss.to_scalar::<f32>()?.to_bits(), "{what}: recomputed");
            let gradients = loss.backward()?;
            for update in adapter.updates.values() {
                for tensor in [update.a(), update.b()] {
                    let [got, plain] =
                        [&recomputed, &gradients].map(|gradients| gradients.get(tensor).cloned());
                    let (got, plain) = (got.ok_or("recomputed")?, plain.ok_or("plain")?);
                    assert_close("recomputed", &got, &plain, 1e-6);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_new_adapter_changes_nothing_until_it_learns() -> Result {
    let expected = expected()?;
    let model = base("base", DType::F32)?;
    let adapter = Adapter::new(model.config(), &LoraOptions::new(3), 5, &Device::Cpu)?;
    assert_eq!(adapter.updates.keys().collect::<Vec<_>>(), ["h.0.attn.c_attn", "h.1.attn.c_attn"]);
    assert_eq!(adapter.parameter_count(), 2 * 3 * (12 + 36));
    let adapted = model.clone().with_adapter("new", &adapter, 1.0)?;
    assert_close("new", &logits(&adapted, &expected["input_ids"])?, &expected["base.logits"], TOLERANCE);
    let bound = adapter.updates["h.0.attn.c_attn"].a().abs()?.max_all()?.to_scalar::<f32>()?;
    assert!((0.2..=1.0 / 12f32.sqrt()).contains(&bound), "{bound}");
    let unknown = LoraOptions { target_modules: vec!["attn".into()], ..LoraOptions::new(3) };
    let error = Adapter::new(model.config(), &unknown, 5, &Device::Cpu).expect_err("no layer").to_string();
    assert!(error.contains("\"attn\"") && error.contains("c_attn, c_fc, c_proj"), "{error}");
    Ok(())
}

#[test]
fn the_norm_of_an_update_is_that_of_its_product() -> Result {
    let model = base("base", DType::F32)?;
    for update in adapter("rslora", &model)?.updates.values() {
        let delta = update.delta()?;
        assert_eq!(delta.dims2()?, update.shape());
        let whole = delta.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
        assert!((f64::from(whole) - update.norm()?).abs() < 1e-4 * f64::from(whole));
    }
    Ok(())
}
