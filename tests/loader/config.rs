//! Paths that are not folders, and damage to config.json: each has its own message.

use crate::common::Result;
use crate::folder::{Folder, assert_says};
use gpt2_loader::{LoadError, Source};
use serde_json::{Value, json};

#[test]
fn a_folder_that_is_not_there() -> Result {
    let folder = Folder::empty()?;
    let path = folder.file("nowhere");
    let error = Source::directory(&path).open().expect_err("nowhere");
    assert!(matches!(error, LoadError::NotFound { .. }), "{error:?}");
    assert_says(
        "nowhere",
        &error.to_string(),
        &[&path.display().to_string(), "no such directory", "config.json"],
    );
    Ok(())
}

#[test]
fn a_file_where_a_folder_is_needed() -> Result {
    let folder = Folder::of("odd")?;
    let path = folder.file("model.safetensors");
    let error = Source::directory(&path).open().expect_err("a file");
    assert!(matches!(error, LoadError::NotADirectory { .. }), "{error:?}");
    assert_says("a file", &error.to_string(), &[&path.display().to_string(), "is a file", "name the folder"]);
    Ok(())
}

#[test]
fn a_folder_without_a_config_or_weights() -> Result {
    for (file, parts) in [
        ("config.json", ["no config.json", "save_pretrained"]),
        ("model.safetensors", ["model.safetensors", "pytorch_model.bin"]),
    ] {
        let folder = Folder::of("odd")?;
        std::fs::remove_file(folder.file(file))?;
        let error = folder.load().expect_err(file);
        let is_config = file == "config.json";
        assert_eq!(matches!(error, LoadError::NoConfig { .. }), is_config, "{error:?}");
        assert_eq!(matches!(error, LoadError::NoWeights { .. }), !is_config, "{error:?}");
        assert_says(file, &error.to_string(), &[&folder.dir(), parts[0], parts[1]]);
    }
    Ok(())
}

#[test]
#[cfg(unix)]
fn a_link_that_leads_nowhere_is_named() -> Result {
    for name in ["config.json", "model.safetensors"] {
        let folder = Folder::of("odd")?;
        std::fs::remove_file(folder.file(name))?;
        std::os::unix::fs::symlink(folder.file("gone"), folder.file(name))?;
        assert_says(name, &folder.refusal(name), &[&folder.at(name), "os error 2"]);
    }
    Ok(())
}

#[test]
fn a_config_that_is_no_json_or_no_config() -> Result {
    let whole = std::fs::read(crate::common::data("odd").join("config.json"))?;
    for (what, content) in [
        ("empty", &b""[..]),
        ("truncated", &whole[..whole.len() / 2]),
        ("one byte short", &whole[..whole.len() - 3]),
        ("a web page", b"<!DOCTYPE html><html></html>"),
        ("binary", b"\x80\x02\xff\xfe\0\0"),
        ("a number", b"7"),
        ("text behind it", b"{} {}"),
    ] {
        let folder = Folder::of("odd")?;
        folder.write("config.json", content)?;
        let error = folder.load().expect_err(what);
        // Another kind of file is named as such; there is no line to name in it.
        let is_other = ["empty", "a web page", "binary"].contains(&what);
        assert_eq!(matches!(error, LoadError::OtherFile { .. }), is_other, "{what}: {error:?}");
        assert_eq!(matches!(error, LoadError::Json { .. }), !is_other, "{what}: {error:?}");
        let path = folder.at("config.json");
        let place = if is_other { "is " } else { "at line" };
        assert_says(what, &error.to_string(), &[&path, place, "expected a GPT-2 config"]);
    }
    Ok(())
}

#[test]
fn a_list_is_no_config() -> Result {
    for content in ["[]", "[101, 77, 48, 2, 3]"] {
        let folder = Folder::of("odd")?;
        folder.write("config.json", content)?;
        assert_says(content, &folder.refusal(content), &["config.json: a list; expected a GPT-2 config"]);
    }
    Ok(())
}

