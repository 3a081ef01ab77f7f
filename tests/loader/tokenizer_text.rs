//! Text that a tokenizer cannot spell, and text longer than any prompt.

use super::{open_tokenizer, with_tokenizer};
use crate::common::Result;
use crate::folder::assert_says;
use gpt2_loader::{LoadError, Tokenizer};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn opened(file: &Value) -> Result<Tokenizer> {
    Ok(open_tokenizer(&with_tokenizer(file)?, 31)?)
}

/// A byte-level tokenizer of the letters a, b and the space.
fn ab() -> Result<Value> {
    let mut file: Value = serde_json::from_str(&Tokenizer::train("a", 257)?.to_json()?)?;
    file["model"]["vocab"] = json!({"a": 0, "b": 1, "\u{120}": 2, "ab": 3, "<ä>": 4});
    file["model"]["merges"] = json!([["a", "b"]]);
    file["added_tokens"] = json!([{"id": 4, "content": "<ä>", "single_word": false, "lstrip": false,
                                   "rstrip": false, "normalized": false, "special": true}]);
    Ok(file)
}

#[test]
fn characters_that_the_vocabulary_cannot_spell_are_counted_in_their_order() -> Result {
    let tokenizer = opened(&ab()?)?;
    let text = "ab äbä\u{200b}c<ä> ä";
    assert_eq!(tokenizer.encode(text)?, [3, 2, 1, 4, 2]);
    let left_out = tokenizer.unspellable(text)?;
    assert_eq!(left_out.characters(), [('ä', 3), ('\u{200b}', 1), ('c', 1)]);
    assert_eq!((left_out.total(), left_out.to_string().as_str()), (5, "'ä' (3), U+200B, 'c'"));
    assert!(tokenizer.unspellable("ab <ä>")?.is_empty());
    for whole in [Tokenizer::gpt2(), Tokenizer::train("ab", 257)?] {
        assert!(whole.unspellable("ä\u{200b}🦀")?.is_empty());
    }
    Ok(())
}

#[test]
fn a_text_of_which_nothing_is_left_is_an_error_that_shows_its_characters() -> Result {
    let tokenizer = opened(&ab()?)?;
    let error = tokenizer.encode("xyzä\nxcdefghij").expect_err("nothing left");
    assert!(matches!(error, LoadError::NothingLeft { .. }), "{error:?}");
    assert_says(
        "nothing",
        &error.to_string(),
        &["tokenizer.json", "none of its characters", "'x' (2)", "'ä'", "U+000A", ", …", "token ids"],
    );
    assert!(tokenizer.encode("")?.is_empty());
    // Tokens that a template puts around the text are not part of it.
    let mut around = ab()?;
    around["post_processor"] = json!({"type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<ä>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<ä>": {"id": "<ä>", "ids": [4], "tokens": ["<ä>"]}}});
    let around = opened(&around)?;
    assert_eq!(around.encode("ab")?, [4, 3]);
    assert!(matches!(around.encode("xyz"), Err(LoadError::NothingLeft { .. })));
    let mut words = ab()?;
    words["pre_tokenizer"] = json!({"type": "WhitespaceSplit"});
    let message = opened(&words)?.encode("  ").expect_err("no words").to_string();
    assert_says("no words", &message, &["gives no tokens"]);
    Ok(())
}

#[test]
fn letters_that_are_no_bytes_a_normalizer_and_a_token_for_the_unknown_count_too() -> Result {
    let mut letters = ab()?;
    letters["pre_tokenizer"] = Value::Null;
    letters["normalizer"] = json!({"type": "Lowercase"});
    letters["decoder"] = Value::Null;
    let tokenizer = opened(&letters)?;
    assert_eq!(tokenizer.unspellable("ABÄ c")?.characters(), [('ä', 1), (' ', 1), ('c', 1)]);
    letters["model"]["byte_fallback"] = json!(true);
    letters["model"]["vocab"]["<0x20>"] = json!(5);
    assert_eq!(opened(&letters)?.unspellable("ABÄ c")?.characters(), [('ä', 1), ('c', 1)]);
    assert_eq!(opened(&letters)?.encode("ABÄ c")?, [3, 5]);
    letters["model"]["unk_token"] = json!("b");
    assert!(opened(&letters)?.unspellable("ABÄ c")?.is_empty());
    assert_eq!(opened(&letters)?.encode("ABÄ")?, [3, 1]);
    Ok(())
}

