//! Adapters: the logits and gradients that PEFT computes (tests/data/lora), on every kind of weight, merged or not.

use crate::common::{Result, assert_close, data, reference, test_device};
use crate::models::load;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use gpt2_loader::{AdapterCheckpoint, AdapterFiles, Checkpoint, Source};
use gpt2_model::linear::BlockFormat;
use gpt2_model::lora::{Adapter, LoraOptions, Update};
use gpt2_model::parameters::Values;
use gpt2_model::training::{Training, TrainingBatch};
use gpt2_model::{Config, Conv1D, ForwardArgs, Gpt2LMHeadModel, Implementation, KvCache, init};
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

/// PEFT 0.21 writes these besides updates of linear layers, and adapters of a model without a head (`tests/data/lora_parts`).
const PARTS: [&str; 7] =
    ["biases", "biases_of_layers", "embeddings", "head", "bare_block", "bare_biases", "bare_embedding"];

fn expected() -> Result<HashMap<String, Tensor>> {
    reference("lora")
}

fn base(case: &str, dtype: DType) -> Result<Gpt2LMHeadModel> {
    let checkpoint = Checkpoint::open(&Source::directory(data("lora").join(case)).open()?)?;
    Ok(checkpoint.load_model(dtype, &test_device())?)
}

fn adapter(case: &str, model: &Gpt2LMHeadModel) -> Result<Adapter> {
    let files = AdapterFiles::directory(&data("lora").join(case))?;
    Ok(AdapterCheckpoint::open(&files)?.load(model.config())?)
}

fn logits(model: &Gpt2LMHeadModel, ids: &Tensor) -> Result<Tensor> {
    Ok(model.forward(ids, ForwardArgs::default())?.logits)
}

/// Copies an adapter into variables on the device of the tests, where a model takes them as they are.
fn trainable(adapter: &Adapter) -> Result<Adapter> {
    let update = |update: &Update| {
        let [a, b] = [update.a(), update.b()].map(|x| Var::from_tensor(&x.to_device(&test_device())?));
        Update::new(a?.as_tensor().clone(), b?.as_tensor().clone(), update.scaling(), update.dropout())
    };
    let updates = adapter.updates.iter().map(|(name, held)| Ok((name.clone(), update(held)?)));
    Ok(Adapter { updates: updates.collect::<Result<_>>()?, ..Adapter::default() })
}

fn max_diff(a: &Tensor, b: &Tensor) -> Result<f32> {
    Ok((a - b)?.abs()?.max_all()?.to_scalar()?)
}

