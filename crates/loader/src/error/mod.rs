//! [`LoadError`]: everything that can go wrong between a source and a model.

pub(crate) mod adapter_audit;
pub(crate) mod audit;
pub(crate) mod hub_error;
pub(crate) mod refusal;
pub(crate) mod unspellable;

use crate::stored::recognize::FileKind;
use adapter_audit::AdapterAudit;
use audit::Audit;
use hub_error::HubError;
use refusal::Refusal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unspellable::Unspellable;

/// The error of a model that could not be loaded or saved. It says what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file system operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path that was read or written.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The path does not exist.
    #[error(
        "{}: no such directory, nor the name of a model on the Hub (owner/name, gpt2, gpt2-medium, gpt2-large, \
         gpt2-xl, distilgpt2); expected a folder with config.json and model.safetensors",
        path.display()
    )]
    NotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// A file where a folder is needed.
    #[error("{}: is a file; name the folder that holds it, with its config.json", path.display())]
    NotADirectory {
        /// The requested path.
        path: PathBuf,
    },
    /// A folder without a config.
    #[error(
        "{}: no config.json here; expected a folder as transformers' save_pretrained writes it{}",
        dir.display(),
        instead(found)
    )]
    NoConfig {
        /// The folder.
        dir: PathBuf,
        /// The files there that may be meant, and their use; empty if there are none.
        found: String,
    },
    /// A folder without weights.
    #[error(
        "{}: no weights here; expected model.safetensors or pytorch_model.bin, or the index of either (such as \
         model.safetensors.index.json) with its shards{}",
        dir.display(),
        instead(found)
    )]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// The files there that may be meant, and their use; empty if there are none.
        found: String,
    },
    /// Weights in several files that are in memory.
    #[error(
        "{name}: weights in several files; expected one model.safetensors, pytorch_model.bin or GGUF file (shards are read \
         from a folder on disk only)"
    )]
    SeveralFiles {
        /// The source.
        name: String,
    },
    /// Weights of several models of these sizes in one file.
    #[error(
        "{name}: holds several models of the same names, under `{places}`; expected one: save the one that you want by \
         itself, under its own names"
    )]
    SeveralModels {
        /// The source.
        name: String,
        /// The keys, or the prefixes of the names.
        places: String,
    },
    /// A folder without a tokenizer for a vocabulary that is not GPT-2's.
    #[error(
        "{name}: no tokenizer here; expected tokenizer.json, or vocab.json with merges.txt (a vocabulary of \
         {vocab_size} is not GPT-2's own 50257); give token ids instead of text"
    )]
    NoTokenizer {
        /// The source.
        name: String,
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// One of the two files of a tokenizer.
    #[error(
        "{}: {missing} is missing; vocab.json and merges.txt only serve together, as do encoder.json and vocab.bpe",
        dir.display()
    )]
    HalfTokenizer {
        /// The folder.
        dir: PathBuf,
        /// The file that is not there.
        missing: &'static str,
    },
    /// JSON that does not parse, or has the wrong structure.
    #[error("{}: {reason}; expected a {expected}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The expected content of the file.
        expected: &'static str,
        /// Why it does not fit, and in which field if the file is JSON.
        reason: String,
    },
    /// A config that this project does not support.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The field, its value and what is expected.
        reason: candle_core::Error,
    },
    /// A model that a GGUF file cannot hold, or one that was not written well.
    #[error("{name}: cannot be written as GGUF: {reason}")]
    Gguf {
        /// The model, or the file.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A weight file that is truncated, or not of the format that its name says.
    #[error("{}: damaged or not a {format} file: {reason}; {remedy}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The format that its name promises.
        format: &'static str,
        /// The reason.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A file of another kind than its name or its place promises.
    #[error("{}: is {found}; expected a {expected}{}; {remedy}", path.display(), file_of(expected))]
    OtherFile {
        /// The file.
        path: PathBuf,
        /// The format that is needed there.
        expected: &'static str,
        /// The file's kind.
        found: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A sound file whose content this crate does not read.
    #[error("{}: {reason}", path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// The file's kind, the kinds that are read, and the remedy.
        reason: String,
    },
    /// Tensors that are missing, left over or of another shape.
    #[error("{0}")]
    Audit(Box<Audit>),
    /// An adapter that this project does not support, or that fits no model.
    #[error("{name}: {reason}")]
    Adapter {
        /// The adapter, or its config.
        name: String,
        /// The reason.
        reason: String,
    },
    /// Tensors of an adapter that are missing, left over, of another shape or not finite.
    #[error("{0}")]
    AdapterAudit(Box<AdapterAudit>),
    /// A dictionary of features that this project does not support, or that is damaged.
    #[error("{name}: {reason}")]
    Dictionary {
        /// The dictionary, or the file of it that is at fault.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A model with a number that a file cannot hold.
    #[error("{parameter} holds {}{}", short(*value), because(*value, *most, format, remedy))]
    NotSavable {
        /// The parameter.
        parameter: String,
        /// Its first such number.
        value: f64,
        /// The number format of the file.
        format: String,
        /// The largest number that fits.
        most: f64,
        /// The remedy for a number that is too large.
        remedy: &'static str,
    },
    /// A tokenizer file that cannot be used, or text that it cannot encode.
    #[error(
        "{name}: tokenizer: {reason}; if the file is damaged, fetch it again; otherwise give token ids instead of text"
    )]
    Tokenizer {
        /// The file or source.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A tokenizer of another kind, or settings of one that have no meaning.
    #[error("{name}: tokenizer: {reason}; {remedy}, or give token ids instead of text")]
    OtherTokenizer {
        /// The file or source.
        name: String,
        /// The kind, or the setting, and what is expected.
        reason: String,
        /// Another way out than token ids.
        remedy: &'static str,
    },
    /// A tokenizer that could not be fetched.
    #[error("{name}: tokenizer: {reason}; fetch its files again, or give token ids instead of text")]
    TokenizerUnreachable {
        /// The source.
        name: String,
        /// The error of the request.
        reason: Arc<LoadError>,
    },
    /// A text that gives no tokens.
    #[error("{name}: the text gives no tokens{}; give other text, or token ids", none_of(characters))]
    NothingLeft {
        /// The tokenizer's file.
        name: String,
        /// The characters that the vocabulary cannot spell; empty if the text holds only separators of words.
        characters: Unspellable,
    },
    /// A prompt that is too long for any tokenization to fit.
    #[error(
        "the prompt has {bytes} bytes; a model with n_positions = {n_positions} tokens reads at most {most}: \
         shorten it"
    )]
    PromptTooLong {
        /// The text's length.
        bytes: usize,
        /// The most that can be read.
        most: usize,
        /// The positions of the model.
        n_positions: usize,
    },
    /// Candle failed on tensors whose names and shapes were right.
    #[error("{name}: {source}")]
    Tensor {
        /// The checkpoint.
        name: String,
        /// Candle's reason.
        source: candle_core::Error,
    },
    /// An operation on tensors failed in the caller's code, such as a forward pass after loading. Errors of the loader's own
    /// operations name the checkpoint: [`Tensor`](Self::Tensor).
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// The caller's listener ended the work.
    #[error("{0}")]
    Interrupted(candle_core::Error),
    /// The Hub, or the cache of its files, did not give what was asked for.
    #[error("{error}{remedy}", error = .0, remedy = and_remedy(.0))]
    Hub(HubError),
}