#[test]
fn a_text_longer_than_any_prompt_is_refused_before_it_is_tokenized() -> Result {
    let file: Value =
        serde_json::from_str(&Tokenizer::train(&"the cat sat on the mat\n".repeat(20), 270)?.to_json()?)?;
    let bytes = opened(&file)?;
    let longest = "<|endoftext|>".len();
    assert_eq!((bytes.longest_token(), Tokenizer::gpt2().longest_token()), (Some(longest), Some(128)));
    let text = "a".repeat(16 * longest);
    bytes.check_length(&text, 16)?;
    let error = bytes.check_length(&(text + "a"), 16).expect_err("a byte too many");
    assert!(
        matches!(error, LoadError::PromptTooLong { bytes: 209, most: 208, n_positions: 16 }),
        "{error:?}"
    );
    assert_says("long", &error.to_string(), &["209", "208", "n_positions = 16", "shorten"]);
    // There is a limit even if a token may stand for text of any length.
    let mut composed = file;
    composed["normalizer"] = json!({"type": "NFC"});
    let long = "a".repeat(10_000_000);
    for tokenizer in [opened(&composed)?, opened(&ab()?)?, Tokenizer::gpt2()] {
        let start = Instant::now();
        assert!(tokenizer.check_length(&long, 1024).is_err());
        assert!(start.elapsed() < Duration::from_millis(100));
    }
    assert_eq!((opened(&composed)?.longest_token(), opened(&ab()?)?.longest_token()), (None, None));
    Ok(())
}

#[test]
fn the_longest_token_of_the_built_in_vocabulary_is_what_its_tokens_say() {
    let tokenizer = Tokenizer::gpt2();
    // Bytes that are not valid text on their own decode to three bytes each, so look only at the others.
    let lengths = (0..50257).map(|id| tokenizer.decode(&[id])).filter(|text| !text.contains('\u{fffd}'));
    assert_eq!(lengths.map(|text| text.len()).max(), tokenizer.longest_token());
}

#[test]
fn the_longest_prompt_of_the_built_in_vocabulary_is_tokenized_in_seconds() -> Result {
    let tokenizer = Tokenizer::gpt2();
    for character in ["a", " ", "ä", "a "] {
        let text = character.repeat(1024 * 128 / character.len());
        tokenizer.check_length(&text, 1024)?;
        let start = Instant::now();
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text)?), text);
        assert!(start.elapsed() < Duration::from_secs(10), "{character:?}: {:?}", start.elapsed());
    }
    Ok(())
}

#[test]
fn parts_of_a_character_are_spelled_in_bytes() -> Result {
    for tokenizer in [Tokenizer::gpt2(), Tokenizer::train("ab", 257)?] {
        let ids = tokenizer.encode("a\u{1f980}")?;
        let plain = tokenizer.tokens(&ids);
        let spelled = tokenizer.spelled(&ids);
        assert!(plain.len() > 2 && plain[1..].iter().any(|token| token.contains('\u{fffd}')), "{plain:?}");
        assert_eq!(spelled.concat(), "a<F0><9F><A6><80>", "{spelled:?}");
    }
    // A token of the character itself is no part of one, and one without bytes stays.
    let own = "\u{fffd}";
    let tokenizer = Tokenizer::gpt2();
    let ids = tokenizer.encode(own)?;
    if let [id] = ids[..] {
        assert_eq!(tokenizer.spelled(&[id]), [own]);
    }
    Ok(())
}