#[test]
fn trained_biases_embeddings_and_heads_give_pefts_logits_merged_or_not() -> Result {
    let expected = reference("lora_parts")?;
    let ids = &expected["input_ids"];
    let model = base("base", DType::F32)?;
    let plain = logits(&model, ids)?;
    for case in PARTS {
        let files = AdapterFiles::directory(&data("lora_parts").join(case))?;
        let adapter = AdapterCheckpoint::open(&files)?.load(model.config())?;
        let adapted = model.clone().with_adapter("part", &adapter, 1.0)?;
        let found = logits(&adapted, ids)?;
        assert_close(case, &found, &expected[&format!("{case}.logits")], TOLERANCE);
        assert!(max_diff(&found, &plain)? > 0.01, "{case} changes nothing");
        // The updates of `biases_of_layers` are larger than the weights: merged, the CPU's logits are 7.0e-6 from those in f64. On
        // CUDA the product and the update are rounded before their sum: 1.2e-5 from f64, and 1.7e-5 from those merged, measured.
        let tolerance = if test_device().is_cpu() { 1e-5 } else { 3e-5 };
        assert_close(case, &logits(&adapted.merged()?, ids)?, &found, tolerance);
        if adapter.replaced.is_empty() {
            let half = logits(&model.clone().with_adapter("part", &adapter, 0.5)?, ids)?;
            assert!(
                max_diff(&half, &found)? > 1e-4 && max_diff(&half, &plain)? > 1e-4,
                "{case}: half as strong"
            );
        } else {
            let error = model.clone().with_adapter("part", &adapter, 0.5).expect_err(case).to_string();
            assert!(error.contains("cannot be weighted"), "{case}: {error}");
        }
    }
    Ok(())
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
        // These updates are larger than the weights that they change: 1.3e-5 for one of them with AVX2 and 3.0e-5 on an H200,
        // measured. Of the size that training gives, the difference is 2.2e-6 (scripts/compare_with_peft.py).
        let tolerance = if test_device().is_cpu() { 2e-5 } else { 5e-5 };
        assert_close(case, &logits(&merged, ids)?, &logits(&adapted, ids)?, tolerance);
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
    let first = adapter("every_layer", &model)?;
    let second = adapter("rslora", &model)?;
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
    let mut cache = KvCache::new(adapted.config(), 2, 9, DType::F32, &test_device())?;
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
fn adapters_on_halves_are_off_by_rounding_only() -> Result {
    let expected = expected()?;
    let ids = &expected["input_ids"];
    for (dtype, tolerance) in [(DType::F16, 10. * 2f64.powi(-11)), (DType::BF16, 10. * 2f64.powi(-8))] {
        let model = base("base", dtype)?;
        let adapted = model.clone().with_adapter("default", &adapter("every_layer", &model)?, 1.0)?;
        // On CUDA `x·Aᵀ`, its product with Bᵀ and the sum are each rounded, which the CPU keeps in f32: 12.9 roundings in f16,
        // measured, where the model without the adapter has 3.2 on both.
        let apart = if test_device().is_cpu() { tolerance } else { 1.5 * tolerance };
        assert_close(&format!("{dtype:?}"), &logits(&adapted, ids)?, &expected["every_layer.logits"], apart);
        // The sum of weight and update is rounded once more: 10.4 roundings instead of at most 10 in f16, measured.
        let merged = logits(&adapted.merged()?, ids)?;
        assert_close(
            &format!("{dtype:?}, merged"),
            &merged,
            &expected["every_layer.logits"],
            1.5 * tolerance,
        );
    }
    Ok(())
}

#[test]
fn adapters_on_quantized_weights_are_off_by_rounding_only() -> Result {
    let expected = expected()?;
    let ids = &expected["input_ids"];
    // Blocks of 32 need wider layers than the reference data have.
    let demo = Checkpoint::open(&Source::directory(data("../../models/tiny-shakespeare")).open()?)?;
    let plain = demo.load_model(DType::F32, &test_device())?;
    let quantized = demo.load_quantized(BlockFormat::Q8_0)?;
    let options = LoraOptions { target_modules: vec!["c_attn".into(), "c_fc".into()], ..LoraOptions::new(4) };
    let adapter = Adapter::new(plain.config(), &options, 1, &test_device())?;
    for update in adapter.updates.values() {
        let numbers = (0..update.b().elem_count()).map(|i| (i * 7 % 11) as f32 * 0.01 - 0.05);
        let b = Tensor::from_iter(numbers, &test_device())?.reshape(update.b().shape())?;
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
    let inputs = ids.narrow(1, 0, 8)?;
    let targets = ids.narrow(1, 1, 8)?.contiguous()?;
    let part = |kind: &str| -> HashMap<String, Tensor> {
        let named =
            expected.iter().filter_map(|(name, x)| Some((name.strip_prefix(kind)?.into(), x.clone())));
        named.collect()
    };
    for implementation in [Implementation::Eager, Implementation::Fused] {
        let checkpoint = Checkpoint::open(&Source::directory(data("lora").join("base")).open()?)?;
        let model = checkpoint.with_implementation(implementation).load_model(DType::F32, &test_device())?;
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
            let loss_value = loss.to_scalar::<f32>()?;
            // Kernels for CUDA without a backward run where nothing learns: in the first of the two passes that recompute.
            let same_code = test_device().is_cpu() || implementation == Implementation::Eager;
            let most = if same_code { 0.0 } else { 4.0 * f32::EPSILON * loss_value };
            assert!((again - loss_value).abs() <= most, "{what}: recomputed {again}, not {loss_value}");
            let gradients = loss.backward()?;
            for update in adapter.updates.values() {
                for tensor in [update.a(), update.b()] {
                    let [got, plain] =
                        [&recomputed, &gradients].map(|gradients| gradients.get(tensor).cloned());
                    let got = got.ok_or("recomputed")?;
                    let plain = plain.ok_or("plain")?;
                    // Measured: no difference, and 1.3e-6 where the code is not the same; both are 3.3e-6 from f64.
                    assert_close("recomputed", &got, &plain, if same_code { 1e-6 } else { 3e-6 });
                }
            }
        }
    }
    Ok(())
}

/// PEFT draws A with `kaiming_uniform_(a=√5)`: each number as likely as any other within `±1/√in`.
#[test]
fn a_new_adapters_first_factor_is_uniform() -> Result {
    let config =
        Config { n_embd: 256, n_head: 4, n_layer: 1, n_positions: 8, vocab_size: 11, ..Config::gpt2() };
    let adapter = Adapter::new(&config, &LoraOptions::new(64), 5, &test_device())?;
    let bound = 1.0 / 256f32.sqrt();
    let drawn: Vec<f32> = adapter.updates["h.0.attn.c_attn"].a().flatten_all()?.to_vec1()?;
    assert_eq!(drawn.len(), 64 * 256);
    assert!(drawn.iter().all(|x| x.abs() <= bound));
    // In eight equal intervals, each has an eighth: off by 5 standard deviations of a count at most.
    let mut counts = [0f64; 8];
    for x in &drawn {
        let place = (0u8..8).find(|place| *x <= bound * (f32::from(*place + 1) / 4.0 - 1.0)).unwrap_or(7);
        counts[usize::from(place)] += 1.0;
    }
    let expected = drawn.len() as f64 / 8.0;
    let most = 5.0 * (expected * 7.0 / 8.0).sqrt();
    assert!(counts.iter().all(|count| (count - expected).abs() < most), "{counts:?}");
    Ok(())
}

#[test]
fn a_new_adapter_changes_nothing_until_it_learns() -> Result {
    let expected = expected()?;
    let model = base("base", DType::F32)?;
    let adapter = Adapter::new(model.config(), &LoraOptions::new(3), 5, &test_device())?;
    assert_eq!(adapter.updates.keys().collect::<Vec<_>>(), ["h.0.attn.c_attn", "h.1.attn.c_attn"]);
    assert_eq!(adapter.parameter_count(), 2 * 3 * (12 + 36));
    let adapted = model.clone().with_adapter("new", &adapter, 1.0)?;
    assert_close("new", &logits(&adapted, &expected["input_ids"])?, &expected["base.logits"], TOLERANCE);
    let bound = adapter.updates["h.0.attn.c_attn"].a().abs()?.max_all()?.to_scalar::<f32>()?;
    assert!((0.2..=1.0 / 12f32.sqrt()).contains(&bound), "{bound}");
    let unknown = LoraOptions { target_modules: vec!["attn".into()], ..LoraOptions::new(3) };
    let error = Adapter::new(model.config(), &unknown, 5, &test_device()).expect_err("no layer").to_string();
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

fn named(model: &Gpt2LMHeadModel) -> Result<Vec<(String, Vec<f32>)>> {
    let numbers = |(name, values): (String, Values)| Ok((name, values.tensor()?.flatten_all()?.to_vec1()?));
    model.named_parameters().into_iter().map(numbers).collect()
}

/// Every parameter of a model can be replaced, and no other changes.
#[test]
fn an_adapter_replaces_each_parameter_by_its_name() -> Result {
    for case in ["lora/base", "lora/bigcode_base", "cross", "untied"] {
        let model = load(case, DType::F32)?;
        let before = named(&model)?;
        for (name, values) in model.named_parameters() {
            let replaced = [(name.clone(), (values.tensor()? + 1.0)?)].into();
            let adapter = Adapter { replaced, ..Adapter::default() };
            assert_eq!(adapter.parameter_count(), values.shape().iter().product::<usize>() as u64);
            let changed = model.clone().with_adapter("a", &adapter, 1.0)?;
            let mut expected = before.clone();
            if name == "wte.weight" && model.is_tied() {
                // The head keeps the model's own table.
                let table = before.iter().find(|(held, _)| *held == name).ok_or("a table")?.1.clone();
                expected.push(("lm_head.weight".into(), table));
            }
            let own = expected.iter_mut().find(|(held, _)| *held == name).ok_or("a parameter")?;
            own.1.iter_mut().for_each(|x| *x += 1.0);
            assert!(named(&changed)? == expected, "{case}: {name}");
        }
    }
    Ok(())
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_by_its_part() -> Result {
    let model = base("base", DType::F32)?; // C = 12
    let tensor = |shape: (usize, usize)| Tensor::ones(shape, DType::F32, &test_device());
    let update = |n_in, n_out| Update::new(tensor((2, n_in))?, tensor((n_out, 2))?, 1.0, 0.0);
    let updating = |layer: &str, update: Update| Adapter {
        updates: [(layer.to_owned(), update)].into(),
        ..Adapter::default()
    };
    let replacing = |name: &str, value: Tensor| Adapter {
        replaced: [(name.to_owned(), value)].into(),
        ..Adapter::default()
    };
    let c_attn = "h.1.attn.c_attn";
    let refused = |model: &Gpt2LMHeadModel, adapter: &Adapter, weight: f64, part: &str| {
        let error = model.clone().with_adapter("a", adapter, weight).map_err(|e| e.to_string());
        assert!(error.as_ref().is_err_and(|e| e.contains(part)), "{error:?} does not say {part:?}");
    };
    let fits = updating(c_attn, update(12, 36)?);
    let adapted = model.clone().with_adapter("b", &fits, -0.5)?;
    refused(&model, &fits, f64::INFINITY, "its weight is inf, expected a finite number");
    refused(
        &model,
        &updating(c_attn, update(12, 35)?),
        1.0,
        "its update is (12, 35) (in, out), the layer (12, 36)",
    );
    refused(&model, &updating("h.2.attn.c_attn", update(12, 36)?), 1.0, "no linear layer h.2.attn.c_attn");
    let bias = Tensor::ones(12, DType::F32, &test_device())?;
    let norm = replacing("ln_f.bias", bias.clone());
    refused(&model, &norm, 0.5, "but it replaces ln_f.bias, which cannot be weighted; use 1");
    refused(&model, &replacing("h.0.x.weight", bias.clone()), 1.0, "the model has no parameter h.0.x.weight");
    refused(&model, &replacing("wpe.weight", bias), 1.0, "wpe.weight is [12], in the model");
    let weight = replacing("h.1.attn.c_attn.weight", tensor((12, 36))?);
    refused(&adapted, &weight, 1.0, "has an adapter already, behind which weight cannot be replaced");

    let bound = |r, target_modules: &[&str]| {
        let target_modules = target_modules.iter().map(|name| (*name).to_owned()).collect();
        let options = LoraOptions { target_modules, ..LoraOptions::new(r) };
        Adapter::new(model.config(), &options, 1, &test_device()).map_err(|e| e.to_string())
    };
    assert!(bound(1, &["c_attn"]).is_ok() && bound(12, &["c_attn"]).is_ok());
    for (r, targets, part) in [
        (0, &["c_attn"][..], "r is 0, expected 1 to 12, the narrower side of h.0.attn.c_attn"),
        (13, &["c_attn"], "r is 13, expected 1 to 12"),
        (2, &[], "target_modules is empty"),
    ] {
        let error = bound(r, targets);
        assert!(error.as_ref().is_err_and(|e| e.contains(part)), "{error:?}");
    }
    Ok(())
}

#[test]
fn an_update_whose_factors_do_not_fit_is_refused() -> Result {
    let ones = |(rows, columns): (usize, usize)| {
        let some = Tensor::ones((rows.max(1), columns.max(1)), DType::F32, &test_device())?;
        some.narrow(0, 0, rows)?.narrow(1, 0, columns)
    };
    let half = ones((4, 2))?.to_dtype(DType::F16)?;
    for (a, b, scaling, dropout, part) in [
        (ones((2, 6))?, ones((4, 3))?, 1.0, 0.0, "A is [2, 6] and B [4, 3]; expected (r, in) and (out, r)"),
        (ones((0, 6))?, ones((4, 0))?, 1.0, 0.0, "A is [0, 6] and B [4, 0]"),
        (ones((2, 6))?, half, 1.0, 0.0, "A is F32 and B F16"),
        (ones((2, 6))?, ones((4, 2))?, f64::NAN, 0.0, "the scaling is NaN"),
        (ones((2, 6))?, ones((4, 2))?, 1.0, 1.0, "the rate is 1"),
    ] {
        let error = Update::new(a, b, scaling, dropout).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let update = Update::new(ones((2, 6))?, ones((4, 2))?, 3.0, 0.25)?;
    assert_eq!((update.rank(), update.shape()), (2, (6, 4)));
    assert!((update.clone().times(-2.0).scaling() + 6.0).abs() < 1e-12);
    let layer = Conv1D::load(init::seeded(1, DType::F32, &test_device()), 6, 4, 0.02)?;
    let last = (1 << 20) - 1;
    let adapted = layer.with_update("a", update.clone(), last)?;
    let error = layer.with_update("a", update.clone(), last + 1).expect_err("2^20").to_string();
    assert!(error.contains("the stream is 1048576, expected less than 1048576"), "{error}");
    let error = adapted.with_update("b", update.clone(), 7).expect_err("another stream").to_string();
    assert!(error.contains("share a stream, which is 1048575"), "{error}");
    assert_eq!(adapted.with_update("b", update, last)?.updates().len(), 2);
    assert!(adapted.without_updates().updates().is_empty());
    Ok(())
}