/// The remedy for a Hub error, after a semicolon; empty if the error's own text says it.
fn and_remedy(error: &HubError) -> String {
    error.remedy().map_or_else(String::new, |remedy| format!("; {remedy}"))
}

/// The contents of a folder without the wanted file, after a semicolon.
fn instead(found: &str) -> String {
    if found.is_empty() { String::new() } else { format!("; {found}") }
}

/// The word "file" after a format's name; what a JSON file should hold is named without it.
fn file_of(format: &str) -> &'static str {
    if format.contains("config") || format.ends_with("index") { "" } else { " file" }
}

/// The reason why a number is not saved, and the remedy.
fn because(value: f64, most: f64, format: &str, remedy: &str) -> String {
    if !value.is_finite() {
        return "; only a model whose numbers are all finite is saved".into();
    }
    format!("; {format} holds numbers up to {}: {remedy}", short(most))
}

/// 65504, 3.403e38: digits enough to tell a number from the largest of a dtype.
fn short(number: f64) -> String {
    if number.abs() < 1e7 || !number.is_finite() { number.to_string() } else { format!("{number:.3e}") }
}

/// Lists the characters that the vocabulary lacks, if any.
fn none_of(characters: &Unspellable) -> String {
    if characters.is_empty() {
        return String::new();
    }
    format!(": the vocabulary has none of its characters: {characters}")
}

impl From<HubError> for LoadError {
    fn from(error: HubError) -> Self {
        Self::Hub(error)
    }
}

impl From<gpt2_files::Error> for LoadError {
    fn from(error: gpt2_files::Error) -> Self {
        Self::Io { path: error.path, source: error.source }
    }
}

impl LoadError {
    /// Whether the Hub could not be asked for something that is not in the cache: there is no network, or it may not be used.
    #[must_use]
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self, Self::Hub(error) if error.is_unreachable())
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// JSON that does not match the content that the file should have.
    pub(crate) fn json(path: &Path, expected: &'static str) -> impl FnOnce(String) -> Self + use<> {
        let path = path.to_path_buf();
        move |reason| Self::Json { path, expected, reason }
    }

    /// A file whose `bytes` are not those of its format: another kind of file, if they look like one, otherwise damage.
    pub(crate) fn damaged(path: &Path, format: &'static str, bytes: &[u8], reason: impl ToString) -> Self {
        match FileKind::of(bytes) {
            Some(kind) if kind.is_damage() => Self::Damaged {
                path: path.to_path_buf(),
                format,
                reason: format!("it is {kind}"),
                remedy: kind.remedy(),
            },
            Some(kind) if !kind.may_be(format) => Self::other_file(path, format, &kind),
            _ => Self::Damaged {
                path: path.to_path_buf(),
                format,
                reason: reason.to_string(),
                remedy: "fetch the file again",
            },
        }
    }

    /// A file of another kind than expected.
    pub(crate) fn other_file(path: &Path, expected: &'static str, kind: &FileKind) -> Self {
        Self::OtherFile { path: path.to_path_buf(), expected, found: kind.to_string(), remedy: kind.remedy() }
    }

    /// A file that a reader does not read.
    pub(crate) fn refused(path: &Path, format: &'static str, bytes: &[u8], refusal: Refusal) -> Self {
        match refusal {
            Refusal::Damaged(reason) => Self::damaged(path, format, bytes, reason),
            // An archive of something else is known as such.
            Refusal::Unread(reason) => match FileKind::of(bytes) {
                Some(kind) if !kind.may_be(format) => Self::other_file(path, format, &kind),
                _ => Self::Unread { path: path.to_path_buf(), reason: format!("is {reason}") },
            },
        }
    }
}
