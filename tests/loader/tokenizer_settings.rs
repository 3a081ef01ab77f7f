//! What is said beside a vocabulary gives the ids that transformers' `AutoTokenizer` gives; other kinds of tokenizers are refused.

use super::{open_tokenizer as open, with_tokenizer};
use crate::common::{Result, data};
use crate::folder::{Folder, assert_says};
use gpt2_loader::{GgufType, LoadError, SaveOptions, Source, Tokenizer, save, save_gguf};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The reference that `scripts/make_tokenizer_reference.py` writes.
#[derive(Deserialize)]
struct Reference {
    texts: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    files: Map<String, Value>,
    tokenizer: Option<Map<String, Value>>,
    ids: Vec<Vec<u32>>,
}

fn reference() -> Result<Reference> {
    Ok(serde_json::from_slice(&std::fs::read(data("tokenizers").join("cases.json"))?)?)
}

fn base() -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(data("tokenizers").join("tokenizer.json"))?)?)
}

/// A folder with a model, the reference's vocabulary under these names, and no settings.
fn with_vocabulary(vocab: &str, merges: &str) -> Result<Folder> {
    let folder = Folder::of("gelu")?;
    for (from, to) in [("vocab.json", vocab), ("merges.txt", merges)] {
        std::fs::copy(data("tokenizers").join(from), folder.file(to))?;
    }
    Ok(folder)
}

/// A folder as the case says.
fn folder(case: &Case) -> Result<Folder> {
    let folder = match &case.tokenizer {
        None => with_vocabulary("vocab.json", "merges.txt")?,
        Some(parts) => {
            let folder = Folder::of("gelu")?;
            let mut file = base()?;
            parts.iter().for_each(|(name, part)| file[name] = part.clone());
            folder.write("tokenizer.json", file.to_string())?;
            folder
        }
    };
    for (name, content) in &case.files {
        folder.write(name, content.to_string())?;
    }
    Ok(folder)
}

#[test]
fn settings_give_the_ids_of_auto_tokenizer_and_a_saved_tokenizer_keeps_them() -> Result {
    let Reference { texts, cases } = reference()?;
    assert!(cases.len() > 150, "{}", cases.len());
    let mut wrong = vec![];
    for case in &cases {
        let folder = folder(case)?;
        let tokenizer = open(&folder, 31)?;
        let again = Folder::empty()?;
        save(again.path(), &folder.load()?, Some(&tokenizer), SaveOptions::default())?;
        let again = open(&again, 31)?;
        for (text, expected) in texts.iter().zip(&case.ids) {
            for (how, tokenizer) in [("", &tokenizer), ("saved: ", &again)] {
                let ids = tokenizer.encode(text)?;
                if ids != *expected {
                    wrong.push(format!("{how}{}: {text:?}: {ids:?}, expected {expected:?}", case.name));
                }
            }
            let offsets = tokenizer.offsets(text)?;
            assert_eq!(offsets.len(), expected.len(), "{}: {text:?}", case.name);
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    Ok(())
}

#[test]
fn what_is_not_used_is_named_in_one_note() -> Result {
    let note = |config: Value, tokenizer: Value| -> Result<Option<String>> {
        let folder = with_tokenizer(&tokenizer)?;
        folder.write("tokenizer_config.json", config.to_string())?;
        Ok(open(&folder, 31)?.note().map(str::to_owned))
    };
    let part = |name: &str, part: Value| -> Result<Value> {
        let mut file = base()?;
        file[name] = part;
        Ok(file)
    };
    let gpt2 =
        json!({"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024, "chat_template": "{{ x }}"});
    assert_eq!(note(gpt2.clone(), base()?)?, None);
    let fast = json!({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true});
    assert_eq!(note(fast.clone(), part("normalizer", json!({"type": "NFC"}))?)?, None);
    for (config, file, says) in [
        (
            gpt2.clone(),
            part("normalizer", json!({"type": "NFC"}))?,
            &["tokenizer.json: normalizer is not used"][..],
        ),
        (
            gpt2.clone(),
            part(
                "pre_tokenizer",
                json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
                 {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}]}),
            )?,
            &["pre_tokenizer is not used", "PreTrainedTokenizerFast"],
        ),
        (
            gpt2,
            part(
                "pre_tokenizer",
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}),
            )?,
            &["add_prefix_space is not used"],
        ),
        (
            json!({"auto_map": {"AutoTokenizer": ["a.B", null]}, "fast_tokenizer_files": ["tokenizer.4.json"]}),
            base()?,
            &["tokenizer_config.json: auto_map and fast_tokenizer_files are not used"],
        ),
        (
            json!({"tokenizer_class": "RobertaTokenizer"}),
            base()?,
            &["tokenizer_class \"RobertaTokenizer\" is not used"],
        ),
        (
            json!({"added_tokens_decoder": {"999": {"content": "<T>"}}}),
            base()?,
            &["\"<T>\" has id 277", "other ids"],
        ),
    ] {
        let found = note(config, file)?.ok_or("a note")?;
        assert_says("note", &found, says);
        assert!(!found.contains('\n'), "{found}");
    }
    Ok(())
}

