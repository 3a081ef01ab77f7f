//! GGUF files as other writers could write them: the tiny file with more keys and more tensors.

use super::gguf::{open, save_quietly};
use super::gguf_damage::{after, header_end, position, replaced, tiny};
use super::saved;
use crate::common::Result;
use crate::folder::assert_says;
use candle_core::{DType, Device};
use gpt2_loader::{Checkpoint, GgufType, LoadError, SaveOptions, Source, Tokenizer};
use gpt2_model::{Config, Gpt2LMHeadModel, init};

/// A name, ggml's number of the type, and the value's bytes.
type Key<'a> = (&'a str, u32, Vec<u8>);
/// A name, the dimensions, ggml's number of the type, and the data.
type More<'a> = (&'a str, &'a [u64], u32, &'a [u8]);

const ARRAY: u32 = 9;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The value of a key that is an array.
fn list(kind: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes(), &elements.concat()].concat()
}

/// A file with more keys before its own and more tensors after its own.
fn extended(whole: &[u8], keys: &[Key], tensors: &[More]) -> Vec<u8> {
    let count = |at: usize, more: usize| {
        let own = u64::from_le_bytes(whole[at..at + 8].try_into().expect("8 bytes"));
        (own + more as u64).to_le_bytes()
    };
    let mut out = [&whole[..8], &count(8, tensors.len()), &count(16, keys.len())].concat();
    for (name, kind, value) in keys {
        out.extend([&text(name)[..], &kind.to_le_bytes(), value].concat());
    }
    let end = header_end(whole);
    out.extend(&whole[24..end]);
    let mut data = whole[end.next_multiple_of(32)..].to_vec();
    for (name, dims, kind, content) in tensors {
        data.resize(data.len().next_multiple_of(32), 0);
        out.extend(text(name));
        out.extend(u32::try_from(dims.len()).expect("few").to_le_bytes());
        out.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(*content);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

/// The file with these bytes.
fn opened(bytes: &[u8]) -> std::result::Result<Checkpoint, LoadError> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.gguf");
    std::fs::write(&path, bytes).expect("it is written");
    open(path)
}

/// The tokenizer in these bytes.
fn tokenizer(bytes: &[u8]) -> std::result::Result<Tokenizer, LoadError> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.gguf");
    std::fs::write(&path, bytes).expect("it is written");
    Tokenizer::open(&Source::Gguf(path).open()?, 257)
}

/// The tiny file with one more key.
fn with_key(name: &str, kind: u32, value: Vec<u8>) -> Result<Vec<u8>> {
    Ok(extended(&tiny()?, &[(name, kind, value)], &[]))
}

#[track_caller]
fn assert_refused(what: &str, bytes: &[u8], says: &str) {
    assert_says(what, &opened(bytes).expect_err(what).to_string(), &[says]);
}

/// The checkpoint of `whole` with a second table, which must be clean; whether that is the first one again.
fn is_one_table(whole: &[u8], second: More) -> Result<bool> {
    let checkpoint = opened(&extended(whole, &[], &[second]))?;
    assert!(checkpoint.audit().is_clean(), "{}", checkpoint.audit());
    let tied = checkpoint.config().tie_word_embeddings;
    let has_head = checkpoint.tensors().any(|(name, _)| name == "lm_head.weight");
    assert_ne!(tied, has_head, "a tied table is there once");
    assert_eq!(checkpoint.load_model(DType::F32, &Device::Cpu)?.is_tied(), tied);
    Ok(tied)
}

#[test]
fn a_table_saved_twice_is_one_and_any_other_is_the_output_projection() -> Result {
    let whole = tiny()?;
    let at = header_end(&whole).next_multiple_of(32);
    // Q8_0, the first tensor of the data: 257 blocks of 34 bytes.
    let table = &whole[at..at + 257 * 34];
    assert!(is_one_table(&whole, ("output.weight", &[32, 257], 8, table))?);
    for place in [2, 257 * 34 - 1] {
        let mut other = table.to_vec();
        other[place] ^= 1;
        assert!(!is_one_table(&whole, ("output.weight", &[32, 257], 8, &other))?, "byte {place}");
    }
    // The same bytes in another shape are another tensor, which does not fit.
    let flat = opened(&extended(&whole, &[], &[("output.weight", &[32 * 257], 8, table)]))?;
    assert!(!flat.config().tie_word_embeddings);
    let audit = flat.audit();
    assert_eq!(audit.mismatched.iter().map(|m| m.found.name.as_str()).collect::<Vec<_>>(), ["output.weight"]);
    Ok(())
}

