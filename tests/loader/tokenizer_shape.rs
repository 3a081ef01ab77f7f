//! Files on which the crate tokenizers panics, fills memory or never ends: the loader refuses them quickly and by name.

use super::{open_tokenizer, with_tokenizer};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use gpt2_loader::{LoadError, Tokenizer};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A tokenizer.json of a byte-level BPE, as transformers writes it.
pub(super) fn whole() -> Result<Value> {
    Ok(serde_json::from_str(&Tokenizer::train(&"the cat sat on the mat\n".repeat(20), 270)?.to_json()?)?)
}

fn open(folder: &Folder) -> std::result::Result<Tokenizer, LoadError> {
    open_tokenizer(folder, 31)
}

/// Opens `file`, which must be refused quickly; returns the message.
pub(super) fn refusal(what: &str, file: &Value) -> Result<String> {
    let folder = with_tokenizer(file)?;
    let start = Instant::now();
    let Err(error) = open(&folder) else { return Err(format!("{what}: opened").into()) };
    assert!(start.elapsed() < Duration::from_secs(2), "{what}: {:?}", start.elapsed());
    assert!(
        matches!(error, LoadError::Tokenizer { .. } | LoadError::OtherTokenizer { .. }),
        "{what}: {error:?}"
    );
    let path = folder.at("tokenizer.json");
    assert_says(what, &error.to_string(), &[&path, "give token ids instead of text"]);
    Ok(error.to_string())
}

pub(super) fn part(name: &str, value: Value) -> Result<Value> {
    let mut file = whole()?;
    file[name] = value;
    Ok(file)
}

pub(super) fn model(changes: &[(&str, Value)]) -> Result<Value> {
    let mut file = whole()?;
    for (name, value) in changes {
        file["model"][*name] = value.clone();
    }
    Ok(file)
}

pub(super) fn template(single: Value, special_tokens: Value) -> Value {
    json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special_tokens})
}

pub(super) fn sequence(pretokenizers: &[Value]) -> Result<Value> {
    part("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": pretokenizers}))
}

pub(super) fn split(pattern: Value) -> Value {
    json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
}