#[test]
fn settings_without_meaning_are_refused_by_name() -> Result {
    for (file, content, says) in [
        ("tokenizer_config.json", json!([1]), "expected a map"),
        (
            "tokenizer_config.json",
            json!({"add_prefix_space": "true"}),
            "add_prefix_space is \"true\", expected true or false",
        ),
        ("tokenizer_config.json", json!({"tokenizer_class": 3}), "tokenizer_class is 3, expected a name"),
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": []}),
            "added_tokens_decoder is [], expected an object",
        ),
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": {"x": {"content": "a"}}}),
            "x: expected a token id",
        ),
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": {"300": {"lstrip": true}}}),
            "300: a token without content",
        ),
        ("tokenizer_config.json", json!({"pad_token": 4}), "pad_token: 4 is no token"),
        ("added_tokens.json", json!({"<T>": "x"}), "\"<T>\" has the id \"x\", expected a token id"),
        ("special_tokens_map.json", json!({"additional_special_tokens": "<T>"}), "expected a list of tokens"),
    ] {
        let folder = with_vocabulary("vocab.json", "merges.txt")?;
        folder.write(file, content.to_string())?;
        let error = open(&folder, 31).expect_err(says);
        assert!(matches!(error, LoadError::OtherTokenizer { .. }), "{error:?}");
        let message = error.to_string();
        assert_says(file, &message, &[&folder.at(file), says, "give token ids instead of text"]);
        assert!(!message.contains("fetch"), "{message}");
    }
    let folder = with_vocabulary("vocab.json", "merges.txt")?;
    let many: Map<String, Value> = (0..70_000).map(|id| (format!("<{id}>"), id.into())).collect();
    folder.write("added_tokens.json", Value::Object(many).to_string())?;
    assert_says(
        "many",
        &open(&folder, 31).expect_err("many").to_string(),
        &["70001 tokens", "at most 65536"],
    );
    Ok(())
}

#[test]
fn openais_names_stand_for_the_same_vocabulary() -> Result {
    let text = "Hi there, the cat";
    let expected = open(&with_vocabulary("vocab.json", "merges.txt")?, 31)?.encode(text)?;
    let folder = with_vocabulary("encoder.json", "vocab.bpe")?;
    for size in [31, 50257] {
        assert_eq!(open(&folder, size)?.encode(text)?, expected);
    }
    std::fs::remove_file(folder.file("vocab.bpe"))?;
    assert_says("half", &folder.refusal("half"), &["vocab.bpe is missing"]);
    Ok(())
}

