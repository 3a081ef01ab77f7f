//! GGUF files that are written here: every key, read with a reader of their own, and what is not written.

use super::gguf::{open, save_quietly};
use super::gguf_damage::position;
use super::{demo, open_tokenizer, saved, with_tokenizer};
use crate::common::{Result, data};
use crate::folder::{Folder, Raw, Tensors, assert_says, read, serialized};
use candle_core::{DType, Device};
use gpt2_loader::{
    Checkpoint, Encoding, Files, GgufType, LoadError, SaveOptions, Source, Tokenizer, save_gguf,
};
use gpt2_model::linear::BlockFormat;
use gpt2_model::{Config, Gpt2LMHeadModel, init};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

/// Bytes that are read from their start, by ggml's `docs/gguf.md`.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self, len: usize) -> u64 {
        let (number, rest) = self.0.split_at(len);
        self.0 = rest;
        number.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
    }

    fn text(&mut self) -> Result<String> {
        let len = usize::try_from(self.number(8))?;
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(String::from_utf8(text.to_vec())?)
    }

    /// A number's bits, a text, or the type and the values of an array.
    fn value(&mut self, kind: u64) -> Result<Value> {
        Ok(match kind {
            4..=6 => self.number(4).into(),
            8 => self.text()?.into(),
            9 => {
                let of = self.number(4);
                let len = self.number(8);
                json!([of, (0..len).map(|_| self.value(of)).collect::<Result<Vec<_>>>()?])
            }
            other => return Err(format!("type {other}").into()),
        })
    }
}

/// The type and the value of each key.
fn keys(file: &[u8]) -> Result<Map<String, Value>> {
    let mut file = Reader(file);
    assert_eq!((file.number(4), file.number(4)), (u32::from_le_bytes(*b"GGUF").into(), 3));
    let _tensors = file.number(8);
    let count = file.number(8);
    let mut keys = Map::new();
    for _ in 0..count {
        let name = file.text()?;
        let kind = file.number(4);
        let value = file.value(kind)?;
        assert!(keys.insert(name.clone(), json!([kind, value])).is_none(), "{name} is there twice");
    }
    Ok(keys)
}

/// The bytes of the file that a checkpoint becomes.
fn written(checkpoint: &Checkpoint, tokenizer: &Tokenizer, kind: GgufType) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.gguf");
    save_quietly(&path, checkpoint, tokenizer, kind)?;
    Ok(std::fs::read(path)?)
}

/// The tensors of the demo model.
fn demo_tensors() -> Result<Tensors> {
    read(&data("../../models/tiny-shakespeare").join("model.safetensors"))
}

/// The demo model with other tensors.
fn demo_with(tensors: &Tensors) -> Result<Checkpoint> {
    let folder = Folder::empty()?;
    std::fs::copy(data("../../models/tiny-shakespeare").join("config.json"), folder.file("config.json"))?;
    folder.write("model.safetensors", serialized(tensors)?)?;
    Ok(folder.open()?)
}

/// A model of random numbers with fields of its config changed, as a folder.
fn small(vocab_size: usize, fields: &[(&str, Value)]) -> Result<Folder> {
    let config = Config { vocab_size, n_layer: 1, n_embd: 32, n_head: 2, n_positions: 8, ..Config::gpt2() };
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &Device::Cpu), &config)?;
    let folder = saved(&model, SaveOptions::default())?;
    for (field, value) in fields {
        folder.set_config(field, value.clone())?;
    }
    Ok(folder)
}

