//! `generation_config.json`: its end tokens rank above config.json's, as in transformers, and the rest of it is named.

use crate::common::{Result, data};
use crate::folder::{Folder, assert_says};
use gpt2_loader::{Checkpoint, Files, GenerationConfig, LoadError, Source};
use gpt2_model::config::TokenIds;
use serde_json::{Value, json};

/// The end tokens of a model whose config.json says 17.
fn ends(file: Option<&Value>) -> std::result::Result<Vec<u32>, Box<dyn std::error::Error>> {
    let folder = Folder::of("gelu")?;
    folder.set_config("eos_token_id", 17.into())?;
    if let Some(file) = file {
        folder.write("generation_config.json", file.to_string())?;
    }
    let found = folder.open()?.config().eos_token_id.clone();
    Ok(found.as_ref().map_or(&[][..], TokenIds::as_slice).to_vec())
}

/// Transformers 5.23 stops at these, for the same files.
#[test]
fn the_end_tokens_are_those_that_transformers_stops_at() -> Result {
    for (file, expected) in [
        (None, &[17][..]),
        (Some(json!({"eos_token_id": [1, 9]})), &[1, 9]),
        (Some(json!({"eos_token_id": 2})), &[2]),
        (Some(json!({"eos_token_id": [-1, 9]})), &[9]),
        (Some(json!({"eos_token_id": -1})), &[]),
        (Some(json!({"eos_token_id": []})), &[]),
        (Some(json!({"eos_token_id": null})), &[]),
        (Some(json!({})), &[]),
        (Some(json!({"_from_model_config": true, "max_new_tokens": 3})), &[]),
    ] {
        assert_eq!(ends(file.as_ref())?, expected, "{file:?}");
    }
    Ok(())
}

/// -1 in config.json stands for no token, as some programs write it; transformers compares ids with it, which no id equals.
#[test]
fn a_negative_end_token_in_the_config_ends_nothing() -> Result {
    let folder = Folder::of("gelu")?;
    for (value, expected) in
        [(json!(-1), &[][..]), (json!([-1, 9]), &[9]), (json!([-1]), &[]), (json!([-5, 2, 3]), &[2, 3])]
    {
        folder.set_config("eos_token_id", value.clone())?;
        folder.set_config("bos_token_id", json!(-1))?;
        let config = folder.open()?.config().clone();
        assert_eq!(config.eos_token_id.as_ref().map_or(&[][..], TokenIds::as_slice), expected, "{value}");
        assert_eq!(config.bos_token_id, None);
    }
    // What else is wrong is told with its field, as without it.
    folder.set_config("n_layer", json!("two"))?;
    let error = folder.open().expect_err("no number").to_string();
    assert_says("field", &error, &[&folder.at("config.json"), "n_layer", "GPT-2 config"]);
    Ok(())
}

#[test]
fn a_file_without_meaning_is_refused_by_name() -> Result {
    for (content, says) in [
        ("[1]", "expected a map"),
        (
            "{\"eos_token_id\": \"17\"}",
            "eos_token_id is \"17\", expected a token id, a list of them, or null",
        ),
        ("{\"eos_token_id\": [[17]]}", "eos_token_id is [17]"),
        ("{\"eos_token_id\": true}", "eos_token_id is true"),
        ("{\"eos_token_id\": 1", "EOF"),
        ("", "is empty"),
    ] {
        let folder = Folder::of("gelu")?;
        folder.write("generation_config.json", content)?;
        let error = folder.open().expect_err(content);
        let is_empty = content.is_empty() && matches!(error, LoadError::OtherFile { .. });
        assert!(is_empty || matches!(error, LoadError::Json { .. }), "{error:?}");
        assert_says(
            content,
            &error.to_string(),
            &[&folder.at("generation_config.json"), says, "generation config"],
        );
    }
    Ok(())
}

#[test]
fn what_is_not_used_is_named() -> Result {
    let note = |file: Value| -> Result<Option<String>> {
        let folder = Folder::of("gelu")?;
        folder.write("generation_config.json", file.to_string())?;
        let found = GenerationConfig::open(&Source::directory(folder.path()).open()?)?;
        Ok(found.ok_or("a file")?.note())
    };
    let quiet = json!({"_from_model_config": true, "bos_token_id": 0, "eos_token_id": [1], "pad_token_id": 2, "use_cache": true,
                       "transformers_version": "5.23.0", "temperature": null, "output_attentions": false});
    assert_eq!(note(quiet)?, None);
    let loud = note(json!({"eos_token_id": 1, "max_new_tokens": 3, "do_sample": true, "temperature": 0.5}))?;
    let says =
        ["generation_config.json: only its end tokens are used, not ", "max_new_tokens 3", "temperature 0.5"];
    assert_says("loud", &loud.ok_or("a note")?, &says);
    Ok(())
}

#[test]
fn files_in_memory_have_it_too() -> Result {
    let folder = Folder::of("gelu")?;
    folder.write("generation_config.json", "{\"eos_token_id\": [3, 4]}")?;
    folder.write("tokenizer_config.json", "{\"add_prefix_space\": true}")?;
    for name in ["vocab.json", "merges.txt"] {
        std::fs::copy(data("tokenizers").join(name), folder.file(name))?;
    }
    let on_disk = Source::directory(folder.path()).open()?;
    let contents = on_disk.contents().ok_or("one file of weights")?;
    let contents = contents.into_iter().map(|(name, bytes)| (name, bytes.to_vec())).collect();
    let in_memory = Files::in_memory("dropped", contents)?;
    for files in [&on_disk, &in_memory] {
        assert_eq!(Checkpoint::open(files)?.config().eos_token_id, Some(TokenIds::Many(vec![3, 4])));
        let tokenizer = gpt2_loader::Tokenizer::open(files, 31)?;
        assert_eq!(tokenizer.encode("Hi there")?, tokenizer.encode(" Hi there")?);
    }
    let read = on_disk.paths()?;
    for name in ["generation_config.json", "tokenizer_config.json"] {
        assert!(read.contains(&folder.file(name)), "{name}");
    }
    Ok(())
}