#[test]
fn another_kind_of_tokenizer_never_gets_gpt2s_vocabulary() -> Result {
    for (file, says) in [
        ("spiece.model", "SentencePiece"),
        ("tokenizer.model", "SentencePiece"),
        ("source.spm", "SentencePiece"),
        ("vocab.txt", "WordPiece"),
        ("tekken.json", "tiktoken"),
        ("qwen.tiktoken", "tiktoken"),
        ("bpe.codes", "BPE over characters"),
    ] {
        let folder = Folder::of("gelu")?;
        folder.write(file, "x")?;
        let error = open(&folder, 50257).expect_err(file);
        assert_says(file, &error.to_string(), &[&folder.at(file), says, "GPT-2's kind", "token ids"]);
        // The weights are read all the same.
        folder.load()?;
    }
    for class in ["BertTokenizer", "T5TokenizerFast", "LlamaTokenizer", "RobertaTokenizer"] {
        for own in ["tokenizer_config.json", "config.json"] {
            for has_vocabulary in [false, true] {
                let folder = if has_vocabulary {
                    with_vocabulary("vocab.json", "merges.txt")?
                } else {
                    Folder::of("gelu")?
                };
                if own == "config.json" {
                    folder.set_config("tokenizer_class", class.into())?;
                } else {
                    folder.write(own, json!({"tokenizer_class": class}).to_string())?;
                }
                let message = open(&folder, 50257).expect_err(class).to_string();
                let name = class.trim_end_matches("Fast");
                assert_says(class, &message, &[&format!("tokenizer_class is {name:?}"), "token ids"]);
                assert!(!message.contains("fetch"), "{message}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_tokenizer_json_of_another_kind_is_named() -> Result {
    let model = |model: Value| json!({"version": "1.0", "added_tokens": [], "model": model});
    for (kind, model) in [
        ("Unigram", json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]})),
        ("Unigram", json!({"unk_id": 0, "vocab": [["a", -1.0]]})),
        ("WordPiece", json!({"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"a": 0}})),
        ("WordPiece", json!({"max_input_chars_per_word": 100, "unk_token": "[UNK]", "vocab": {"a": 0}})),
        ("WordLevel", json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"a": 0}})),
    ]
    .map(|(kind, of)| (kind, model(of)))
    {
        let folder = with_tokenizer(&model)?;
        let message = open(&folder, 31).expect_err(kind).to_string();
        assert_says(
            kind,
            &message,
            &[&folder.at("tokenizer.json"), &format!("of the kind {kind}"), "byte-level BPE"],
        );
        assert!(!message.contains("fetch") && !message.contains("merges"), "{message}");
    }
    Ok(())
}

/// The ids are `AutoTokenizer`'s for GPT-2's own files.
#[test]
fn the_built_in_vocabulary_takes_settings_too() -> Result {
    let folder = Folder::of("gelu")?;
    folder.write(
        "tokenizer_config.json",
        r#"{"add_prefix_space": true, "add_bos_token": true, "pad_token": "<P>"}"#,
    )?;
    let tokenizer = open(&folder, 50257)?;
    assert_eq!(tokenizer.encode("Hi there")?, [50256, 15902, 612]);
    assert_eq!(tokenizer.encode("Hi there<P>")?, [50256, 15902, 612, 50257]);
    folder.write("tokenizer_config.json", r#"{"add_prefix_space": false, "model_max_length": 1024}"#)?;
    assert_eq!(open(&folder, 50257)?.encode("Hi there")?, [17250, 612]);
    Ok(())
}

#[test]
fn the_tokenizer_that_transformers_writes_goes_into_a_gguf_file() -> Result {
    let file: Value = serde_json::from_slice(&std::fs::read(data("tokenizers").join("written.json"))?)?;
    let folder = Folder::of("gelu")?;
    folder.write("tokenizer.json", file.to_string())?;
    let tokenizer = open(&folder, 31)?;
    let demo = Source::directory(data("../../models/tiny-shakespeare")).open()?;
    let path = folder.file("demo.gguf");
    save_gguf(&path, &gpt2_loader::Checkpoint::open(&demo)?, &tokenizer, GgufType::F16, &mut |_, _, _| {
        Ok(())
    })?;
    let again = Tokenizer::open(&Source::Gguf(path).open()?, 1024)?;
    assert_eq!(again.encode("Hi there")?, tokenizer.encode("Hi there")?);
    Ok(())
}