#[test]
fn a_table_of_several_parts_is_compared_to_its_end() -> Result {
    let config =
        Config { vocab_size: 40_000, n_layer: 1, n_embd: 32, n_head: 2, n_positions: 8, ..Config::gpt2() };
    let model = Gpt2LMHeadModel::load(init::seeded(3, DType::F32, &Device::Cpu), &config)?;
    let folder = saved(&model, SaveOptions::default())?;
    let path = folder.file("f16.gguf");
    save_quietly(&path, &folder.open()?, &Tokenizer::train("ab", 257)?, GgufType::F16)?;
    let whole = std::fs::read(path)?;
    let at = header_end(&whole).next_multiple_of(32);
    let table = &whole[at..at + 40_000 * 32 * 2];
    let (f16, bf16) = (1, 30);
    assert!(is_one_table(&whole, ("output.weight", &[32, 40_000], f16, table))?);
    assert!(!is_one_table(&whole, ("output.weight", &[32, 40_000], bf16, table))?, "the same bytes in bf16");
    for place in [0, 1 << 20, table.len() - 2] {
        let mut other = table.to_vec();
        other[place] ^= 1;
        assert!(!is_one_table(&whole, ("output.weight", &[32, 40_000], f16, &other))?, "byte {place}");
    }
    Ok(())
}

#[test]
fn a_count_may_be_an_integer_of_any_type() -> Result {
    let key = "gpt2.attention.head_count_kv";
    for (kind, len, signed) in [
        (0, 1, false),
        (1, 1, true),
        (2, 2, false),
        (3, 2, true),
        (4, 4, false),
        (5, 4, true),
        (10, 8, false),
        (11, 8, true),
    ] {
        let with = |number: i128| with_key(key, kind, number.to_le_bytes()[..len].to_vec());
        opened(&with(2)?).map_err(|e| format!("type {kind}: {e}"))?;
        let half = 1i128 << (8 * len - 1);
        let most = if signed { half - 1 } else { 2 * half - 1 };
        let says = format!("{key} is {most}; expected the 2 heads of the queries");
        assert_refused(&format!("the most of type {kind}"), &with(most)?, &says);
        if signed {
            let says = format!("{key}: -{half} is not a number from 0 on");
            assert_refused(&format!("the least of type {kind}"), &with(-half)?, &says);
        }
    }
    Ok(())
}

#[test]
fn a_bool_is_0_or_1() -> Result {
    let flag = |byte: u8| with_key("general.flag", 7, vec![byte]);
    assert!(opened(&flag(0)?).is_ok() && opened(&flag(1)?).is_ok());
    assert_refused("2", &flag(2)?, "general.flag: 2 is not a bool");
    for (byte, says) in [(0, "general.alignment is Bool(false)"), (1, "general.alignment is Bool(true)")] {
        assert_refused(says, &with_key("general.alignment", 7, vec![byte])?, says);
    }
    Ok(())
}

#[test]
fn a_key_is_there_once_and_has_a_length_within_the_formats_rule() -> Result {
    let again = with_key("gpt2.block_count", 4, 1u32.to_le_bytes().to_vec())?;
    assert_refused("twice", &again, "key \"gpt2.block_count\" occurs twice");
    assert!(opened(&with_key(&"k".repeat(65_535), 0, vec![1])?).is_ok());
    let long = with_key(&"k".repeat(65_536), 0, vec![1])?;
    assert_refused("long", &long, "a key has 65536 bytes; expected at most 65535");
    Ok(())
}

#[test]
fn arrays_lie_at_most_four_deep() -> Result {
    let nested = |deep: usize| (1..deep).fold(list(0, &[]), |inner, _| list(ARRAY, &[inner]));
    assert!(opened(&with_key("general.nested", ARRAY, nested(4))?).is_ok());
    let says = "general.nested: arrays lie more than 4 deep";
    assert_refused("five", &with_key("general.nested", ARRAY, nested(5))?, says);
    Ok(())
}

