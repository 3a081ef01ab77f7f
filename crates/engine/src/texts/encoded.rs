//! A text as tokens that fit a model.

use crate::open::Opened;
use anyhow::bail;
use gpt2_loader::{LoadError, Tokenizer};

/// The tokens of a text, and what a reader should know of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<u32>,
    /// A note about the characters that the vocabulary cannot spell, if there are any: they are left out.
    pub note: Option<String>,
}

/// The tokens of `text`, which the note calls `what`.
///
/// # Errors
/// When the tokenizer fails.
pub fn encode(tokenizer: &Tokenizer, text: &str, what: &str) -> Result<Encoded, LoadError> {
    let ids = tokenizer.encode(text)?;
    let left_out = tokenizer.unspellable(text)?;
    let note = (!left_out.is_empty()).then(|| {
        let (total, s) = (left_out.total(), if left_out.total() == 1 { "" } else { "s" });
        format!("the vocabulary cannot spell {total} character{s} of {what}, left out: {left_out}")
    });
    Ok(Encoded { ids, note })
}

/// Like [`encode`], for a text that must fit a context of `n` tokens.
///
/// # Errors
/// When the text has more tokens, or the tokenizer fails.
pub fn encode_within(tokenizer: &Tokenizer, text: &str, what: &str, n: usize) -> anyhow::Result<Encoded> {
    // Tokenizing takes a hundred times the text's memory, so a text far too long is cut first.
    let most = match tokenizer.check_length(text, n) {
        Err(LoadError::PromptTooLong { most, .. }) => {
            (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
        }
        checked => checked.map(|()| text.len())?,
    };
    let is_whole = most == text.len();
    let encoded = if is_whole {
        encode(tokenizer, text, what)?
    } else {
        Encoded { ids: tokenizer.encode(&text[..most])?, note: None }
    };
    if is_whole && encoded.ids.len() <= n {
        return Ok(encoded);
    }
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let characters = |text: &str| count(text.chars().count(), "character");
    let has = if is_whole { count(encoded.ids.len(), "token") } else { characters(text) };
    // The last token that fits may be a part of a character.
    let read = tokenizer.decode(&encoded.ids[..encoded.ids.len().min(n)]);
    let first = characters(read.trim_end_matches('\u{fffd}'));
    bail!(
        "{what} has {has}, but the model reads n_positions = {n} tokens, which is about the first {first} of it: shorten it"
    )
}

impl Opened {
    /// The tokens of a text that fits the model's context, after the first token if texts are read so; `what` names it in errors.
    ///
    /// # Errors
    /// When the model has no tokenizer, or the text has too many tokens.
    pub fn encode(&self, text: &str, what: &str) -> anyhow::Result<Encoded> {
        self.encode_after(self.first_token, text, what)
    }

    /// Like [`Opened::encode`], after the given token or none.
    ///
    /// # Errors
    /// See [`Opened::encode`].
    pub fn encode_after(&self, first: Option<u32>, text: &str, what: &str) -> anyhow::Result<Encoded> {
        let room = self.model.config().n_positions - usize::from(first.is_some());
        let mut encoded = encode_within(self.tokenizer()?, text, what, room)?;
        encoded.ids.splice(0..0, first);
        Ok(encoded)
    }
}
