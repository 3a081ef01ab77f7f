//! The limits of a tokenizer's parts: what they allow is opened, and one more is refused; and what absent fields mean.

use super::tokenizer_shape::{added, model, part, refusal, sequence, split, template, whole};
use super::{open_tokenizer, with_tokenizer};
use crate::common::Result;
use crate::folder::{Folder, assert_says};
use gpt2_loader::{LoadError, Tokenizer};
use serde_json::{Value, json};
use std::fs::File;

fn opened(file: &Value) -> Result<Tokenizer> {
    Ok(open_tokenizer(&with_tokenizer(file)?, 31)?)
}

/// A BPE of these tokens alone, which are letters and not bytes.
fn letters(vocab: &Value, merges: Value, more: &[(&str, Value)]) -> Result<Value> {
    let mut file = model(more)?;
    file["model"]["vocab"] = vocab.clone();
    file["model"]["merges"] = merges;
    file["added_tokens"] = json!([]);
    for part in ["pre_tokenizer", "post_processor", "decoder"] {
        file[part] = Value::Null;
    }
    Ok(file)
}

/// A text, and special tokens up to so many pieces.
fn pieces(count: usize) -> Value {
    let mut pieces = vec![json!({"SpecialToken": {"id": "<s>", "type_id": 0}}); count];
    pieces[0] = json!({"Sequence": {"id": "A", "type_id": 0}});
    pieces.into()
}

/// The special token of such a template, with so many ids and tokens.
fn special(ids: usize, tokens: usize) -> Value {
    json!({"<s>": {"id": "<s>", "ids": vec![0; ids], "tokens": vec!["!"; tokens]}})
}

#[test]
fn what_a_limit_allows_is_opened_and_one_more_is_refused() -> Result {
    let x = |n: usize| "x".repeat(n);
    let of_token = |n: usize| letters(&json!({x(n): 0}), json!([]), &[]);
    let of_unknown = |n: usize| letters(&json!({x(n): 0}), json!([]), &[("unk_token", json!(x(n)))]);
    let of_id = |id: u32| letters(&json!({"a": id}), json!([]), &[]);
    let of_literal = |n: usize| part("pre_tokenizer", split(json!({"String": x(n)})));
    let of_parts = |n: usize| sequence(&vec![json!({"type": "Whitespace"}); n]);
    let of_pieces = |n: usize| part("post_processor", template(pieces(n), special(1, 1)));
    let of_pair = |n: usize| {
        let mut template = template(pieces(1), special(1, 1));
        template["pair"] = pieces(n);
        part("post_processor", template)
    };
    let of_ids = |n: usize| part("post_processor", template(pieces(2), special(n, n)));
    let too_long = format!("{:?}… has 4097 bytes; expected at most 4096", x(20));
    for (what, most, more, says) in [
        ("parts", of_parts(8)?, of_parts(9)?, "pre_tokenizer: 9 parts; expected at most 8"),
        ("a literal", of_literal(64)?, of_literal(65)?, "65 bytes; expected 1 to 64"),
        ("a template", of_pieces(16)?, of_pieces(17)?, "more than 16 pieces"),
        ("a template of two texts", of_pair(16)?, of_pair(17)?, "more than 16 pieces"),
        ("ids of a special token", of_ids(16)?, of_ids(17)?, "\"<s>\" has 17 ids and 17 tokens"),
        ("a token", of_token(4096)?, of_token(4097)?, &too_long),
        ("an unknown token", of_unknown(64)?, of_unknown(65)?, "unk_token has 65 bytes; expected at most 64"),
        (
            "an id",
            of_id((1 << 24) - 1)?,
            of_id(1 << 24)?,
            "id 16777216 is too large; expected less than 16777216",
        ),
    ] {
        opened(&most).map_err(|e| format!("{what}: {e}"))?;
        assert_says(what, &refusal(what, &more)?, &[says]);
    }
    Ok(())
}

#[test]
fn each_fault_of_a_template_is_named() -> Result {
    let post = |template: Value| part("post_processor", template);
    let one = template(pieces(2), special(1, 1));
    let several = |count: usize| {
        let processors = vec![one.clone(); count];
        post(json!({"type": "Sequence", "processors": processors}))
    };
    opened(&several(1)?)?;
    let mut pair = template(pieces(1), json!({}));
    pair["pair"] = pieces(2);
    let mut large = special(1, 1);
    large["<s>"]["ids"][0] = json!(1 << 24);
    let mut long = special(1, 1);
    long["<s>"]["tokens"][0] = json!("x".repeat(4097));
    for (what, file, says) in [
        ("two templates", several(2)?, "more than one TemplateProcessing"),
        ("an unknown token beside two texts", post(pair)?, "\"<s>\" is not among its special_tokens"),
        ("no ids", post(template(pieces(2), special(0, 0)))?, "has 0 ids and 0 tokens"),
        ("fewer tokens", post(template(pieces(2), special(2, 1)))?, "has 2 ids and 1 tokens"),
        ("a large id", post(template(pieces(2), large))?, "id 16777216 is too large"),
        ("a long token", post(template(pieces(2), long))?, "has 4097 bytes"),
        (
            "a decoder of decoders",
            part(
                "decoder",
                json!({"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": []}, {"type": "Fuse"}]}),
            )?,
            "decoder: a Sequence in a Sequence",
        ),
    ] {
        assert_says(what, &refusal(what, &file)?, &[says]);
    }
    Ok(())
}