#[test]
fn a_number_of_things_that_does_not_fit_is_told_how_many_would() -> Result {
    let whole = tiny()?;
    let huge = (1u64 << 60).to_le_bytes();
    // The fewest bytes of a key: a length, a type and a byte; of a tensor: a length, a rank, a type and an offset.
    let keys = (whole.len() - 24) / (8 + 4 + 1);
    let tensors = (whole.len() - (position(&whole, b"token_embd.weight") - 8)) / (8 + 4 + 4 + 8);
    let tokens = b"tokenizer.ggml.tokens";
    let first_token = position(&whole, tokens) + tokens.len() + 4 + 4 + 8;
    for (what, bytes, room) in [
        ("keys", after(&whole, b"GGUF", 12, &huge), keys),
        ("tensors", after(&whole, b"GGUF", 4, &huge), tensors),
        ("tokens", after(&whole, tokens, 8, &huge), (whole.len() - first_token) / 8),
    ] {
        assert_refused(what, &bytes, &format!("do not fit the file, whose rest has room for {room};"));
    }
    Ok(())
}

#[test]
fn a_tensor_of_no_use_is_not_used_whatever_its_dimensions_and_type() -> Result {
    let whole = tiny()?;
    let more: [More; 4] = [
        ("four", &[1, 2, 1, 1], 0, &[0; 8]),
        ("unread", &[32], 16, &[0; 32]),
        ("unread too", &[32], 16, &[0; 32]),
        ("a scalar", &[], 0, &[0; 4]),
    ];
    let audit = opened(&extended(&whole, &[], &more))?.audit();
    let mut found: Vec<_> = audit.unused.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
    found.sort_unstable();
    let expected: [(&str, &[usize]); 4] =
        [("a scalar", &[]), ("four", &[1, 1, 2, 1]), ("unread", &[32]), ("unread too", &[32])];
    assert_eq!(found, expected);
    let five = extended(&whole, &[], &[("five", &[1; 5], 0, &[0; 4])]);
    assert_refused("five", &five, "five: 5 dimensions; expected at most 4");
    Ok(())
}

#[test]
fn the_types_of_tokens_may_be_absent_but_not_too_few() -> Result {
    let types = "tokenizer.ggml.token_type";
    let without = replaced(&tiny()?, types.as_bytes(), b"tokenizer.ggml.token_typX");
    let with = |numbers: &[i32]| {
        let numbers: Vec<_> = numbers.iter().map(|n| n.to_le_bytes().to_vec()).collect();
        extended(&without, &[(types, ARRAY, list(5, &numbers))], &[])
    };
    // Then no token stands for its own text.
    let end = "<|endoftext|>";
    assert_eq!(tokenizer(&tiny()?)?.encode(end)?, [256]);
    for bytes in [without.clone(), with(&[])] {
        assert_eq!(tokenizer(&bytes)?.encode(end)?.len(), end.len());
    }
    let error = tokenizer(&with(&[1, 1])).expect_err("two").to_string();
    assert_says("two", &error, &[types, "2 elements for 257 tokens"]);
    Ok(())
}

#[test]
fn merges_may_be_an_empty_array_of_any_type_and_are_named_by_their_number() -> Result {
    let merges = "tokenizer.ggml.merges";
    let with = |kind: u32, elements: &[Vec<u8>]| with_key(merges, ARRAY, list(kind, elements));
    for kind in [5, 8] {
        assert_eq!(tokenizer(&with(kind, &[])?)?.encode("a b")?, tokenizer(&tiny()?)?.encode("a b")?);
    }
    let error = |bytes: Vec<u8>| tokenizer(&bytes).expect_err("no merges").to_string();
    let number = error(with(5, &[vec![0; 4]])?);
    assert_says("a number", &number, &[merges, "expected a list of strings"]);
    let second = error(with(8, &[text("a b"), text("c")])?);
    assert_says("no pair", &second, &["merge 2: \"c\" is not a merge"]);
    let unknown = error(with(8, &[text("a b")])?);
    assert_says("no token", &unknown, &["merge 1 (\"a\" \"b\"): \"ab\" is not in the vocabulary"]);
    Ok(())
}

#[test]
fn a_tokenizer_of_another_kind_is_refused_by_name() -> Result {
    let whole = tiny()?;
    for (key, skip, value, says) in [
        ("tokenizer.ggml.model", 12, "bert", "tokenizer.ggml.model is \"bert\"; expected \"gpt2\""),
        ("tokenizer.ggml.pre", 12, "llama", "tokenizer.ggml.pre is \"llama\"; expected \"gpt-2\""),
    ] {
        let error = tokenizer(&after(&whole, key.as_bytes(), skip, value.as_bytes())).expect_err(key);
        assert_says(key, &error.to_string(), &[says]);
    }
    Ok(())
}
