//! Dictionaries in SAELens' files: the features and what is rebuilt from them, as SAELens finds them (tests/data/features), and what
//! is refused.

use crate::common::{Result, assert_close, data, relative_error};
use crate::folder::{Tensors, assert_says, read, serialized};
use candle_core::{Device, Tensor};
use gpt2_loader::{Architecture, DictionaryCheckpoint};
use gpt2_model::hooks::Point;
use serde_json::{Value, json};
use std::path::Path;

/// Each folder of tests/data/features with its architecture.
const FOLDERS: [(&str, Architecture); 20] = [
    ("standard", Architecture::Standard),
    ("gated", Architecture::Gated),
    ("jumprelu", Architecture::JumpRelu),
    ("raw_input", Architecture::JumpRelu),
    ("topk", Architecture::TopK),
    ("topk_rescaled", Architecture::TopK),
    ("old", Architecture::TopK),
    ("demo", Architecture::TopK),
    ("abstopk", Architecture::AbsTopK),
    ("transcoder", Architecture::Transcoder),
    ("square_transcoder", Architecture::Transcoder),
    ("skip_transcoder", Architecture::SkipTranscoder),
    ("jumprelu_transcoder", Architecture::JumpReluTranscoder),
    ("jumprelu_skip_transcoder", Architecture::JumpReluSkipTranscoder),
    ("expected_average_only_in", Architecture::Standard),
    ("expected_average_only_in_topk", Architecture::TopK),
    ("constant_norm_rescale", Architecture::Standard),
    ("constant_norm_rescale_topk", Architecture::TopK),
    ("layer_norm", Architecture::Standard),
    ("layer_norm_topk", Architecture::TopK),
];

#[test]
fn features_and_what_is_rebuilt_are_those_of_saelens() -> Result {
    for (name, architecture) in FOLDERS {
        let folder = data("features").join(name);
        let checkpoint = DictionaryCheckpoint::open(&folder)?;
        assert_eq!(checkpoint.config().architecture, architecture, "{name}");
        let dictionary = checkpoint.load()?;
        let values = candle_core::safetensors::load(folder.join("values.safetensors"), &Device::Cpu)?;
        let code = dictionary.encode(&values["x"])?;
        assert_close(&format!("{name}: features"), &code.dense()?, &values["features"], 1e-6);
        let rebuilt = dictionary.decode(&code, &values["x"])?;
        assert_close(&format!("{name}: rebuilt"), &rebuilt, &values["output"], 1e-6);
        // One position at a time, in more dimensions: the same.
        let last = values["x"].narrow(0, 8, 1)?.unsqueeze(0)?;
        let alone = dictionary.encode(&last)?;
        let alone = dictionary.decode(&alone, &last)?.squeeze(0)?;
        assert!(relative_error(&alone, &rebuilt.narrow(0, 8, 1)?)? < 1e-6, "{name}");
    }
    Ok(())
}