#[test]
fn every_unsupported_or_impossible_value_is_refused_by_name() -> Result {
    let cases: [(&str, Value, &[&str]); 18] = [
        ("n_head", json!(5), &["n_embd (48)", "n_head (5)"]),
        ("n_head", json!(0), &["n_head is 0", "expected 1 to"]),
        ("n_layer", json!(0), &["n_layer is 0"]),
        ("n_embd", json!(0), &["n_embd is 0"]),
        ("n_positions", json!(0), &["n_positions is 0"]),
        ("vocab_size", json!(0), &["vocab_size is 0"]),
        ("n_inner", json!(0), &["n_inner is 0"]),
        ("n_embd", json!(u64::MAX), &["n_embd is", "expected 1 to"]),
        ("n_positions", json!(u64::MAX), &["n_positions is", "expected 1 to"]),
        ("vocab_size", json!(u64::MAX), &["vocab_size is"]),
        ("n_layer", json!(u64::MAX), &["n_layer is"]),
        ("attn_pdrop", json!(1.5), &["attn_pdrop is 1.5", "below 1"]),
        ("layer_norm_epsilon", json!(-1.0), &["layer_norm_epsilon is -1"]),
        ("multi_query", json!(true), &["multi_query = true is not supported in model_type \"gpt2\""]),
        ("model_type", json!("bert"), &["model_type is \"bert\"", "only \"gpt2\" and \"gpt_bigcode\""]),
        ("quantization_config", json!({"bits": 4}), &["quantization_config", "not supported", "f16"]),
        ("n_layer", json!(-3), &["-3", "n_layer"]),
        ("activation_function", json!("mish"), &["activation_function", "mish", "gelu_new"]),
    ];
    let mut failures = vec![];
    for (field, value, parts) in cases {
        let folder = Folder::of("odd")?;
        folder.set_config(field, value.clone())?;
        let message = folder.refusal(field);
        let path = folder.at("config.json");
        for part in parts.iter().chain(&[path.as_str()]).filter(|part| !message.contains(**part)) {
            failures.push(format!("{field} = {value}: {part:?} is not in: {message}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// transformers has several names for one function.
#[test]
fn other_names_of_the_activations_are_read() -> Result {
    for (given, own) in [
        ("gelu_fast", "gelu_new"),
        ("gelu_accurate", "gelu_new"),
        ("gelu_python_tanh", "gelu_new"),
        ("gelu_python", "gelu"),
        ("swish", "silu"),
    ] {
        let folder = Folder::of("odd")?;
        folder.set_config("activation_function", json!(given))?;
        let config = folder.open()?.config().clone();
        assert_eq!(serde_json::to_value(config.activation_function)?, json!(own), "{given}");
    }
    Ok(())
}

#[test]
fn sizes_beyond_reason_are_refused_by_name_and_others_by_the_file() -> Result {
    // In a process that may fail, within bounds of memory: cli::hostile.
    for (field, beyond, other) in [
        ("n_positions", 900_000_003, 16_000),
        ("vocab_size", 4_000_000_000u64, 16_000_000),
        ("n_embd", 900_000_003, 60_000),
        ("n_inner", 900_000_003, 200_000),
        ("n_layer", 4_000_000_000, 1000),
    ] {
        let folder = Folder::of("odd")?;
        folder.set_config(field, json!(beyond))?;
        assert_says(
            field,
            &folder.refusal(field),
            &["config.json", &format!("{field} is {beyond}"), "expected 1 to"],
        );
        folder.set_config(field, json!(other))?;
        assert_says(field, &folder.refusal(field), &["do not fit config.json"]);
    }
    Ok(())
}

#[test]
fn what_gpt_bigcode_does_not_have_is_refused_by_name() -> Result {
    for field in ["add_cross_attention", "scale_attn_by_inverse_layer_idx"] {
        let folder = Folder::of("bigcode")?;
        folder.set_config(field, json!(true))?;
        let expected = format!("{field} = true is not supported in model_type \"gpt_bigcode\"");
        assert_says(field, &folder.refusal(field), &["config.json", &expected]);
    }
    Ok(())
}

/// Each would read the other's weights, all of which have the same names.
#[test]
fn a_checkpoint_of_the_other_type_is_refused_by_its_shapes() -> Result {
    for (case, model_type) in [("odd", "gpt_bigcode"), ("bigcode", "gpt2"), ("bigcode_heads", "gpt2")] {
        let folder = Folder::of(case)?;
        for field in ["multi_query", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"] {
            folder.set_config(field, Value::Null)?;
        }
        folder.set_config("model_type", json!(model_type))?;
        assert_says(case, &folder.refusal(case), &["mis-shaped", "c_attn.weight"]);
    }
    Ok(())
}