#[test]
fn every_key_that_llama_cpp_reads_is_written_with_its_type() -> Result {
    let (checkpoint, tokenizer) = demo()?;
    let json: Value = serde_json::from_str(&tokenizer.to_json()?)?;
    let vocab = json["model"]["vocab"].as_object().ok_or("a vocabulary")?;
    let mut tokens: Vec<(u64, &str)> =
        vocab.iter().map(|(token, id)| (id.as_u64().unwrap_or_default(), token.as_str())).collect();
    tokens.sort_unstable();
    let tokens: Vec<&str> = tokens.into_iter().map(|(_, token)| token).collect();
    let pairs = json["model"]["merges"].as_array().ok_or("merges")?;
    let merges: Vec<String> = pairs
        .iter()
        .map(|p| format!("{} {}", p[0].as_str().unwrap_or_default(), p[1].as_str().unwrap_or_default()))
        .collect();
    // `<|endoftext|>`, the first token, is a control token; all others are normal.
    let types: Vec<u32> = (0..1024).map(|id| if id == 0 { 3 } else { 1 }).collect();
    // llama.cpp's numbers of the types of files.
    for (kind, file_type) in
        [(GgufType::F16, 1), (GgufType::Q4_0, 2), (GgufType::Q8_0, 7), (GgufType::Q4KM, 15)]
    {
        let expected = json!({
            "general.architecture": [8, "gpt2"],
            "general.file_type": [4, file_type],
            "general.quantization_version": [4, 2],
            "gpt2.block_count": [4, 4],
            "gpt2.context_length": [4, 256],
            "gpt2.embedding_length": [4, 128],
            "gpt2.feed_forward_length": [4, 512],
            "gpt2.attention.head_count": [4, 4],
            "gpt2.attention.layer_norm_epsilon": [6, 1e-5f32.to_bits()],
            "tokenizer.ggml.model": [8, "gpt2"],
            "tokenizer.ggml.pre": [8, "gpt-2"],
            "tokenizer.ggml.tokens": [9, [8, tokens]],
            "tokenizer.ggml.token_type": [9, [5, types]],
            "tokenizer.ggml.merges": [9, [8, merges]],
            "tokenizer.ggml.eos_token_id": [4, 0],
            "tokenizer.ggml.bos_token_id": [4, 0],
        });
        assert_eq!(Value::Object(keys(&written(&checkpoint, &tokenizer, kind)?)?), expected, "{kind}");
    }
    Ok(())
}

#[test]
fn ids_without_a_token_and_added_tokens_have_types_of_their_own() -> Result {
    let mut json: Value = serde_json::from_str(&Tokenizer::train("ab", 257)?.to_json()?)?;
    let added = json!({"id": 257, "content": "<x y>", "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": false});
    json["added_tokens"].as_array_mut().ok_or("tokens")?.push(added);
    let tokenizer = open_tokenizer(&with_tokenizer(&json)?, 31)?;
    let end = usize::try_from(tokenizer.end_of_text().ok_or("an end")?)?;
    let folder = small(260, &[])?;
    let path = folder.file("a.gguf");
    save_quietly(&path, &folder.open()?, &tokenizer, GgufType::F16)?;
    let keys = keys(&std::fs::read(&path)?)?;
    let types = &keys["tokenizer.ggml.token_type"][1][1];
    let tokens = &keys["tokenizer.ggml.tokens"][1][1];
    for id in 0..260 {
        let expected = match id {
            258.. => 5, // unused
            257 => 4,   // defined by a user
            id if id == end => 3,
            _ => 1,
        };
        assert_eq!(types[id], expected, "{id}");
    }
    assert_eq!(
        (&tokens[257], &tokens[258], &tokens[259]),
        (&json!("<x y>"), &json!("[PAD258]"), &json!("[PAD259]"))
    );
    let again = Tokenizer::open(&Source::Gguf(path).open()?, 260)?;
    for text in ["a<x y>b", "a<|endoftext|>"] {
        assert_eq!(again.encode(text)?, tokenizer.encode(text)?, "{text}");
    }
    Ok(())
}

#[test]
fn the_begin_and_the_end_are_ids_of_the_vocabulary() -> Result {
    let tokenizer = Tokenizer::train("ab", 257)?;
    let own = tokenizer.end_of_text().ok_or("an end")?;
    for (bos, eos, begin, end) in [
        (json!(5), json!(7), 5, 7),
        (json!(259), json!(259), 259, 259),
        (json!(260), json!(260), own, own),
        (json!(260), json!([8]), 8, 8),
        (Value::Null, Value::Null, own, own),
    ] {
        let folder = small(260, &[("bos_token_id", bos.clone()), ("eos_token_id", eos.clone())])?;
        let keys = keys(&written(&folder.open()?, &tokenizer, GgufType::F16)?)?;
        assert_eq!(keys["tokenizer.ggml.bos_token_id"], json!([4, begin]), "{bos}, {eos}");
        assert_eq!(keys["tokenizer.ggml.eos_token_id"], json!([4, end]), "{bos}, {eos}");
    }
    // Up to three ends have keys of their own, and all of them come back.
    let folder = small(260, &[("eos_token_id", json!([7, 8, 9]))])?;
    let file = written(&folder.open()?, &tokenizer, GgufType::F16)?;
    let again = Checkpoint::open(&Files::in_memory("written", [("a.gguf".to_owned(), file)].into())?)?;
    assert_eq!(again.config().eos_token_id, folder.open()?.config().eos_token_id);
    let folder = small(260, &[("eos_token_id", json!([6, 7, 8, 9]))])?;
    let error = written(&folder.open()?, &tokenizer, GgufType::F16).expect_err("four ends").to_string();
    assert_says("four ends", &error, &["eos_token_id is [6, 7, 8, 9]; expected at most 3 ids"]);
    Ok(())
}

