//! [`LoadError`]: one variant a cause.

use crate::Audit;
use std::path::{Path, PathBuf};

/// Why weights could not be loaded or saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Nothing is there.
    #[error(
        "{path}: no such directory; expected a folder with config.json and model.safetensors, \
         as transformers' save_pretrained writes it", path = path.display()
    )]
    NotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// A file where a folder is needed.
    #[error("{path}: is a file; name the folder that holds it, with its config.json", path = path.display())]
    NotADirectory {
        /// What was asked for.
        path: PathBuf,
    },
    /// A folder without a config.
    #[error("{dir}: no config.json here; expected a folder as transformers' save_pretrained writes it", dir = dir.display())]
    NoConfig {
        /// The folder.
        dir: PathBuf,
    },
    /// A folder without weights.
    #[error(
        "{dir}: no weights here; expected model.safetensors, model.safetensors.index.json with its shards, \
         or pytorch_model.bin", dir = dir.display()
    )]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// A folder without a tokenizer for a vocabulary that is not GPT-2's.
    #[error(
        "{name}: no tokenizer here; expected tokenizer.json, or vocab.json with merges.txt \
         (a vocabulary of {vocab_size} is not GPT-2's own 50257); give token ids instead of text"
    )]
    NoTokenizer {
        /// The source.
        name: String,
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// One of the two files of a tokenizer.
    #[error("{dir}: {missing} is missing; vocab.json and merges.txt only serve together", dir = dir.display())]
    HalfTokenizer {
        /// The folder.
        dir: PathBuf,
        /// The file that is not there.
        missing: &'static str,
    },
    /// JSON that does not parse, or not into what it should hold.
    #[error("{path}: {field}{source}; expected a {expected}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the file should hold.
        expected: &'static str,
        /// The field that does not fit and a colon; empty where the file is no JSON.
        field: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A config that this project does not compute.
    #[error("{path}: {reason}", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The field, its value and what is expected.
        reason: candle_core::Error,
    },
    /// A weights file that is not whole, or not what its name says.
    #[error("{path}: damaged or not a {format} file: {reason}; {remedy}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The format that its name promises.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Tensors that are missing, left over or of another shape.
    #[error("{0}")]
    Audit(Box<Audit>),
    /// A tokenizer file that cannot be used, or text that it cannot encode.
    #[error("{name}: tokenizer: {reason}; fetch its files again, or give token ids instead of text")]
    Tokenizer {
        /// The file or source.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Candle failed on tensors whose names and shapes were right.
    #[error("{name}: {source}")]
    Tensor {
        /// The checkpoint.
        name: String,
        /// Candle's reason.
        source: candle_core::Error,
    },
}

impl LoadError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn damaged(path: &Path, format: &'static str, bytes: &[u8], reason: impl ToString) -> Self {
        Self::Damaged { path: path.to_path_buf(), format, reason: reason.to_string(), remedy: remedy(bytes) }
    }
}

/// What the beginning of a wrong file says about how it came to be there.
fn remedy(bytes: &[u8]) -> &'static str {
    let start = bytes.trim_ascii_start();
    if bytes.is_empty() {
        "the file is empty: fetch it again"
    } else if bytes.starts_with(b"version https://git-lfs") {
        "this is a git-lfs pointer, not the weights: run `git lfs pull` in its repository"
    } else if start.starts_with(b"<") {
        "this looks like a web page, not the weights: fetch the file again"
    } else {
        "fetch the file again"
    }
}
