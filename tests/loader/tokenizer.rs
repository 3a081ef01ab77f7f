//! Tokenizers from each kind of file, damaged files, and text that arrives token by token.

use super::{open_tokenizer as open, with_tokenizer};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use gpt2_loader::{LoadError, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

/// A tokenizer over bytes, with few merges and none beyond ASCII.
fn bytes_mostly() -> std::result::Result<Tokenizer, LoadError> {
    Tokenizer::train(&"the cat sat on the mat\n".repeat(20), 270)
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text + &stream.finish()
}

#[test]
fn the_built_in_vocabulary_is_gpt2s() -> Result {
    let tokenizer = open(&Folder::of("odd")?, 50257)?;
    let ids = [15496, 11, 314, 1101, 257, 3303, 2746, 11];
    assert_eq!(tokenizer.encode("Hello, I'm a language model,")?, ids);
    assert_eq!(tokenizer.decode(&ids), "Hello, I'm a language model,");
    assert_eq!(tokenizer.encode("<|endoftext|>")?, [50256]);
    assert_eq!(tokenizer.encode("Hello<|endoftext|>Hello")?, [15496, 50256, 15496]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.end_of_text()), (50257, Some(50256)));
    assert_eq!(tokenizer.tokens(&[15496, 11, 314]), ["Hello", ",", " I"]);
    assert!(tokenizer.encode("")?.is_empty());
    Ok(())
}

#[test]
fn no_tokenizer_for_another_vocabulary_is_an_error_that_says_what_to_do() -> Result {
    let folder = Folder::of("gelu")?;
    let error = open(&folder, 31).expect_err("none");
    assert!(matches!(error, LoadError::NoTokenizer { vocab_size: 31, .. }), "{error:?}");
    let path = folder.dir();
    assert_says("none", &error.to_string(), &[&path, "tokenizer.json", "merges.txt", "31", "token ids"]);
    Ok(())
}

#[test]
fn half_a_tokenizer_is_an_error_that_names_the_other_half() -> Result {
    for (present, missing) in [("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")] {
        let folder = Folder::of("gelu")?;
        folder.write(present, "{}")?;
        let message = folder.refusal(present);
        assert_says(present, &message, &[&folder.dir(), &format!("{missing} is missing")]);
    }
    Ok(())
}

#[test]
fn a_tokenizer_cuts_and_pads_nothing_whatever_its_file_says() -> Result {
    let mut json: serde_json::Value = serde_json::from_str(&bytes_mostly()?.to_json()?)?;
    json["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let tokenizer = open(&with_tokenizer(&json)?, 31)?;
    for text in ["a", "a text of more than two tokens, and of more than eight"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text)?), text);
    }
    Ok(())
}

#[test]
fn vocab_and_merges_make_a_tokenizer() -> Result {
    let folder = Folder::of("gelu")?;
    let vocab = json!({"h": 0, "e": 1, "l": 2, "o": 3, "he": 4, "ll": 5, "hell": 6, "hello": 7, "\u{120}": 8,
                       "<|endoftext|>": 9});
    folder.write("vocab.json", vocab.to_string())?;
    folder.write("merges.txt", "#version: 0.2\nh e\nl l\nhe ll\nhell o\n")?;
    let tokenizer = open(&folder, 31)?;
    for (text, ids) in [
        ("hello", &[7][..]),
        ("hole", &[0, 3, 2, 1]),
        (" hello", &[8, 7]),
        ("hello<|endoftext|>he", &[7, 9, 4]),
    ] {
        assert_eq!(tokenizer.encode(text)?, ids, "{text:?}");
        assert_eq!(tokenizer.decode(ids), text);
    }
    assert_eq!((tokenizer.vocab_size(), tokenizer.end_of_text()), (10, Some(9)));
    Ok(())
}

#[test]
fn tokenizer_json_comes_before_vocab_and_merges() -> Result {
    let folder = Folder::of("gelu")?;
    folder.write("vocab.json", "not read")?;
    folder.write("merges.txt", "not read")?;
    folder.write("tokenizer.json", bytes_mostly()?.to_json()?)?;
    assert_eq!(open(&folder, 31)?.encode("the cat")?, bytes_mostly()?.encode("the cat")?);
    Ok(())
}