pub(super) fn added(content: &str) -> Value {
    json!({"id": 270, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": false})
}

#[test]
fn what_makes_the_crate_tokenizers_panic_is_refused_by_name() -> Result {
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let unknown = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let mut strip = added("<s>");
    strip["rstrip"] = json!(true);
    let mut space = added("  ");
    space["lstrip"] = json!(true);
    let mut accent = added("\u{301}");
    accent["normalized"] = json!(true);
    let mut nothing = part("normalizer", json!({"type": "StripAccents"}))?;
    nothing["added_tokens"] = json!([accent]);
    for (what, file, says) in [
        (
            "a decoder that cuts tokens",
            part("decoder", json!({"type": "Strip", "content": "a", "start": 1, "stop": 9}))?,
            ["decoder", "Strip", "ByteLevel"],
        ),
        (
            "Replace of nothing",
            part("normalizer", json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y"}))?,
            ["normalizer", "Replace", "NFC"],
        ),
        (
            "Precompiled, short",
            part("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}))?,
            ["normalizer", "Precompiled", "NFC"],
        ),
        (
            "Strip",
            part("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true}))?,
            ["normalizer", "Strip", "NFC"],
        ),
        (
            "FixedLength of nothing",
            part("pre_tokenizer", json!({"type": "FixedLength", "length": 0}))?,
            ["pre_tokenizer", "FixedLength", "ByteLevel"],
        ),
        (
            "a template with a token that is not there",
            part("post_processor", template(json!([unknown, text]), json!({})))?,
            ["post_processor", "\"<s>\"", "special_tokens"],
        ),
        (
            "a template with a second text",
            part("post_processor", template(json!([{"Sequence": {"id": "B", "type_id": 0}}]), json!({})))?,
            ["post_processor", "single", "text A"],
        ),
        (
            "a prefix longer than a merge's second token",
            model(&[("continuing_subword_prefix", json!("######"))])?,
            ["model", "continuing_subword_prefix", "null"],
        ),
        (
            "tokens that strip each other",
            part("added_tokens", json!([strip, space]))?,
            ["added_tokens", "\"  \"", "white space"],
        ),
        ("a token that the normalizer empties", nothing, ["added_tokens", "normalized", "empty"]),
    ] {
        assert_says(what, &refusal(what, &file)?, &says);
    }
    Ok(())
}

#[test]
fn what_asks_for_memory_or_time_without_end_is_refused_by_name() -> Result {
    let replace = |n: usize| json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(n)});
    let long = "x".repeat(5000);
    // The first four bytes are the length of what follows.
    let huge = json!({"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="});
    let nested =
        (0..60).fold(json!({"type": "NFC"}), |inner, _| json!({"type": "Sequence", "normalizers": [inner]}));
    let beside = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Sequence", "normalizers": []}]});
    for (what, file, says) in [
        ("Precompiled of 4 GB", part("normalizer", huge)?, ["normalizer", "Precompiled"]),
        (
            "Replace after Replace",
            part(
                "normalizer",
                json!({"type": "Sequence", "normalizers": [replace(99), replace(99), replace(99)]}),
            )?,
            ["normalizer", "Replace"],
        ),
        ("a Sequence in a Sequence", part("normalizer", nested)?, ["normalizer", "Sequence in a Sequence"]),
        (
            "a Sequence beside another part",
            part("normalizer", beside)?,
            ["normalizer", "Sequence in a Sequence"],
        ),
        ("many parts", sequence(&vec![json!({"type": "Whitespace"}); 99])?, ["pre_tokenizer", "99 parts"]),
        (
            "letters of letters",
            sequence(&vec![whole()?["pre_tokenizer"].clone(); 2])?,
            ["pre_tokenizer", "more than one ByteLevel"],
        ),
        (
            "a pattern that backtracks",
            part("pre_tokenizer", split(json!({"Regex": "(a|a)*\\1$"})))?,
            ["pre_tokenizer", "(a|a)*"],
        ),
        (
            "a split at nothing",
            part("pre_tokenizer", split(json!({"String": ""})))?,
            ["pre_tokenizer", "expected 1 to 64"],
        ),
        (
            "an id of 4 billion",
            model(&[("vocab", json!({"a": 4_000_000_000_u32})), ("merges", json!([]))])?,
            ["model.vocab", "4000000000"],
        ),
        (
            "one id twice",
            model(&[("vocab", json!({"a": 0, "aa": 0})), ("merges", json!([]))])?,
            ["model.vocab", "id 0"],
        ),
        (
            "a long token",
            model(&[("vocab", json!({long: 0})), ("merges", json!([]))])?,
            ["model.vocab", "5000 bytes"],
        ),
        ("dice", model(&[("dropout", json!(0.5))])?, ["dropout", "other ids"]),
        ("another model", model(&[("type", json!("Unigram"))])?, ["Unigram", "byte-level BPE"]),
        (
            "an unknown token that is unknown",
            model(&[("unk_token", json!("<unk>"))])?,
            ["unk_token", "\"<unk>\""],
        ),
        ("an empty added token", part("added_tokens", json!([added("")]))?, ["added_tokens", "empty"]),
    ] {
        assert_says(what, &refusal(what, &file)?, &says);
    }
    Ok(())
}

#[test]
fn what_gpt2s_family_uses_is_opened_and_gives_the_ids_of_the_plain_file() -> Result {
    let plain = whole()?;
    let plain_ids = |text: &str| -> Result<Vec<u32>> { ids(&plain, text) };
    let byte_level = plain["pre_tokenizer"].clone();
    let pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let mut letters_only = byte_level.clone();
    letters_only["use_regex"] = json!(false);
    let split = split(json!({"Regex": pattern}));
    let mut legacy = plain.clone();
    legacy["model"].as_object_mut().ok_or("object")?.remove("type");
    legacy["pre_tokenizer"].as_object_mut().ok_or("object")?.remove("use_regex");
    let merges: Vec<String> = plain["model"]["merges"]
        .as_array()
        .ok_or("merges")?
        .iter()
        .map(|pair| {
            format!("{} {}", pair[0].as_str().unwrap_or_default(), pair[1].as_str().unwrap_or_default())
        })
        .collect();
    legacy["model"]["merges"] = json!(merges);
    let mut empty = plain.clone();
    empty["model"]["continuing_subword_prefix"] = json!("");
    empty["model"]["end_of_word_suffix"] = json!("");
    empty["model"]["unk_token"] = json!("<|endoftext|>");
    for (what, file) in [
        ("NFC", part("normalizer", json!({"type": "NFC"}))?),
        ("merges as lines, no type", legacy),
        ("empty prefix, unk_token", empty),
        ("GPT-2's pattern beside the letters", sequence(&[split, letters_only])?),
        ("no post-processor", part("post_processor", Value::Null)?),
        ("no added tokens' entry", part("added_tokens", json!([]))?),
    ] {
        for text in ["the cat sat", " the  mat\n", "— 1234 🦀'll"] {
            assert_eq!(
                ids(&file, text).map_err(|e| format!("{what}: {e}"))?,
                plain_ids(text)?,
                "{what}: {text:?}"
            );
        }
    }
    let special = json!({"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}});
    let pieces = json!([{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let begun = ids(&part("post_processor", template(pieces, special))?, "the cat")?;
    assert_eq!((begun[0], &begun[1..]), (0, &plain_ids("the cat")?[..]));
    let mut spaced = plain.clone();
    spaced["pre_tokenizer"]["add_prefix_space"] = json!(true);
    assert_eq!(ids(&spaced, "the cat")?, plain_ids(" the cat")?);
    Ok(())
}

fn ids(file: &Value, text: &str) -> Result<Vec<u32>> {
    Ok(open(&with_tokenizer(file)?)?.encode(text)?)
}

#[test]
fn a_saved_tokenizer_is_the_one_that_was_opened() -> Result {
    let mut file = part(
        "normalizer",
        json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}),
    )?;
    file["decoder"] = json!({"type": "Sequence", "decoders": [file["decoder"], {"type": "Fuse"}]});
    let folder = with_tokenizer(&file)?;
    let again: Value = serde_json::from_str(&open(&folder)?.to_json()?)?;
    assert_eq!(again, file);
    assert_eq!(open(&folder)?.encode("THE CAT")?, open(&folder)?.encode("the cat")?);
    Ok(())
}

#[test]
fn a_line_of_merges_that_is_no_merge_is_named() -> Result {
    let folder = Folder::of("gelu")?;
    folder.write("vocab.json", r#"{"h": 0, "e": 1, "he": 2}"#)?;
    for (content, says) in [
        ("#version: 0.2\nh e\nh e l\n", &["merges.txt", "line 3", "\"h e l\""][..]),
        ("#version: 0.2\nh e\n\nh e\n", &["merges.txt", "line 3"]),
        ("#version: 0.2\nh e\nh x\n", &["merges.txt", "merge 2", "\"x\""]),
        ("#version: 0.2\nhe he\n", &["merges.txt", "\"hehe\""]),
    ] {
        folder.write("merges.txt", content)?;
        assert_says(content, &open(&folder).expect_err("refused").to_string(), says);
    }
    for vocab in [r#"{"h": -1}"#, r#"{"h": 4294967296}"#, r#"{"h": "0"}"#, r#"{"h": 0} x"#] {
        folder.write("vocab.json", vocab)?;
        let message = open(&folder).expect_err("refused").to_string();
        assert_says(vocab, &message, &["vocab.json", "tokenizer"]);
        assert!(!message.contains("merges.txt"), "{message}");
    }
    folder.write("vocab.json", r#"{"h": 0, "e": 1, "he": 2}"#)?;
    folder.write("merges.txt", "#version: 0.2\r\nh e\r\n\r\n")?;
    assert_eq!(open(&folder)?.encode("he")?, [2]);
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_pipe_or_a_device_in_place_of_vocab_or_merges_is_refused_at_once() -> Result {
    for name in ["vocab.json", "merges.txt"] {
        let folder = Folder::of("gelu")?;
        folder.write("vocab.json", r#"{"h": 0}"#)?;
        folder.write("merges.txt", "")?;
        assert!(open(&folder).is_ok());
        std::fs::remove_file(folder.file(name))?;
        std::os::unix::fs::symlink("/dev/zero", folder.file(name))?;
        let message = open(&folder).expect_err("a device").to_string();
        assert_says(name, &message, &[name, "expected a file"]);
        std::fs::remove_file(folder.file(name))?;
        assert!(std::process::Command::new("mkfifo").arg(folder.file(name)).status()?.success());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(open(&folder).expect_err("a pipe").to_string()));
        assert_says(name, &receiver.recv_timeout(Duration::from_secs(10))?, &[name, "expected a file"]);
    }
    Ok(())
}

/// Two tokens with one id would decode to one of them.
#[test]
fn an_added_token_whose_id_is_not_the_vocabularys_is_refused_with_both() -> Result {
    let mut file = whole()?;
    let mut token = added("<x>");
    token["id"] = json!(999);
    file["added_tokens"].as_array_mut().ok_or("tokens")?.push(token);
    assert_says("another id", &refusal("another id", &file)?, &["<x>", "999"]);
    Ok(())
}