#[test]
fn the_folders_are_all_tried() -> Result {
    let mut found: Vec<String> = vec![];
    for entry in std::fs::read_dir(data("features"))? {
        let entry = entry?;
        if entry.path().is_dir() {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    let mut tried = FOLDERS.map(|(name, _)| name);
    tried.sort_unstable();
    assert_eq!(found, tried);
    Ok(())
}

/// Rows of `W_dec` are summed where few features fire, and multiplied as a whole where many do.
#[test]
fn few_features_are_decoded_like_many() -> Result {
    let dictionary = DictionaryCheckpoint::open(&data("features").join("demo"))?.load()?;
    let x = Tensor::randn(0f32, 1.0, (1, 128), &Device::Cpu)?;
    let code = dictionary.encode(&x)?;
    assert_eq!(code.count_fired(), 4);
    let dense = code.dense()?.matmul(dictionary.w_dec())?;
    let mut sum = vec![0f64; 128];
    let rows = dictionary.w_dec().to_vec2::<f32>()?;
    for one in code.row(0) {
        for (sum, w) in sum.iter_mut().zip(&rows[one.feature as usize]) {
            *sum += f64::from(one.value) * f64::from(*w);
        }
    }
    assert_close("sums", &dense, &Tensor::new(vec![sum], &Device::Cpu)?, 1e-6);
    Ok(())
}

/// A copy of a folder with other settings and tensors.
fn changed(
    name: &str,
    settings: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut Tensors),
) -> Result<tempfile::TempDir> {
    let from = data("features").join(name);
    let to = tempfile::tempdir()?;
    let mut json: Value = serde_json::from_slice(&std::fs::read(from.join("cfg.json"))?)?;
    settings(&mut json);
    std::fs::write(to.path().join("cfg.json"), json.to_string())?;
    let mut found = read(&from.join("sae_weights.safetensors"))?;
    tensors(&mut found);
    std::fs::write(to.path().join("sae_weights.safetensors"), serialized(&found)?)?;
    Ok(to)
}

fn load(folder: &Path) -> std::result::Result<(), gpt2_loader::LoadError> {
    DictionaryCheckpoint::open(folder)?.load().map(drop)
}

#[test]
fn what_is_not_supported_is_refused_by_name() -> Result {
    let refused = |name: &str, setting: &str, value: Value, says: &[&str]| -> Result {
        let folder = changed(name, |json| json[setting] = value, |_| {})?;
        let error = load(folder.path()).expect_err(setting).to_string();
        assert_says(name, &error, says);
        Ok(())
    };
    refused("standard", "architecture", json!("temporal"), &["architecture is temporal", "jumprelu"])?;
    refused("standard", "activation_fn", json!("tanh-relu"), &["activation_fn is tanh-relu"])?;
    refused(
        "standard",
        "normalize_activations",
        json!("batch"),
        &["normalize_activations", "batch", "layer_norm"],
    )?;
    refused("standard", "d_in", json!(-1), &["d_in", "whole number"])?;
    refused("standard", "d_in", json!(13), &["mis-shaped", "W_enc", "[13, 40]"])?;
    refused("standard", "hook_head_index", json!(3), &["single head"])?;
    refused("topk", "k", json!(0), &["k is 0"])?;
    refused("topk", "k", Value::Null, &["k is missing"])?;
    refused("topk", "k", json!(41), &["k is 41", "1 to 40"])?;
    refused("standard", "metadata", json!({}), &["hook_name is missing"])?;
    refused("standard", "metadata", json!({ "hook_name": "blocks.1.hook_nothing" }), &["hook_nothing"])?;
    refused("jumprelu", "activation_fn", json!("topk"), &["activation_fn is topk", "jumprelu"])?;
    let centered = json!({ "center_writing_weights": true });
    refused("transcoder", "model_from_pretrained_kwargs", centered, &["center_writing_weights"])?;
    let folded = json!({ "hook_name": "blocks.1.attn.hook_z", "model_from_pretrained_kwargs": { "fold_value_biases": true } });
    refused("standard", "metadata", folded, &["fold_value_biases", "blocks.1.attn.hook_z"])?;
    refused("transcoder", "apply_b_dec_to_input", json!(true), &["apply_b_dec_to_input"])
}

#[test]
fn damaged_tensors_are_refused_by_name() -> Result {
    let refused = |name: &str, change: fn(&mut Tensors), says: &[&str]| -> Result {
        let folder = changed(name, |_| {}, change)?;
        let error = load(folder.path()).expect_err("damaged").to_string();
        assert_says(name, &error, says);
        Ok(())
    };
    refused("gated", |all| drop(all.remove("r_mag")), &["gated", "missing", "r_mag"])?;
    refused(
        "standard",
        |all| {
            let extra = all["b_enc"].clone();
            all.insert("threshold".into(), extra);
        },
        &["unexpected", "threshold"],
    )?;
    refused(
        "standard",
        |all| all.get_mut("W_dec").expect("there").data[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
        &["not finite", "W_dec: 1"],
    )?;
    refused(
        "standard",
        |all| {
            let factor = all["b_enc"].clone();
            all.insert("scaling_factor".into(), factor);
        },
        &["scaling_factor is not 1"],
    )?;
    refused("topk_rescaled", |all| all.get_mut("W_dec").expect("there").data[..48].fill(0), &["row 0 is 0"])
}

#[test]
fn folders_and_files_that_are_no_dictionary_are_refused() -> Result {
    let error = load("no/such/folder".as_ref()).expect_err("missing").to_string();
    assert_says("folder", &error, &["no such folder", "cfg.json"]);
    let folder = changed("standard", |_| {}, |_| {})?;
    let weights = folder.path().join("sae_weights.safetensors");
    let bytes = std::fs::read(&weights)?;
    std::fs::write(&weights, &bytes[..bytes.len() - 4])?;
    let error = load(folder.path()).expect_err("cut").to_string();
    assert_says("folder", &error, &["sae_weights.safetensors"]);
    std::fs::remove_file(&weights)?;
    let error = load(folder.path()).expect_err("missing").to_string();
    assert_says("folder", &error, &["no sae_weights.safetensors"]);
    std::fs::write(folder.path().join("cfg.json"), "[]")?;
    std::fs::write(&weights, bytes)?;
    let error = load(folder.path()).expect_err("a list").to_string();
    assert_says("folder", &error, &["cfg.json"]);
    Ok(())
}

/// Each unit of a feature's activation adds the feature's direction to the reconstruction.
#[test]
fn a_feature_adds_its_direction() -> Result {
    for name in ["standard", "topk_rescaled", "abstopk", "transcoder"] {
        let dictionary = DictionaryCheckpoint::open(&data("features").join(name))?.load()?;
        let x = Tensor::randn(0f32, 2.0, (1, dictionary.d()), &Device::Cpu)?;
        let code = dictionary.encode(&x)?;
        let mut sum = dictionary.decode(&code, &x)?.squeeze(0)?;
        for one in code.row(0) {
            sum = (sum - (dictionary.direction(one.feature)? * f64::from(one.value))?)?;
        }
        let b_dec = candle_core::safetensors::load(
            data("features").join(name).join("sae_weights.safetensors"),
            &Device::Cpu,
        )?;
        let apart = (sum - &b_dec["b_dec"])?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(apart < 1e-4, "{name}: {apart}");
    }
    Ok(())
}

#[test]
fn doubts_are_said() -> Result {
    let remarks = |name: &str| {
        Ok::<_, gpt2_loader::LoadError>(
            DictionaryCheckpoint::open(&data("features").join(name))?.config().remarks.concat(),
        )
    };
    assert_says(
        "folded",
        &remarks("expected_average_only_in")?,
        &["expected_average_only_in", "another scale"],
    );
    assert_says("normalized", &remarks("transcoder")?, &["ln2.hook_normalized", "ln2.hook_out"]);
    assert_eq!(remarks("standard")?, "");
    Ok(())
}

#[test]
fn a_centered_dictionary_ignores_the_mean() -> Result {
    let kwargs = json!({ "model_name": "x", "hook_name": "blocks.1.hook_resid_pre",
        "model_from_pretrained_kwargs": { "center_writing_weights": true } });
    let folder = changed("standard", |json| json["metadata"] = kwargs, |_| {})?;
    let checkpoint = DictionaryCheckpoint::open(folder.path())?;
    assert_eq!(checkpoint.config().hook, Point::ResidPre(1));
    let dictionary = checkpoint.load()?;
    let x = Tensor::randn(0f32, 1.0, (3, 12), &Device::Cpu)?;
    let x = x.broadcast_sub(&x.mean_keepdim(1)?)?;
    let moved = (&x + 5.0)?;
    let code = dictionary.encode(&x)?;
    let code_moved = dictionary.encode(&moved)?;
    assert_close("features", &code_moved.dense()?, &code.dense()?, 1e-5);
    let rebuilt = (dictionary.decode(&code, &x)? + 5.0)?;
    assert_close("rebuilt", &dictionary.decode(&code_moved, &moved)?, &rebuilt, 1e-5);
    Ok(())
}