#[test]
fn merges_that_are_no_pairs_are_refused_with_what_they_are() -> Result {
    for (merges, says) in [
        (json!([[]]), "invalid length 0"),
        (json!([["a"]]), "invalid length 1"),
        (json!([["a", "b", "c"]]), "invalid length 3"),
        (json!([["", "a"]]), "a merge with an empty token"),
        (json!([["a", ""]]), "a merge with an empty token"),
        (json!(["a"]), "\"a\" is not a merge"),
        (json!([" a"]), "\" a\" is not a merge"),
        (json!(["a "]), "\"a \" is not a merge"),
        (json!(["a b c"]), "\"a b c\" is not a merge"),
    ] {
        let what = merges.to_string();
        let file = letters(&json!({"a": 0, "b": 1, "ab": 2}), merges, &[])?;
        assert_says(&what, &refusal(&what, &file)?, &["model.merges", says]);
    }
    Ok(())
}

#[test]
fn merges_without_a_line_for_the_version_are_all_read() -> Result {
    let folder = Folder::of("gelu")?;
    folder.write("vocab.json", r#"{"h": 0, "e": 1, "he": 2, "hee": 3}"#)?;
    for (content, ids) in [
        ("h e\nhe e\n", &[3][..]),
        ("\nh e\nhe e\n", &[3]),
        ("#version: 0.2\nh e\nhe e", &[3]),
        ("h e\n", &[2, 1]),
        ("", &[0, 1, 1]),
    ] {
        folder.write("merges.txt", content)?;
        assert_eq!(open_tokenizer(&folder, 31)?.encode("hee")?, ids, "{content:?}");
    }
    Ok(())
}

/// Files with holes instead of content take no room on the disk.
#[test]
fn a_file_larger_than_any_tokenizers_is_refused_by_its_length() -> Result {
    for name in ["tokenizer.json", "vocab.json", "merges.txt"] {
        let folder = Folder::of("gelu")?;
        if name != "tokenizer.json" {
            folder.write("vocab.json", r#"{"h": 0}"#)?;
            folder.write("merges.txt", "")?;
        }
        let says = "67108865 bytes; expected at most 67108864";
        for (len, is_too_long) in [(64 << 20, false), ((64 << 20) + 1, true)] {
            // Zeros from the first byte on would be told as such.
            folder.write(name, "[")?;
            File::options().write(true).open(folder.file(name))?.set_len(len)?;
            let message = open_tokenizer(&folder, 31).expect_err("zeros").to_string();
            assert_eq!(message.contains(says), is_too_long, "{message}");
        }
    }
    Ok(())
}

#[test]
fn more_added_tokens_than_a_search_can_hold_are_refused() -> Result {
    let token = |content: String| {
        let mut token = added("");
        token["content"] = content.into();
        token
    };
    let many: Vec<String> = (0..65_537).map(|i| format!("<{i}>")).collect();
    let bytes: usize = many.iter().map(String::len).sum();
    assert!(bytes < 1 << 20, "not too many bytes");
    let long: Vec<String> = (0..257).map(|i| format!("{i:04096}")).collect();
    for (tokens, says) in [
        (many, format!("65537 tokens of {bytes} bytes; expected at most 65536 of 1048576")),
        (long, "257 tokens of 1052672 bytes".into()),
    ] {
        let tokens: Vec<Value> = tokens.into_iter().map(token).collect();
        let folder = with_tokenizer(&part("added_tokens", tokens.into())?)?;
        let message = open_tokenizer(&folder, 31).expect_err("too many").to_string();
        assert_says(&says, &message, &[&says]);
    }
    let mut large = added("<x>");
    large["id"] = json!(1 << 24);
    assert_says("id", &refusal("id", &part("added_tokens", json!([large]))?)?, &["id 16777216 is too large"]);
    Ok(())
}

#[test]
fn white_space_may_be_a_token_unless_another_takes_it() -> Result {
    let count = whole()?["model"]["vocab"].as_object().ok_or("a vocabulary")?.len();
    let token = |i: usize, content: &str, strip: &str| {
        let mut token = added(content);
        token["id"] = json!(count + i);
        if !strip.is_empty() {
            token[strip] = json!(true);
        }
        token
    };
    opened(&part("added_tokens", json!([token(0, "  ", "")]))?)?;
    for strip in ["lstrip", "rstrip"] {
        opened(&part("added_tokens", json!([token(0, "<s>", strip)]))?)?;
        let file = part("added_tokens", json!([token(0, "<s>", strip), token(1, "  ", "")]))?;
        assert_says(strip, &refusal(strip, &file)?, &["\"  \" begins or ends with white space"]);
    }
    Ok(())
}

#[test]
fn fields_that_older_files_leave_out_are_off() -> Result {
    let vocab = json!({"a": 0, "b": 1, "<0x78>": 2, "cd": 3});
    let without = |more: &[(&str, Value)]| -> Result<Value> {
        let mut file = letters(&vocab, json!([]), more)?;
        for field in ["fuse_unk", "byte_fallback", "ignore_merges"] {
            if more.iter().all(|(name, _)| *name != field) {
                file["model"].as_object_mut().ok_or("a model")?.remove(field);
            }
        }
        Ok(file)
    };
    let unknown = opened(&without(&[("unk_token", json!("b"))])?)?;
    assert_eq!(unknown.encode("xx")?, [1, 1], "neither joined nor spelled in bytes");
    let fused = opened(&without(&[("unk_token", json!("b")), ("fuse_unk", json!(true))])?)?;
    assert_eq!(fused.encode("xx")?, [1]);
    let plain = opened(&without(&[])?)?;
    assert_eq!(plain.unspellable("ax")?.characters(), [('x', 1)]);
    // A word that is a token is still spelled with merges.
    assert_eq!(plain.unspellable("cd")?.characters(), [('c', 1), ('d', 1)]);
    assert!(matches!(plain.encode("cd"), Err(LoadError::NothingLeft { .. })));
    let words = opened(&without(&[("ignore_merges", json!(true))])?)?;
    assert!(words.unspellable("cd")?.is_empty());
    assert_eq!(words.encode("cd")?, [3]);
    Ok(())
}

#[test]
fn words_are_split_before_their_letters_are_merged_unless_the_file_says_otherwise() -> Result {
    let mut file = whole()?;
    file["model"]["vocab"] = json!({"a": 0, "b": 1, "\u{120}": 2, "b\u{120}": 3});
    file["model"]["merges"] = json!([["b", "\u{120}"]]);
    file["added_tokens"] = json!([]);
    let byte_level = file["pre_tokenizer"].clone();
    assert_eq!(byte_level["use_regex"], json!(true));
    assert_eq!(opened(&file)?.encode("b b")?, [1, 2, 1]);
    file["pre_tokenizer"].as_object_mut().ok_or("a part")?.remove("use_regex");
    assert_eq!(opened(&file)?.encode("b b")?, [1, 2, 1]);
    file["pre_tokenizer"]["use_regex"] = json!(false);
    assert_eq!(opened(&file)?.encode("b b")?, [3, 1]);
    Ok(())
}

#[test]
fn a_trained_tokenizer_has_the_parts_of_gpt2s() -> Result {
    let file = whole()?;
    let gpt2s =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    assert_eq!((&file["pre_tokenizer"], &file["decoder"]), (&gpt2s, &gpt2s));
    assert_eq!(file["post_processor"]["trim_offsets"], json!(false));
    assert_eq!((&file["normalizer"], &file["added_tokens"][0]["special"]), (&Value::Null, &json!(true)));
    Ok(())
}

#[test]
fn the_longest_token_has_a_length_unless_text_is_changed_left_out_or_not_in_bytes() -> Result {
    // 25 merges make one token of the 26 letters, the only word.
    let trained = Tokenizer::train(&"abcdefghijklmnopqrstuvwxyz\n".repeat(20), 257 + 25)?;
    assert_eq!(trained.longest_token(), Some(26));
    let file: Value = serde_json::from_str(&trained.to_json()?)?;
    let longest = |place: &str, value: Value| -> Result<Option<usize>> {
        let mut file = file.clone();
        *file.pointer_mut(place).ok_or("a place")? = value;
        Ok(opened(&file).map_err(|e| format!("{place}: {e}"))?.longest_token())
    };
    let beside = |other: Value| json!({"type": "Sequence", "pretokenizers": [other, file["pre_tokenizer"]]});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let punctuation = |behavior: &str| json!({"type": "Punctuation", "behavior": behavior});
    let split = |behavior: &str| {
        let mut split = split(json!({"String": "x"}));
        split["behavior"] = json!(behavior);
        split
    };
    for (other, expected) in [
        (digits, Some(26)),
        (json!({"type": "Punctuation"}), Some(26)),
        (punctuation("Contiguous"), Some(26)),
        (punctuation("Removed"), None),
        (split("Isolated"), Some(26)),
        (split("Removed"), None),
        (json!({"type": "Whitespace"}), None),
        (json!({"type": "WhitespaceSplit"}), None),
    ] {
        let what = other.to_string();
        assert_eq!(longest("/pre_tokenizer", beside(other))?, expected, "{what}");
    }
    assert_eq!(longest("/pre_tokenizer", Value::Null)?, None);
    assert_eq!(longest("/normalizer", json!({"type": "Lowercase"}))?, None);
    assert_eq!(longest("/added_tokens/0/lstrip", json!(true))?, None);
    assert_eq!(longest("/added_tokens/0/rstrip", json!(true))?, None);
    let mut two = file["added_tokens"].clone();
    let mut strips = added(&"<x>".repeat(10));
    strips["id"] = json!(257 + 25);
    two.as_array_mut().ok_or("tokens")?.push(strips);
    assert_eq!(longest("/added_tokens", two.clone())?, Some(30), "the longest is one beside the vocabulary");
    two[1]["rstrip"] = json!(true);
    assert_eq!(longest("/added_tokens", two)?, None);

    // Without merges, `<|endoftext|>` is the longest.
    let bytes: Value = serde_json::from_str(&Tokenizer::train("ab", 257)?.to_json()?)?;
    let mut vocab = bytes["model"]["vocab"].clone();
    vocab.as_object_mut().ok_or("a vocabulary")?.remove("<|endoftext|>");
    let folder = Folder::of("gelu")?;
    folder.write("vocab.json", vocab.to_string())?;
    folder.write("merges.txt", "")?;
    assert_eq!(open_tokenizer(&folder, 31)?.longest_token(), Some(13));
    Ok(())
}

#[test]
fn a_normalizer_that_lengthens_text_shortens_what_may_be_given() -> Result {
    let of = |types: &[&str]| {
        let parts: Vec<Value> = types.iter().map(|kind| json!({"type": kind})).collect();
        json!({"type": "Sequence", "normalizers": parts})
    };
    let vocab = json!({"a": 0});
    // 2^20 bytes by the factor of the form, and by 2 for lower case: U+0130 has 2 bytes, and 3 in lower case.
    for (normalizer, most) in [
        (Value::Null, 1_048_576),
        (json!({"type": "StripAccents"}), 1_048_576),
        (of(&[]), 1_048_576),
        (json!({"type": "Lowercase"}), 524_288),
        (json!({"type": "NFC"}), 349_525),
        (json!({"type": "NFD"}), 349_525),
        (of(&["StripAccents", "NFC"]), 349_525),
        (json!({"type": "NFKC"}), 87_381),
        (of(&["NFC", "NFKD"]), 87_381),
        (of(&["Lowercase", "NFD"]), 174_762),
        (of(&["NFKC", "Lowercase"]), 43_690),
    ] {
        let what = normalizer.to_string();
        let mut file = letters(&vocab, json!([]), &[])?;
        file["normalizer"] = normalizer;
        let tokenizer = opened(&file)?;
        let text = "a".repeat(most);
        tokenizer.check_length(&text, 1 << 20).map_err(|e| format!("{what}: {e}"))?;
        let error = tokenizer.check_length(&(text + "a"), 1 << 20).expect_err("a byte too many").to_string();
        assert_says(&what, &error, &[&format!("at most {most}:")]);
    }
    Ok(())
}

#[test]
fn a_byte_that_is_a_token_is_spelled_in_hexadecimal() -> Result {
    let vocab = json!({"a": 0, "<0xC3>": 1, "<0xA4>": 2});
    let mut file = letters(&vocab, json!([]), &[("byte_fallback", json!(true))])?;
    file["decoder"] = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]});
    let tokenizer = opened(&file)?;
    assert_eq!(tokenizer.encode("aä")?, [0, 1, 2]);
    assert_eq!(tokenizer.decode(&[0, 1, 2]), "aä");
    assert_eq!(tokenizer.spelled(&[0, 1, 2]), ["a", "<C3>", "<A4>"]);
    // All bytes of a character must be tokens.
    assert_eq!(tokenizer.unspellable("äöa")?.characters(), [('ö', 1)]);
    Ok(())
}

#[test]
fn a_message_shows_ten_characters_and_names_those_that_show_nothing() -> Result {
    let tokenizer = opened(&letters(&json!({"a": 0}), json!([]), &[])?)?;
    let shown = |text: &str| -> Result<String> { Ok(tokenizer.unspellable(text)?.to_string()) };
    let ten = "'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k'";
    assert_eq!(shown("bcdefghijk")?, ten);
    assert_eq!(shown("bcdefghijkl")?, format!("{ten}, …"));
    assert_eq!(shown("a b  \n")?, "U+0020 (3), 'b', U+000A");
    Ok(())
}
