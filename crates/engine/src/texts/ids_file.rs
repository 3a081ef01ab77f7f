//! Token ids from a file: numbers in a text, or 16 bits each, as nanoGPT and llm.c write them.

use super::read::{open_text, read_file};
use crate::observer::Observer;
use anyhow::{Context, bail};
use std::io::Read;
use std::path::Path;

/// The first number of llm.c's files of GPT-2 tokens, whose header has [`HEADER`] bytes: this number, a version and how many tokens follow.
const LLM_C: u32 = 20_240_520;
const HEADER: usize = 1024;

/// Reads the ids in a file of at most `limit` bytes: a `.bin` file holds 16 bits for each, little-endian, with or without llm.c's
/// header; any other file is a text of numbers between spaces, commas or brackets.
///
/// # Errors
/// When the file cannot be read, is longer, or holds anything else.
pub fn read_ids(path: &Path, limit: u64, observer: &dyn Observer) -> anyhow::Result<Vec<u32>> {
    if path.extension().is_none_or(|end| end != "bin") {
        return of_text(&read_file("the ids", path, limit, observer)?)
            .with_context(|| path.display().to_string());
    }
    let mut bytes = vec![];
    let read = open_text(path, observer)
        .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read the ids from {}", path.display()))?;
    if read as u64 > limit {
        bail!("{}: is longer than {limit} bytes; shorten it", path.display());
    }
    of_bytes(&bytes).with_context(|| path.display().to_string())
}

fn of_text(text: &str) -> anyhow::Result<Vec<u32>> {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']'));
    let words = words.filter(|word| !word.is_empty()).enumerate();
    words
        .map(|(i, word)| {
            word.parse().ok().with_context(|| {
                let shown: String = word.chars().take(20).collect();
                format!(
                    "{shown:?} is no token id (number {}); expected numbers between spaces or commas",
                    i + 1
                )
            })
        })
        .collect()
}

fn of_bytes(bytes: &[u8]) -> anyhow::Result<Vec<u32>> {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let ids = if number(0) == Some(LLM_C) && bytes.len() >= HEADER {
        if number(4) != Some(1) {
            bail!("is version {} of llm.c's tokens, expected 1", number(4).unwrap_or(0));
        }
        let (_, ids) = bytes.split_at(HEADER);
        let expected = number(8).unwrap_or(0);
        if ids.len() as u64 != 2 * u64::from(expected) {
            bail!("has {} bytes of ids, and its header says {expected} ids of 2 bytes", ids.len());
        }
        ids
    } else {
        bytes
    };
    let (pairs, rest) = ids.as_chunks::<2>();
    if !rest.is_empty() {
        bail!("has {} bytes, expected 2 for each id", ids.len());
    }
    Ok(pairs.iter().map(|pair| u16::from_le_bytes(*pair).into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_holds_numbers_between_spaces_commas_and_brackets() -> anyhow::Result<()> {
        assert_eq!(of_text("1 22,3\n[4, 50256]\t")?, [1, 22, 3, 4, 50256]);
        assert!(of_text("")?.is_empty());
        for (text, named) in
            [("1 two 3", "\"two\" is no token id (number 2)"), ("-1", "\"-1\""), ("4294967296", "number 1")]
        {
            let error = of_text(text).expect_err(text).to_string();
            assert!(error.contains(named), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_bin_file_holds_two_bytes_an_id_with_or_without_a_header() -> anyhow::Result<()> {
        let ids = [7u8, 0, 0, 1, 80, 196];
        assert_eq!(of_bytes(&ids)?, [7, 256, 50256]);
        let header = |magic: u32, version: u32, count: u32| {
            let mut bytes: Vec<u8> = [magic, version, count].iter().flat_map(|n| n.to_le_bytes()).collect();
            bytes.resize(HEADER, 0);
            [&bytes, &ids[..]].concat()
        };
        assert_eq!(of_bytes(&header(LLM_C, 1, 3))?, [7, 256, 50256]);
        assert_eq!(of_bytes(&header(5, 1, 3))?.len(), HEADER / 2 + 3, "no header of llm.c");
        for (bytes, named) in [
            (header(LLM_C, 2, 3), "version 2"),
            (header(LLM_C, 1, 4), "says 4 ids"),
            (vec![1, 2, 3], "3 bytes"),
        ] {
            let error = of_bytes(&bytes).expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        }
        Ok(())
    }
}
