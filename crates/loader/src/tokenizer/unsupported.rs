//! The errors for tokenizers of another kind, which name it.

use super::vocab::{check_len, read_json};
use crate::error::LoadError;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::Path;

/// The remedy for a tokenizer of another kind.
const CONVERT: &str = "write a byte-level BPE as tokenizer.json, as transformers' save_pretrained does";
const EXPECTED: &str = "only byte-level BPE, GPT-2's kind, is read";

/// The error for a file that another kind of tokenizer has.
pub(super) fn of_file(path: &Path) -> LoadError {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let kind = match name.rsplit('.').next() {
        _ if name == "vocab.txt" => "a WordPiece vocabulary, as of BertTokenizer",
        _ if name == "tekken.json" || name.contains("tiktoken") => "a vocabulary of tiktoken's form",
        Some("model" | "spm") => "a SentencePiece model",
        _ => "a file of a BPE over characters",
    };
    other(&path.display().to_string(), &format!("is {kind}; {EXPECTED}"))
}

/// The error for files that transformers reads with the class of another kind of tokenizer.
pub(super) fn of_class(name: &str, class: &str) -> LoadError {
    other(name, &format!("tokenizer_class is {class:?}, whose way to split text is not GPT-2's; {EXPECTED}"))
}

/// The error for a tokenizer.json that holds another kind of model, if it does.
pub(super) fn of_json(name: &str, bytes: &[u8]) -> Option<LoadError> {
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(rename = "type")]
        kind: Option<String>,
        merges: Option<IgnoredAny>,
        /// Unigram's alone.
        unk_id: Option<IgnoredAny>,
        /// `WordPiece`'s alone.
        max_input_chars_per_word: Option<IgnoredAny>,
    }
    check_len(bytes).ok()?;
    let model = read_json::<File>(bytes).ok()?.model;
    let kind = match model {
        Model { kind: Some(kind), .. } => kind,
        Model { merges: Some(_), .. } => return None,
        Model { unk_id: Some(_), .. } => "Unigram".into(),
        Model { max_input_chars_per_word: Some(_), .. } => "WordPiece".into(),
        _ => return None,
    };
    let kind: String = kind.chars().take(40).collect();
    (kind != "BPE").then(|| other(name, &format!("is of the kind {kind}; {EXPECTED}")))
}

fn other(name: &str, reason: &str) -> LoadError {
    LoadError::OtherTokenizer { name: name.to_string(), reason: reason.to_string(), remedy: CONVERT }
}
