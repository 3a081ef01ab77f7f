//! Adapters: one saved here is what PEFT would save, and each kind of damage has a message.

use crate::common::{Result, data};
use crate::folder::{Raw, Tensors, assert_says, read, serialized, zeros};
use candle_core::{DType, Device};
use gpt2_loader::{
    AdapterCheckpoint, AdapterConfig, AdapterFiles, Checkpoint, LoadError, Source, save_adapter,
};
use gpt2_model::Config;
use gpt2_model::lora::{Adapter, LoraOptions, Update};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;

/// A change of an adapter's tensors.
type Change<'a> = &'a dyn Fn(&mut Tensors);

const A: &str = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight";

fn model() -> Result<Config> {
    Ok(Checkpoint::open(&Source::directory(data("lora/base")).open()?)?.config().clone())
}

fn open(dir: &Path) -> std::result::Result<Adapter, LoadError> {
    let config = model().expect("the reference data");
    AdapterCheckpoint::open(&AdapterFiles::directory(dir)?)?.load(&config)
}

/// A copy of PEFT's default adapter, after a change of its config and its tensors.
fn changed(config: impl Fn(&mut Value), tensors: impl Fn(&mut Tensors)) -> Result<tempfile::TempDir> {
    let (from, dir) = (data("lora/default"), tempfile::tempdir()?);
    let mut json: Value = serde_json::from_slice(&std::fs::read(from.join("adapter_config.json"))?)?;
    config(&mut json);
    std::fs::write(dir.path().join("adapter_config.json"), json.to_string())?;
    let mut held = read(&from.join("adapter_model.safetensors"))?;
    tensors(&mut held);
    std::fs::write(dir.path().join("adapter_model.safetensors"), serialized(&held)?)?;
    Ok(dir)
}

#[test]
fn a_saved_adapter_holds_what_pefts_file_holds() -> Result {
    for case in ["default", "every_layer", "rslora", "ranks", "whole_modules", "one_block"] {
        let checkpoint = AdapterCheckpoint::open(&AdapterFiles::directory(&data("lora").join(case))?)?;
        let (config, model) = (checkpoint.config().clone(), model()?);
        let dir = tempfile::tempdir()?;
        save_adapter(dir.path(), &checkpoint.load(&model)?, &config, &model)?;
        let peft = data("lora").join(case);
        let [ours, theirs] = [dir.path(), &peft].map(|dir| read(&dir.join("adapter_model.safetensors")));
        assert_eq!(ours?, theirs?, "{case}");
        let [ours, theirs] = [dir.path(), &peft].map(|dir| -> Result<Value> {
            Ok(serde_json::from_slice(&std::fs::read(dir.join("adapter_config.json"))?)?)
        });
        assert_eq!(ours?, theirs?, "{case}");
    }
    Ok(())
}

#[test]
fn a_new_adapter_can_be_saved_and_loaded_again() -> Result {
    let (model, dir) = (model()?, tempfile::tempdir()?);
    let options =
        LoraOptions { target_modules: vec!["c_fc".into()], use_rslora: true, ..LoraOptions::new(3) };
    let adapter = Adapter::new(&model, &options, 1, &Device::Cpu)?;
    let config = AdapterConfig::new(&options, Some("gpt2".into()), true);
    save_adapter(dir.path(), &adapter, &config, &model)?;
    let again = open(dir.path())?;
    assert_eq!(again.updates.len(), 2);
    for (layer, update) in &again.updates {
        let before = &adapter.updates[layer];
        assert_eq!(update.a().to_vec2::<f32>()?, before.a().to_vec2::<f32>()?);
        assert!((update.scaling() - before.scaling()).abs() < 1e-12);
    }
    let other = AdapterConfig::new(&LoraOptions::new(3), None, true);
    let error = save_adapter(dir.path(), &adapter, &other, &model).expect_err("another target");
    assert_says("other", &error.to_string(), &["h.0.attn.c_attn"]);
    Ok(())
}

#[test]
fn what_is_not_supported_is_refused_by_name() -> Result {
    for (field, value, parts) in [
        ("peft_type", json!("IA3"), &["peft_type is IA3", "LORA"][..]),
        ("task_type", json!("SEQ_CLS"), &["task_type is SEQ_CLS"]),
        ("use_dora", json!(true), &["use_dora is true"]),
        ("lora_bias", json!(true), &["lora_bias is true"]),
        ("bias", json!("all"), &["bias is \"all\""]),
        ("init_lora_weights", json!("pissa"), &["init_lora_weights is \"pissa\"", "own weights"]),
        ("init_lora_weights", json!("olora"), &["init_lora_weights is \"olora\""]),
        ("layer_replication", json!([[0, 1]]), &["layer_replication"]),
        ("trainable_token_indices", json!([3]), &["trainable_token_indices is [3]"]),
        ("target_parameters", json!(["x"]), &["target_parameters"]),
        ("a_method_of_next_year", json!({"k": 1}), &["a_method_of_next_year"]),
        ("target_modules", json!("h.(0"), &["target_modules"]),
        ("target_modules", json!(["q_proj"]), &["target_modules is [\"q_proj\"]", "no layer"]),
        ("target_modules", json!(3), &["target_modules", "config of a LoRA adapter"]),
        ("rank_pattern", json!({"c_attn": "x"}), &["rank_pattern", "adapter_config.json"]),
        ("r", json!(-1), &["r: ", "-1"]),
        ("r", json!(0), &["r is 0"]),
        ("lora_dropout", json!(1.5), &["lora_dropout is 1.5"]),
    ] {
        let dir = changed(|config| config[field] = value.clone(), |_| {})?;
        let error = open(dir.path()).expect_err(field);
        assert_says(field, &error.to_string(), parts);
    }
    Ok(())
}

