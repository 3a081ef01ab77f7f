//! The vocabulary and the merges of a BPE, from any of their files.
//!
//! Only what the crate tokenizers handles safely gets through: ids that are distinct and small, tokens of bounded
//! length, merges whose three tokens all exist.

use crate::stored::bytes::parse_json;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::fmt;
use tokenizers::models::bpe;

/// The most bytes of a file; the largest vocabularies in use take a fifth of that.
const LARGEST_FILE: usize = 64 << 20;
/// All ids are below this; the largest vocabularies in use need a 64th of it.
const MOST_IDS: u32 = 1 << 24;
/// GPT-2's own longest token has 256 bytes as letters.
const LONGEST_TOKEN: usize = 4096;

/// The token that stands between two texts.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

/// Tokens and their ids.
#[derive(Default)]
pub(super) struct Vocab(pub(super) bpe::Vocab);

/// Pairs of tokens that are merged into one, in order of priority.
#[derive(Default)]
pub(super) struct Merges(pub(super) bpe::Merges);

/// Refuses a file that is larger than any tokenizer's.
pub(super) fn check_len(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() <= LARGEST_FILE {
        return Ok(());
    }
    Err(format!("{} bytes; expected at most {LARGEST_FILE}", bytes.len()))
}

/// JSON into a value; the error names the field.
pub(super) fn read_json<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, String> {
    check_len(bytes)?;
    parse_json(bytes)
}

/// Whether `id` is small enough for a vocabulary.
pub(super) fn check_id(id: u32) -> Result<(), String> {
    if id < MOST_IDS { Ok(()) } else { Err(format!("id {id} is too large; expected less than {MOST_IDS}")) }
}

/// Whether `token` is short enough for a vocabulary.
pub(super) fn check_token(token: &str) -> Result<(), String> {
    if token.len() <= LONGEST_TOKEN {
        return Ok(());
    }
    let start: String = token.chars().take(20).collect();
    Err(format!("the token {start:?}… has {} bytes; expected at most {LONGEST_TOKEN}", token.len()))
}

impl Vocab {
    /// vocab.json
    pub(super) fn from_json(bytes: &[u8]) -> Result<Self, String> {
        read_json(bytes)
    }

    /// Tokens in the order of their ids.
    pub(super) fn from_list(tokens: &[&str]) -> Result<Self, String> {
        let mut vocab = Self::default();
        (0..).zip(tokens).try_for_each(|(id, token)| vocab.insert((*token).into(), id))?;
        Ok(vocab)
    }

    fn insert(&mut self, token: String, id: u32) -> Result<(), String> {
        check_id(id).and_then(|()| check_token(&token))?;
        match self.0.entry(token) {
            Entry::Vacant(place) => {
                place.insert(id);
                Ok(())
            }
            Entry::Occupied(first) => {
                Err(format!("token {:?} has two ids, {} and {id}", first.key(), first.get()))
            }
        }
    }

    /// Whether the three tokens of every merge are in the vocabulary.
    pub(super) fn check(&self, merges: &Merges) -> Result<(), String> {
        let mut merged = String::new();
        for (i, (a, b)) in merges.0.iter().enumerate() {
            merged.clear();
            merged.push_str(a);
            merged.push_str(b);
            if let Some(missing) = [a, b, &merged].into_iter().find(|token| !self.0.contains_key(*token)) {
                return Err(format!("merge {} ({a:?} {b:?}): {missing:?} is not in the vocabulary", i + 1));
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and their ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut vocab = Vocab::default();
                let mut ids = HashSet::new();
                while let Some((token, id)) = map.next_entry::<String, u32>()? {
                    if !ids.insert(id) {
                        let reason = format!("id {id} is given to two tokens; one is {token:?}");
                        return Err(A::Error::custom(reason));
                    }
                    vocab.insert(token, id).map_err(A::Error::custom)?;
                }
                Ok(vocab)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl Merges {
    /// A pair for each line.
    pub(super) fn from_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let pairs = lines.enumerate();
        let pairs = pairs.map(|(i, line)| pair(line).map_err(|reason| format!("merge {}: {reason}", i + 1)));
        pairs.collect::<Result<_, _>>().map(Self)
    }

    /// merges.txt: a line with the version, then one pair on each line.
    pub(super) fn from_text(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8: {e}"))?;
        let lines = text.trim_end_matches(['\r', '\n']).lines().enumerate();
        let pairs = lines.filter(|(i, line)| *i > 0 || !(line.is_empty() || line.starts_with("#version")));
        let pairs = pairs.map(|(i, line)| pair(line).map_err(|reason| format!("line {}: {reason}", i + 1)));
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

/// The two tokens of a line.
fn pair(line: &str) -> Result<(String, String), String> {
    match line.split_once(' ') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains(' ') => Ok((a.into(), b.into())),
        _ => {
            let start: String = line.chars().take(40).collect();
            Err(format!("{start:?} is not a merge; expected two tokens with a space between them"))
        }
    }
}

/// A merge of tokenizer.json: `"a b"` or `["a", "b"]`.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge, \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<Merge, E> {
                pair(line).map(|(a, b)| Merge(a, b)).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let missing = |n| A::Error::invalid_length(n, &Pair);
                let a: String = seq.next_element()?.ok_or_else(|| missing(0))?;
                let b: String = seq.next_element()?.ok_or_else(|| missing(1))?;
                if a.is_empty() || b.is_empty() {
                    return Err(A::Error::custom("a merge with an empty token"));
                }
                match seq.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(Merge(a, b)),
                    Some(_) => Err(missing(3)),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Merges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
                let mut merges = vec![];
                while let Some(Merge(a, b)) = seq.next_element()? {
                    merges.push((a, b));
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(All)
    }
}
