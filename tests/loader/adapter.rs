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
    let from = data("lora/default");
    let dir = tempfile::tempdir()?;
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
    let of_layers = ["default", "every_layer", "rslora", "ranks", "whole_modules", "one_block"]
        .map(|case| ("lora", case));
    let parts = ["biases", "biases_of_layers", "embeddings", "head"].map(|case| ("lora_parts", case));
    for (folder, case) in of_layers.into_iter().chain(parts) {
        let checkpoint = AdapterCheckpoint::open(&AdapterFiles::directory(&data(folder).join(case))?)?;
        let config = checkpoint.config().clone();
        let model = model()?;
        let dir = tempfile::tempdir()?;
        save_adapter(dir.path(), &checkpoint.load(&model)?, &config, &model)?;
        let peft = data(folder).join(case);
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
    let model = model()?;
    let dir = tempfile::tempdir()?;
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
    let json: Value = serde_json::from_slice(&std::fs::read(dir.path().join("adapter_config.json"))?)?;
    for (field, value) in [
        ("peft_type", json!("LORA")),
        ("task_type", json!("CAUSAL_LM")),
        ("base_model_name_or_path", json!("gpt2")),
        ("inference_mode", json!(true)),
        ("init_lora_weights", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("r", json!(3)),
    ] {
        assert_eq!(json[field], value, "{field}");
    }
    Ok(())
}

#[test]
fn an_adapter_that_its_config_does_not_describe_is_not_saved() -> Result {
    let model = model()?;
    let dir = tempfile::tempdir()?;
    let options = LoraOptions { target_modules: vec!["c_fc".into()], lora_alpha: 6.0, ..LoraOptions::new(3) };
    let adapter = Adapter::new(&model, &options, 1, &Device::Cpu)?;
    let config = |options: &LoraOptions| AdapterConfig::new(options, None, true);
    let other = LoraOptions { target_modules: vec!["c_attn".into()], ..options.clone() };
    let scaling = LoraOptions { lora_alpha: 6.001, ..options.clone() };
    let rank = LoraOptions { r: 6, lora_alpha: 12.0, ..options.clone() }; // with the same scaling
    for (what, options, layer) in [
        ("target", other, "h.0.attn.c_attn"),
        ("scaling", scaling, "h.0.mlp.c_fc"),
        ("rank", rank, "h.0.mlp.c_fc"),
    ] {
        let error = save_adapter(dir.path(), &adapter, &config(&options), &model).expect_err(what);
        assert_says(what, &error.to_string(), &[&format!("the adapter's update of {layer} is not")]);
    }
    let mut whole = config(&options);
    whole.modules_to_save = Some(vec!["ln_f".into()]);
    let error = save_adapter(dir.path(), &adapter, &whole, &model).expect_err("no ln_f").to_string();
    assert_says("whole", &error, &["modules_to_save names other parameters"]);
    assert!(std::fs::read_dir(dir.path())?.next().is_none(), "something was written");
    let inside = dir.path().join("not/there/yet");
    save_adapter(&inside, &adapter, &config(&options), &model)?;
    assert_eq!(open(&inside)?.updates.len(), 2);
    Ok(())
}

/// The layers with an update by PEFT's rules, for a config with these fields.
fn targets(fields: &[(&str, Value)]) -> Result<Vec<String>> {
    let set = |config: &mut Value| fields.iter().for_each(|(field, value)| config[*field] = value.clone());
    // Of a file without tensors, each one is missing.
    let dir = changed(set, Tensors::clear)?;
    let audit = AdapterCheckpoint::open(&AdapterFiles::directory(dir.path())?)?.audit(&model()?)?;
    let layer = |name: &str| {
        let name = name.strip_prefix("base_model.model.transformer.h.")?;
        Some(name.strip_suffix(".lora_A.weight")?.to_string())
    };
    Ok(audit.missing.iter().filter_map(|(name, _)| layer(name)).collect())
}

#[test]
fn the_layers_with_an_update_are_those_that_peft_chooses() -> Result {
    let all = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"];
    let of = |block: usize| all.map(|layer| format!("{block}.{layer}")).to_vec();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
    let target = |value: Value| ("target_modules", value);
    let c_attn = || target(json!(["c_attn"]));
    for (fields, expected) in [
        (vec![target(json!("all-linear"))], [of(0), of(1)].concat()),
        (vec![target(json!("ALL-LINEAR")), ("layers_to_transform", json!([1]))], of(1)),
        // A pattern for the whole name says the block itself.
        (
            vec![target(json!(r".*\.attn\.c_attn")), ("layers_to_transform", json!([1]))],
            names(&["0.attn.c_attn", "1.attn.c_attn"]),
        ),
        (vec![target(json!(r"attn\.c_attn|.*\.1\.mlp\.c_fc"))], names(&["1.mlp.c_fc"])),
        // So does a whole name.
        (
            vec![target(json!(["transformer.h.0.attn.c_attn"])), ("layers_to_transform", json!([1]))],
            names(&["0.attn.c_attn"]),
        ),
        (vec![target(json!(["attn.c_proj"]))], names(&["0.attn.c_proj", "1.attn.c_proj"])),
        (vec![c_attn(), ("layers_to_transform", json!([]))], names(&["0.attn.c_attn", "1.attn.c_attn"])),
        (vec![c_attn(), ("layers_to_transform", json!([1, 7]))], names(&["1.attn.c_attn"])),
        (
            vec![c_attn(), ("layers_to_transform", json!(1)), ("layers_pattern", json!(["x", "", "h"]))],
            names(&["1.attn.c_attn"]),
        ),
        (
            vec![c_attn(), ("layers_to_transform", json!(0)), ("layers_pattern", json!(""))],
            names(&["0.attn.c_attn"]),
        ),
        (
            vec![target(json!("all-linear")), ("exclude_modules", json!(r".*\.c_proj|.*\.h\.0\..*"))],
            names(&["1.attn.c_attn", "1.mlp.c_fc"]),
        ),
        (
            vec![target(json!("all-linear")), ("modules_to_save", json!(["mlp", "attn.c_proj"]))],
            names(&["0.attn.c_attn", "1.attn.c_attn"]),
        ),
    ] {
        let mut found = targets(&fields)?;
        found.sort_unstable();
        assert_eq!(found, expected, "{fields:?}");
    }
    // PEFT's own rule for a model without a head: the pattern may stand first, but something must stand before no pattern at all.
    let bare = |fields: &[(&str, Value)]| -> Result<Vec<String>> {
        let set =
            |config: &mut Value| fields.iter().for_each(|(field, value)| config[*field] = value.clone());
        let rename = |tensors: &mut Tensors| {
            *tensors = std::mem::take(tensors)
                .into_iter()
                .map(|(name, tensor)| (name.replace("model.transformer.", "model."), tensor))
                .collect();
        };
        let dir = changed(set, rename)?;
        let audit = AdapterCheckpoint::open(&AdapterFiles::directory(dir.path())?)?.audit(&model()?)?;
        Ok(audit.unexpected.iter().map(|tensor| tensor.name.clone()).collect())
    };
    let first_block = |pattern: Value| [("layers_to_transform", json!([0])), ("layers_pattern", pattern)];
    for pattern in [json!("h"), json!(["h"]), json!(["x", "h"]), json!("(h|g)")] {
        let others = bare(&first_block(pattern.clone()))?;
        assert!(
            others.len() == 2 && others.iter().all(|name| name.contains("model.h.1.")),
            "{pattern}: {others:?}"
        );
    }
    let error = bare(&first_block(Value::Null)).expect_err("no pattern").to_string();
    assert_says("no pattern", &error, &["layers_to_transform [0] and layers_pattern null", "names no layer"]);
    for (what, fields) in [
        ("the end of a name", vec![target(json!(["proj"]))]),
        (
            "another list",
            vec![c_attn(), ("layers_to_transform", json!(0)), ("layers_pattern", json!("layers"))],
        ),
    ] {
        let error = targets(&fields).expect_err(what).to_string();
        assert_says(what, &error, &["names no layer of the model"]);
    }
    Ok(())
}

#[test]
fn fields_that_a_config_leaves_out_have_pefts_values() -> Result {
    // 8 for the rank and for alpha, as in this file.
    let optional =
        ["r", "lora_alpha", "lora_dropout", "bias", "init_lora_weights", "use_rslora", "fan_in_fan_out"];
    let less = |config: &mut Value| {
        let fields = config.as_object_mut().expect("an object");
        for field in optional {
            fields.remove(field);
        }
    };
    let dir = changed(less, |_| {})?;
    let found = open(dir.path())?;
    let expected = open(&data("lora/default"))?;
    for (layer, update) in &expected.updates {
        assert_eq!(found.updates[layer].rank(), 8);
        assert!((found.updates[layer].scaling() - update.scaling()).abs() < 1e-12);
    }
    Ok(())
}

/// PEFT leaves `transformer.` out if it wraps a `GPT2Model`.
#[test]
fn an_adapter_of_a_bare_model_is_loaded_by_its_names() -> Result {
    for case in ["default", "whole_modules"] {
        let from = data("lora").join(case);
        let dir = tempfile::tempdir()?;
        std::fs::copy(from.join("adapter_config.json"), dir.path().join("adapter_config.json"))?;
        let tensors = read(&from.join("adapter_model.safetensors"))?;
        let bare: Tensors = tensors
            .into_iter()
            .map(|(name, tensor)| (name.replace("model.transformer.", "model."), tensor))
            .collect();
        std::fs::write(dir.path().join("adapter_model.safetensors"), serialized(&bare)?)?;
        let found = open(dir.path())?;
        let expected = open(&from)?;
        assert!(found.updates.keys().eq(expected.updates.keys()) && found.updates.len() == 2);
        assert!(found.replaced.keys().eq(expected.replaced.keys()));
        for (layer, update) in &expected.updates {
            assert_eq!(found.updates[layer].b().to_vec2::<f32>()?, update.b().to_vec2::<f32>()?);
        }
    }
    Ok(())
}

#[test]
fn the_updates_of_a_file_are_read_without_a_model() -> Result {
    let expected = open(&data("lora/ranks"))?;
    let checkpoint = AdapterCheckpoint::open(&AdapterFiles::directory(&data("lora/ranks"))?)?;
    let updates = checkpoint.updates()?;
    assert!(updates.keys().eq(expected.updates.keys()) && updates.len() == 8);
    for (layer, update) in &expected.updates {
        assert_eq!(updates[layer].a().to_vec2::<f32>()?, update.a().to_vec2::<f32>()?, "{layer}");
        assert!((updates[layer].scaling() - update.scaling()).abs() < 1e-12, "{layer}");
    }
    assert!(checkpoint.not_finite()?.is_empty());
    let half = changed(|_| {}, |tensors| drop(tensors.remove(&A.replace("lora_A", "lora_B"))))?;
    let half = AdapterCheckpoint::open(&AdapterFiles::directory(half.path())?)?;
    let error = half.updates().expect_err("half a pair").to_string();
    assert_says("half", &error, &["h.0.attn.c_attn.lora_B.weight is missing"]);
    Ok(())
}

/// An adapter of another kind has other fields, of which the message says nothing.
#[test]
fn another_kind_of_adapter_is_named_before_its_fields() -> Result {
    let dir = changed(|_| {}, |_| {})?;
    let config = dir.path().join("adapter_config.json");
    std::fs::write(
        &config,
        r#"{"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 8}"#,
    )?;
    let error = AdapterCheckpoint::open(&AdapterFiles::directory(dir.path())?).expect_err("a prompt");
    let path = config.display().to_string();
    assert_says("kind", &error.to_string(), &[&path, "peft_type is PROMPT_TUNING; only LORA"]);
    assert!(!error.to_string().contains("target_modules"), "{error}");
    Ok(())
}

#[test]
fn what_is_not_supported_is_refused_by_name() -> Result {
    for (field, value, parts) in [
        ("peft_type", json!("IA3"), &["peft_type is IA3", "LORA"][..]),
        ("task_type", json!("SEQ_CLS"), &["task_type is SEQ_CLS"]),
        ("use_dora", json!(true), &["use_dora is true"]),
        ("lora_bias", json!(true), &["lora_bias is true"]),
        ("bias", json!("some"), &["bias is \"some\"", "lora_only"]),
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
        ("rank_pattern", json!({"h.1.attn.c_attn": 0}), &["the rank of transformer.h.1.attn.c_attn is 0"]),
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
    let model = model()?;
    let files = AdapterFiles::directory(&data("lora/default"))?;
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