#[test]
fn each_kind_of_damage_has_a_message() -> Result {
    let renamed = |tensors: &mut Tensors| {
        let moved: Vec<_> = tensors.keys().cloned().collect();
        for name in moved {
            let tensor = tensors.remove(&name).expect("a tensor");
            tensors.insert(name.replace("transformer.h", "model.layers"), tensor);
        }
    };
    let nan = |tensors: &mut Tensors| {
        let tensor = tensors.get_mut(A).expect("A");
        tensor.data[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        tensor.data[8..12].copy_from_slice(&f32::INFINITY.to_le_bytes());
    };
    let cases: [(&str, Change, &[&str]); 7] = [
        ("half of a pair", &|t| drop(t.remove(A)), &["missing", A, "[8, 12]", "its config names base"]),
        ("none at all", &|t| t.clear(), &["missing", A]),
        (
            "one too many",
            &|t| drop(t.insert("base_model.model.transformer.h.0.x".into(), zeros(Dtype::F32, &[2]))),
            &["unexpected", "transformer.h.0.x F32 [2]"],
        ),
        (
            "of another framework",
            &|t| drop(t.insert("h.0.lora_a".into(), zeros(Dtype::F32, &[2]))),
            &["unexpected", "h.0.lora_a"],
        ),
        (
            "of another width",
            &|t| drop(t.insert(A.into(), zeros(Dtype::F32, &[8, 768]))),
            &["mis-shaped", "[8, 768]", "[8, 12]", "trained on this model"],
        ),
        (
            "of whole numbers",
            &|t| drop(t.insert(A.into(), Raw { dtype: Dtype::I32, ..t[A].clone() })),
            &["mis-shaped", "I32", "float"],
        ),
        ("of another model", &renamed, &["missing", "unexpected", "model.layers.0.attn"]),
    ];
    for (case, change, parts) in cases {
        let dir = changed(|_| {}, change)?;
        assert_says(case, &open(dir.path()).expect_err(case).to_string(), parts);
    }
    let dir = changed(|_| {}, nan)?;
    let error = open(dir.path()).expect_err("NaN").to_string();
    assert_says("NaN", &error, &["not finite", A, "2 of its numbers"]);
    let rank = changed(|config| config["r"] = 4.into(), |_| {})?;
    assert_says("rank", &open(rank.path()).expect_err("r").to_string(), &["mis-shaped", "[4, 12]"]);
    Ok(())
}

#[test]
fn a_folder_that_holds_no_adapter_says_what_it_holds() -> Result {
    let dir = tempfile::tempdir()?;
    let says = |what: &str, dir: &Path, parts: &[&str]| {
        assert_says(what, &open(dir).expect_err(what).to_string(), parts);
    };
    says("absent", &dir.path().join("x"), &["no such folder"]);
    says("empty", dir.path(), &["no adapter_config.json"]);
    says("a model", &data("lora/base"), &["a model, not an adapter"]);
    std::fs::copy(data("lora/default/adapter_config.json"), dir.path().join("adapter_config.json"))?;
    says("no weights", dir.path(), &["adapter_model.safetensors"]);
    let whole = std::fs::read(data("lora/default/adapter_model.safetensors"))?;
    std::fs::write(dir.path().join("adapter_model.safetensors"), &whole[..whole.len() - 9])?;
    says("cut", dir.path(), &["adapter_model.safetensors", "damaged"]);
    std::fs::write(dir.path().join("adapter_config.json"), "[]")?;
    says("a list", dir.path(), &["a list"]);
    std::fs::write(dir.path().join("adapter_config.json"), "{")?;
    says("half", dir.path(), &["config of a LoRA adapter"]);
    Ok(())
}

#[test]
fn an_adapter_whose_numbers_are_not_finite_is_not_saved() -> Result {
    let (model, files) = (model()?, AdapterFiles::directory(&data("lora/default"))?);
    let checkpoint = AdapterCheckpoint::open(&files)?;
    let mut adapter = checkpoint.load(&model)?;
    let dir = tempfile::tempdir()?;
    save_adapter(dir.path(), &adapter, checkpoint.config(), &model)?;
    let path = dir.path().join("adapter_model.safetensors");
    let before = std::fs::read(&path)?;
    let (layer, update) = adapter.updates.pop_first().ok_or("an update")?;
    let b = (update.b() / 0.0)?;
    let damaged = Update::new(update.a().clone(), b, update.scaling(), update.dropout())?;
    assert!(!damaged.norm()?.is_finite(), "the norm of NaN is a number");
    adapter.updates.insert(layer.clone(), damaged);
    let error = save_adapter(dir.path(), &adapter, checkpoint.config(), &model);
    let error = error.expect_err("not finite").to_string();
    assert_says("NaN", &error, &[&layer, "lora_B", "NaN or infinity"]);
    assert_eq!(std::fs::read(&path)?, before);
    Ok(())
}

/// `torch.save`'s file, as PEFT wrote it before safetensors.
#[test]
fn an_adapter_in_a_pickle_loads_too() -> Result {
    let plain = open(&data("lora/default"))?;
    let dir = tempfile::tempdir()?;
    std::fs::copy(data("lora/default/adapter_config.json"), dir.path().join("adapter_config.json"))?;
    std::fs::copy(data("lora/default.bin"), dir.path().join("adapter_model.bin"))?;
    let pickled = open(dir.path())?;
    for (layer, update) in &plain.updates {
        assert_eq!(update.a().to_vec2::<f32>()?, pickled.updates[layer].a().to_vec2::<f32>()?);
        assert_eq!(update.b().dtype(), DType::F32);
    }
    Ok(())
}
