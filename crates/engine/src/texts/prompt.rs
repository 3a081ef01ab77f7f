//! A text or token ids as the prompt of a run.

use super::encoded::{Encoded, encode};
use crate::observer::Observer;
use crate::open::Opened;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// A text, or token ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Ids(vec![])
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u32>> for Content {
    fn from(ids: Vec<u32>) -> Self {
        Self::Ids(ids)
    }
}

/// Token ids that fit a model's context, and the text of each.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The ids.
    pub ids: Vec<u32>,
    /// The text of each token.
    pub tokens: Vec<String>,
    /// The text of each token for display: see [`Opened::shown`].
    pub shown: Vec<String>,
    /// The given text; `None` for ids.
    pub text: Option<String>,
}

impl Prompt {
    /// A text or ids as a prompt; `what` names it in errors.
    ///
    /// # Errors
    /// When it is empty, too long, or the model has no tokenizer for a text.
    pub fn new(
        opened: &Opened,
        content: &Content,
        what: &str,
        observer: &dyn Observer,
    ) -> anyhow::Result<Self> {
        match content {
            Content::Text(text) => Self::of_text(opened, text, what, observer),
            Content::Ids(ids) => Self::of_ids(opened, ids.clone(), None, what),
        }
    }

    /// A text as a prompt; `what` names it in errors.
    ///
    /// # Errors
    /// When it is empty, too long, or the model has no tokenizer.
    pub fn of_text(opened: &Opened, text: &str, what: &str, observer: &dyn Observer) -> anyhow::Result<Self> {
        if text.is_empty() {
            return Self::of_ids(opened, vec![], None, what);
        }
        let encoded = opened.encode(text, what)?;
        Self::of_ids(opened, noted(encoded, observer), Some(text.to_owned()), what)
    }

    /// Token ids as a prompt; `what` names it in errors.
    ///
    /// # Errors
    /// When there are none, or too many.
    pub fn of_ids(opened: &Opened, ids: Vec<u32>, text: Option<String>, what: &str) -> anyhow::Result<Self> {
        let n = opened.model.config().n_positions;
        if ids.is_empty() {
            bail!("{what} is empty: give at least one token of text");
        }
        if ids.len() > n {
            bail!("{what} has {} tokens, but the model has n_positions = {n}: shorten it", ids.len());
        }
        Ok(Self { tokens: opened.labels(&ids), shown: opened.shown(&ids), ids, text })
    }
}

/// The ids of an encoded text; notes what the vocabulary cannot spell.
pub fn noted(encoded: Encoded, observer: &dyn Observer) -> Vec<u32> {
    if let Some(text) = &encoded.note {
        observer.note(text);
    }
    encoded.ids
}

/// The tokens of a text that the model can read in one pass; `what` names the text in errors.
///
/// # Errors
/// When it has none, too many, or the model has no tokenizer.
pub fn tokens_within(
    opened: &Opened,
    content: &Content,
    what: &str,
    observer: &dyn Observer,
) -> anyhow::Result<Vec<u32>> {
    let n = opened.model.config().n_positions;
    let ids = match content {
        Content::Text(text) => noted(opened.encode(text, what)?, observer),
        Content::Ids(ids) => ids.clone(),
    };
    if ids.is_empty() || ids.len() > n {
        let has = if ids.is_empty() { "no token".to_owned() } else { format!("{} tokens", ids.len()) };
        bail!("{what} has {has}, expected 1 to the model's n_positions = {n}");
    }
    Ok(ids)
}

/// The id of the single token that spells `text`, which the option `what` gives.
///
/// # Errors
/// When the text is several tokens, or no id where the model has no tokenizer.
pub fn single_token(opened: &Opened, what: &str, text: &str, observer: &dyn Observer) -> anyhow::Result<u32> {
    let tokenizer = match opened.tokenizer() {
        Ok(tokenizer) => tokenizer,
        // Without a tokenizer, prompts are ids, and so are targets.
        Err(e) => match text.parse() {
            Ok(id) => return Ok(id),
            Err(_) => return Err(e).with_context(|| format!("{what} {text:?} is not an id")),
        },
    };
    let ids = noted(encode(tokenizer, text, what)?, observer);
    match ids[..] {
        [id] => Ok(id),
        _ => bail!(
            "{what} {text:?} is {} tokens ({}), expected one; a word inside a text begins with its space",
            ids.len(),
            opened.labels(&ids).iter().map(|t| format!("{t:?}")).collect::<Vec<_>>().join(", ")
        ),
    }
}
