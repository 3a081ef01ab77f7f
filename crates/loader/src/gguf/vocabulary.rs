//! The tokenizer of a GGUF file.

use super::header::Header;
use super::value::Value;

/// The parts of a byte-level BPE.
pub(crate) struct Vocabulary<'a> {
    /// By id.
    pub(crate) tokens: Vec<&'a str>,
    /// Pairs with a space between, in order of priority.
    pub(crate) merges: Vec<&'a str>,
    /// The ids of tokens that stand for their own text.
    pub(crate) special: Vec<u32>,
}

/// llama.cpp's types of tokens that are searched for in the text before any other step.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const TYPES: &str = "tokenizer.ggml.token_type";

/// The tokenizer that the file holds, if any.
pub(crate) fn vocabulary(bytes: &[u8]) -> Result<Option<Vocabulary<'_>>, String> {
    let header = Header::parse(bytes)?;
    let kind = header.text("tokenizer.ggml.model")?;
    match kind {
        None => return Ok(None),
        Some("gpt2") => {}
        Some(other) => return Err(format!("tokenizer.ggml.model is {other:?}; expected \"gpt2\"")),
    }
    if let Some(other) =
        header.text("tokenizer.ggml.pre")?.filter(|pre| !["gpt-2", "default", ""].contains(pre))
    {
        return Err(format!("tokenizer.ggml.pre is {other:?}; expected \"gpt-2\""));
    }
    let list = |key: &str| match header.get(key) {
        Some(Value::List(list)) => Ok(list),
        _ => Err(format!("{key} is missing, or is no list")),
    };
    let tokens = list(TOKENS)?.texts(TOKENS)?;
    // Writers leave out an empty list.
    let merges = if header.get(MERGES).is_some() { list(MERGES)?.texts(MERGES)? } else { vec![] };
    let types = if header.get(TYPES).is_some() { list(TYPES)?.integers(TYPES)? } else { vec![] };
    if !types.is_empty() && types.len() != tokens.len() {
        return Err(format!("{TYPES} has {} elements for {} tokens", types.len(), tokens.len()));
    }
    let special = (0..)
        .zip(types)
        .filter(|(_, kind)| [CONTROL, USER_DEFINED].contains(kind))
        .map(|(id, _)| id)
        .collect();
    Ok(Some(Vocabulary { tokens, merges, special }))
}