#[test]
fn damaged_tokenizer_files_are_named_with_the_remedy() -> Result {
    let whole = bytes_mostly()?.to_json()?;
    let mut failures = vec![];
    for (name, content) in [
        ("tokenizer.json", ""),
        ("tokenizer.json", &whole[..whole.len() / 2]),
        ("tokenizer.json", "<!DOCTYPE html>"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}"#),
        ("vocab.json", "{\"a\": "),
        ("vocab.json", "[]"),
        ("merges.txt", "a b c d\n"),
        ("merges.txt", "h zz\n"),
    ] {
        let folder = Folder::of("gelu")?;
        if name != "tokenizer.json" {
            folder.write("vocab.json", r#"{"h": 0, "e": 1, "he": 2}"#)?;
            folder.write("merges.txt", "h e\n")?;
            assert!(open(&folder, 31).is_ok());
        }
        folder.write(name, content)?;
        let error = open(&folder, 31).expect_err("damaged");
        let is_other = content.is_empty() || content.starts_with('<');
        let is_named = matches!(error, LoadError::OtherFile { .. });
        assert!(
            is_named == is_other && (is_named || matches!(error, LoadError::Tokenizer { .. })),
            "{error:?}"
        );
        let message = error.to_string();
        for part in [folder.dir().as_str(), name, "fetch"] {
            if !message.contains(part) {
                let start: String = content.chars().take(20).collect();
                failures.push(format!("{name} {start:?}: {part:?} is not in: {message}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

#[test]
fn an_emoji_in_several_tokens_comes_out_whole_with_the_last() -> Result {
    for tokenizer in [Tokenizer::gpt2(), bytes_mostly()?] {
        let ids = tokenizer.encode("🦀")?;
        assert!(ids.len() > 1, "{ids:?}");
        let mut stream = tokenizer.stream();
        let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        let mut expected = vec![String::new(); ids.len() - 1];
        expected.push("🦀".into());
        assert_eq!(pieces, expected);
        assert_eq!(stream.finish(), "");
    }
    Ok(())
}

#[test]
fn what_is_unfinished_at_the_end_is_not_lost() -> Result {
    for tokenizer in [Tokenizer::gpt2(), bytes_mostly()?] {
        let mut ids = tokenizer.encode("ab🦀")?;
        ids.pop();
        let text = streamed(&tokenizer, &ids);
        assert_eq!(text, tokenizer.decode(&ids));
        assert!(text.starts_with("ab") && text.contains('\u{fffd}'), "{text:?}");
    }
    Ok(())
}

#[test]
fn ids_without_a_token_give_nothing_and_the_rest_stays() -> Result {
    for tokenizer in [Tokenizer::gpt2(), bytes_mostly()?] {
        let mut ids = tokenizer.encode("the cat")?;
        ids.push(60_000);
        assert_eq!(tokenizer.decode(&ids), "the cat", "{tokenizer:?}");
        assert_eq!(tokenizer.decode(&[60_000]), "", "{tokenizer:?}");
        assert_eq!(streamed(&tokenizer, &ids), "the cat", "{tokenizer:?}");
    }
    Ok(())
}

#[test]
fn a_vocabulary_too_small_or_a_text_too_short_is_an_error_or_a_smaller_vocabulary() -> Result {
    let message = Tokenizer::train("some text", 256).expect_err("256 bytes and the end").to_string();
    assert_says("256", &message, &["256", "<|endoftext|>"]);
    let tokenizer = Tokenizer::train("ab", 1000)?;
    assert!(tokenizer.vocab_size() < 300);
    assert_eq!(tokenizer.decode(&tokenizer.encode("anything — at all")?), "anything — at all");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back_whole_and_in_pieces(text in "(\\PC|[\u{0}-\u{ff}🦀\u{fffd}é漢]){0,30}") {
        for tokenizer in [Tokenizer::gpt2(), bytes_mostly()?] {
            let ids = tokenizer.encode(&text)?;
            prop_assert_eq!(tokenizer.decode(&ids), text.clone());
            prop_assert_eq!(streamed(&tokenizer, &ids), text.clone());
        }
    }

    /// A model may generate any ids, including half characters.
    #[test]
    fn any_ids_give_the_text_that_decode_gives(
        parts in prop::collection::vec(prop_oneof![
            prop::collection::vec(128u32..256, 1..3), // a few bytes that are not a character by themselves
            prop_oneof![Just("🦀"), Just("é"), Just("x"), Just("漢字")].prop_map(|s| s.bytes().map(u32::from).collect()),
        ], 0..6)
    ) {
        let tokenizer = Tokenizer::gpt2();
        // The tokens of single bytes come first in GPT-2's vocabulary, but not in the order of the bytes.
        let by_byte: Vec<u32> = byte_tokens();
        let ids: Vec<u32> = parts.concat().iter().map(|&b| by_byte[b as usize]).collect();
        prop_assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids));
    }
}

/// The id of each byte's token in GPT-2's vocabulary: first the printable bytes in order, then the others.
fn byte_tokens() -> Vec<u32> {
    let prints = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let order: Vec<u8> = (0..=255).filter(prints).chain((0..=255).filter(|b| !prints(b))).collect();
    let mut ids = vec![0; 256];
    for (id, byte) in (0..).zip(order) {
        ids[usize::from(byte)] = id;
    }
    ids
}