#[test]
fn a_tokenizer_with_a_part_that_lists_cannot_hold_is_refused_by_name() -> Result {
    let whole: Value = serde_json::from_str(&Tokenizer::train("ab", 257)?.to_json()?)?;
    let checkpoint = small(260, &[])?.open()?;
    let refused = |what: &str, file: &Value| -> Result<String> {
        let tokenizer = open_tokenizer(&with_tokenizer(file)?, 31)?;
        match written(&checkpoint, &tokenizer, GgufType::F16) {
            Ok(_) => Err(format!("{what}: was written").into()),
            Err(error) => Ok(error.to_string()),
        }
    };
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let begin = json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
    let template = |single: Value| {
        json!({"type": "TemplateProcessing", "pair": [], "single": single, "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}}})
    };
    let plain = template(json!([text]));
    let around = template(json!([begin, text]));
    for (place, value, says) in [
        ("/model/unk_token", json!("a"), "model.unk_token is \"a\""),
        ("/model/byte_fallback", json!(true), "model.byte_fallback is true"),
        ("/model/ignore_merges", json!(true), "model.ignore_merges is true"),
        ("/normalizer", json!({"type": "NFC"}), "normalizer is \"NFC\""),
        (
            "/pre_tokenizer",
            json!({"type": "WhitespaceSplit"}),
            "pre_tokenizer is {\"type\":\"WhitespaceSplit\"}",
        ),
        ("/pre_tokenizer/add_prefix_space", json!(true), "expected GPT-2's ByteLevel"),
        ("/pre_tokenizer/use_regex", json!(false), "expected GPT-2's ByteLevel"),
        ("/post_processor", around, "post_processor puts \"<|endoftext|>\" around a text"),
        ("/added_tokens/0/lstrip", json!(true), "the token \"<|endoftext|>\" has lstrip"),
        ("/added_tokens/0/rstrip", json!(true), "the token \"<|endoftext|>\" has rstrip"),
        ("/added_tokens/0/single_word", json!(true), "the token \"<|endoftext|>\" has single_word"),
    ] {
        let mut file = whole.clone();
        *file.pointer_mut(place).ok_or(place)? = value;
        assert_says(place, &refused(place, &file)?, &["a GGUF file cannot hold it", says]);
    }
    // What is empty does nothing.
    let mut empty = whole.clone();
    empty["model"]["end_of_word_suffix"] = json!("");
    // A file from before there was `use_regex`, such as GPT-2's own.
    let mut old = whole.clone();
    old["pre_tokenizer"].as_object_mut().ok_or("an object")?.remove("use_regex").ok_or("it was there")?;
    // A template that adds nothing, as transformers writes it.
    let mut added = whole.clone();
    added["post_processor"] = plain.clone();
    let mut several = whole.clone();
    several["post_processor"] = json!({"type": "Sequence", "processors": [whole["post_processor"], plain]});
    for file in [empty, old, added, several] {
        written(&checkpoint, &open_tokenizer(&with_tokenizer(&file)?, 31)?, GgufType::F16)?;
    }
    Ok(())
}

#[test]
fn a_table_that_is_tied_is_written_once_whatever_its_names() -> Result {
    let (checkpoint, tokenizer) = demo()?;
    let plain = written(&checkpoint, &tokenizer, GgufType::F16)?;
    let wte = "transformer.wte.weight";
    let head = "lm_head.weight";
    let mut tensors = demo_tensors()?;
    let table = tensors[wte].clone();
    tensors.insert(head.into(), table.clone());
    assert!(written(&demo_with(&tensors)?, &tokenizer, GgufType::F16)? == plain, "under both names");
    tensors.remove(wte);
    assert!(written(&demo_with(&tensors)?, &tokenizer, GgufType::F16)? == plain, "as the head alone");

    // Another table is the output projection, whatever the config says of it.
    let mut other = table.clone();
    other.data[100] ^= 1;
    tensors.extend([(wte.into(), table), (head.into(), other)]);
    let checkpoint = demo_with(&tensors)?;
    assert!(checkpoint.config().tie_word_embeddings);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("two.gguf");
    save_quietly(&path, &checkpoint, &tokenizer, GgufType::F16)?;
    let two = open(&path)?;
    assert!(two.audit().is_clean() && !two.config().tie_word_embeddings);
    let [ours, theirs] = [two, checkpoint].map(|of| of.load_model(DType::F32, &Device::Cpu));
    assert!(super::parameter_bits(&ours?)? == super::parameter_bits(&theirs?)?, "other numbers");
    Ok(())
}

#[test]
fn the_largest_numbers_that_fit_are_written() -> Result {
    let (_, tokenizer) = demo()?;
    let mut tensors = demo_tensors()?;
    let weight = tensors.get_mut("transformer.h.2.mlp.c_fc.weight").ok_or("a weight")?;
    weight.data[..2].copy_from_slice(&half::f16::MAX.to_le_bytes());
    // Biases are in f32 in every file.
    let bias: Vec<f32> = (0..128).map(|i| if i == 3 { f32::MAX } else { 70_000.0 }).collect();
    let data = bias.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensors.insert("transformer.h.2.ln_1.bias".into(), Raw { dtype: Dtype::F32, shape: vec![128], data });
    let checkpoint = demo_with(&tensors)?;
    for kind in GgufType::ALL {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("a.gguf");
        save_quietly(&path, &checkpoint, &tokenizer, *kind)?;
        let model = open(&path)?.load_model(DType::F32, &Device::Cpu)?;
        let parameters = model.named_parameters();
        let (_, found) = parameters.iter().find(|(name, _)| name == "h.2.ln_1.bias").ok_or("a bias")?;
        assert_eq!(found.tensor()?.to_vec1::<f32>()?, bias, "{kind}");
    }
    Ok(())
}

#[test]
fn formats_are_named_the_most_frequent_first() -> Result {
    let (checkpoint, tokenizer) = demo()?;
    assert!(checkpoint.formats().is_empty());
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("mixed.gguf");
    save_quietly(&path, &checkpoint, &tokenizer, GgufType::Q4KM)?;
    let mixed = open(&path)?;
    let count = |format: &BlockFormat| {
        mixed.tensors().filter(|(_, tensor)| tensor.dtype == Encoding::Blocks(*format)).count()
    };
    let counts: Vec<usize> = mixed.formats().iter().map(count).collect();
    // 256 divides the inputs of the MLP's c_proj alone: of its four, two have 6 bits. Of the other weights, c_attn in
    // blocks 2 and 3 and the table have 8 bits.
    assert_eq!(counts, [10, 3, 2, 2], "{:?}", mixed.formats());
    Ok(())
}

/// Damages the file between writing and reading; returns the error.
fn not_read_back(damage: impl Fn(&mut [u8])) -> Result<String> {
    let (checkpoint, tokenizer) = demo()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.gguf");
    let mut change = |done: usize, all: usize, _: &str| {
        if done == all {
            let mut bytes = std::fs::read(&path).expect("the whole file");
            damage(&mut bytes);
            std::fs::write(&path, bytes).expect("it is written");
        }
        Ok(())
    };
    match save_gguf(&path, &checkpoint, &tokenizer, GgufType::F16, &mut change) {
        Ok(()) => Ok("no error".into()),
        Err(error) => {
            assert!(matches!(error, LoadError::Gguf { .. }), "{error:?}");
            Ok(error.to_string())
        }
    }
}

fn swap(bytes: &mut [u8], a: &[u8], b: &[u8]) {
    let places = [(position(bytes, a), b), (position(bytes, b), a)];
    for (at, other) in places {
        bytes[at..at + other.len()].copy_from_slice(other);
    }
}

#[test]
fn a_file_that_is_not_read_back_as_it_was_written_is_refused() -> Result {
    assert_eq!(not_read_back(|_| ())?, "no error");
    let heads = b"gpt2.attention.head_count";
    let errors = [
        ("output_norm.bias", not_read_back(|file| *file.last_mut().expect("data") ^= 1)?),
        ("the config", not_read_back(|file| file[position(file, heads) + heads.len() + 4] = 2)?),
        // Two tokens of one letter change places, then the first two merges of the same length.
        ("the tokenizer", not_read_back(|file| swap(file, b"\x01\0\0\0\0\0\0\0Q", b"\x01\0\0\0\0\0\0\0Z"))?),
        (
            "the tokenizer",
            not_read_back(|file| {
                let [first, third] = ["\u{120} t", "\u{120} a"]
                    .map(|pair| [&(pair.len() as u64).to_le_bytes()[..], pair.as_bytes()].concat());
                swap(file, &first, &third);
            })?,
        ),
    ];
    for (what, error) in errors {
        assert_says(what, &error, &[&format!("{what} is not read back as it was written")]);
    }
    Ok(())
}
