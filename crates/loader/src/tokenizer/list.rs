//! [`Tokenizer::list`]: a vocabulary as plain lists, as GGUF files hold it.

use super::spelling::letters;
use super::{Kind, Tokenizer};
use crate::error::LoadError;
use serde_json::Value;
use std::collections::HashMap;
use tiktoken_rs::CoreBPE;

/// A byte-level BPE as lists.
pub(crate) struct List {
    /// By id, the bytes as letters; `None` where there is no token.
    pub(crate) tokens: Vec<Option<String>>,
    /// Pairs with a space between, in order of priority.
    pub(crate) merges: Vec<String>,
    /// The ids of tokens that stand for their own text, and whether each is special: not part of a text.
    pub(crate) added: Vec<(u32, bool)>,
    pub(crate) end_of_text: Option<u32>,
}

impl Tokenizer {
    /// The vocabulary and the merges.
    ///
    /// # Errors
    /// When the tokenizer has a part that lists cannot hold: anything but GPT-2's way to split text.
    pub(crate) fn list(&self) -> Result<List, LoadError> {
        let failed = |reason: String| LoadError::Tokenizer {
            name: self.name.clone(),
            reason: format!("a GGUF file cannot hold it: {reason}"),
        };
        let list = match &self.kind {
            Kind::Gpt2(bpe) => of_gpt2(bpe),
            Kind::HuggingFace(_) => {
                let json = serde_json::from_str(&self.to_json()?).map_err(|e| failed(e.to_string()))?;
                of_json(&json).map_err(failed)?
            }
        };
        Ok(List { end_of_text: self.end_of_text(), ..list })
    }
}

/// All but the end of text.
fn of_json(json: &Value) -> Result<List, String> {
    check_plain(json)?;
    let vocab = json["model"]["vocab"].as_object().ok_or("there is no vocabulary")?;
    let mut tokens: Vec<Option<String>> = vec![];
    let mut put = |token: &str, id: &Value| -> Result<u32, String> {
        let id = id
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| format!("{token:?} has no id"))?;
        let at = id as usize;
        if tokens.len() <= at {
            tokens.resize(at + 1, None);
        }
        tokens[at] = Some(token.to_string());
        Ok(id)
    };
    for (token, id) in vocab {
        put(token, id)?;
    }
    let mut added = vec![];
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let id = put(token["content"].as_str().unwrap_or_default(), &token["id"])?;
        added.push((id, token["special"] == true));
    }
    let merge = |merge: &Value| match merge {
        Value::String(pair) => Some(pair.clone()),
        pair => Some(format!("{} {}", pair[0].as_str()?, pair[1].as_str()?)),
    };
    let merges = json["model"]["merges"].as_array().into_iter().flatten();
    let merges =
        merges.map(|pair| merge(pair).ok_or("a merge is not a pair of tokens")).collect::<Result<_, _>>()?;
    Ok(List { tokens, merges, added, end_of_text: None })
}

/// Refuses parts that change the text, or split it in another way than GPT-2's.
fn check_plain(json: &Value) -> Result<(), String> {
    let model = &json["model"];
    let split = &json["pre_tokenizer"];
    let nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    for part in
        ["unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"]
    {
        if !nothing(&model[part]) {
            return Err(format!("model.{part} is {}", model[part]));
        }
    }
    if !nothing(&json["normalizer"]) {
        return Err(format!("normalizer is {}", json["normalizer"]["type"]));
    }
    let is_gpt2s =
        split["type"] == "ByteLevel" && split["add_prefix_space"] == false && split["use_regex"] == true;
    if !is_gpt2s {
        return Err(format!("pre_tokenizer is {split}; expected GPT-2's ByteLevel"));
    }
    check_adds_nothing(&json["post_processor"])?;
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        for flag in ["lstrip", "rstrip", "single_word"] {
            if token[flag] == true {
                return Err(format!("the token {} has {flag}", token["content"]));
            }
        }
    }
    Ok(())
}

/// Refuses a post-processor that puts tokens around a text. A template of the text alone, as transformers writes it, puts
/// none.
fn check_adds_nothing(post: &Value) -> Result<(), String> {
    match post["type"].as_str() {
        None | Some("ByteLevel") => Ok(()),
        Some("Sequence") => {
            post["processors"].as_array().into_iter().flatten().try_for_each(check_adds_nothing)
        }
        Some("TemplateProcessing") => {
            let mut pieces = post["single"].as_array().into_iter().flatten();
            match pieces.find_map(|piece| piece["SpecialToken"]["id"].as_str()) {
                Some(token) => Err(format!("post_processor puts {token:?} around a text")),
                None => Ok(()),
            }
        }
        Some(other) => Err(format!("post_processor is {other:?}")),
    }
}

/// GPT-2's own vocabulary. The pair that makes a token is what merges of lower rank leave of its bytes.
fn of_gpt2(bpe: &CoreBPE) -> List {
    let bytes: Vec<Vec<u8>> = (0..).map_while(|id| bpe.decode_bytes(&[id]).ok()).collect();
    let special: Vec<u32> =
        bpe.special_tokens().iter().flat_map(|text| bpe.encode_with_special_tokens(text)).collect();
    let is_special = |id: usize| special.iter().any(|of| *of as usize == id);
    let ranks: HashMap<&[u8], usize> = bytes
        .iter()
        .enumerate()
        .filter(|(id, _)| !is_special(*id))
        .map(|(id, bytes)| (bytes.as_slice(), id))
        .collect();
    let letters = letters();
    let text = |bytes: &[u8]| bytes.iter().map(|byte| letters[usize::from(*byte)]).collect::<String>();
    let mut merges = vec![];
    let mut tokens = vec![];
    for (id, of) in bytes.iter().enumerate() {
        if is_special(id) {
            tokens.push(Some(String::from_utf8_lossy(of).into_owned()));
            continue;
        }
        tokens.push(Some(text(of)));
        if of.len() > 1 {
            let at = last_split(of, id, &ranks);
            merges.push(format!("{} {}", text(&of[..at]), text(&of[at..])));
        }
    }
    let added = special.into_iter().map(|id| (id, true)).collect();
    List { tokens, merges, added, end_of_text: None }
}

/// The index in a token's bytes at which the last merge that makes the token joins them; `rank` is the token's rank.
fn last_split(token: &[u8], rank: usize, ranks: &HashMap<&[u8], usize>) -> usize {
    let mut starts: Vec<usize> = (0..=token.len()).collect();
    while starts.len() > 3 {
        let of =
            |i: usize| ranks.get(&token[starts[i]..starts[i + 2]]).copied().filter(|found| *found < rank);
        let best = (0..starts.len() - 2).filter_map(|i| Some((of(i)?, i))).min();
        let Some((_, i)) = best else { break };
        starts.remove(i + 1);
    }
    starts[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GPT-2's merges begin and end as in its merges.txt.
    #[test]
    fn gpt2s_vocabulary_gives_its_merges_back() {
        let list = Tokenizer::gpt2().list().expect("lists");
        assert_eq!((list.tokens.len(), list.merges.len()), (50257, 50000));
        assert_eq!(list.merges[..4], ["Ġ t", "Ġ a", "h e", "i n"]);
        assert_eq!(list.merges[49999], "Ġg azed");
        assert_eq!((list.tokens[50256].as_deref(), list.added), (Some("<|endoftext|>"), vec![(50256, true)]));
    }
}
