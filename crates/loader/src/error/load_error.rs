//! [`LoadError`]: one variant for each cause.

use crate::adapter::AdapterAudit;
use crate::audit::Audit;
use crate::tokenizer::unspellable::Unspellable;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a model could not be loaded or saved. Displays as [what is wrong](Self::problem) and, in a library's
/// words, [what to do](Self::remedy).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file system operation failed.
    Io {
        /// What was read or written.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Nothing is there.
    NotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// A file where a folder is needed.
    NotADirectory {
        /// What was asked for.
        path: PathBuf,
    },
    /// A folder without a config.
    NoConfig {
        /// The folder.
        dir: PathBuf,
    },
    /// A folder without weights.
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// A folder without a tokenizer for a vocabulary that is not GPT-2's.
    NoTokenizer {
        /// The source.
        name: String,
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// One of the two files of a tokenizer.
    HalfTokenizer {
        /// The folder.
        dir: PathBuf,
        /// The file that is not there.
        missing: &'static str,
    },
    /// JSON that does not parse, or has the wrong structure.
    Json {
        /// The file.
        path: PathBuf,
        /// What the file should contain.
        expected: &'static str,
        /// Why it does not fit, and in which field if the file is JSON.
        reason: String,
    },
    /// A config that this project does not support.
    Config {
        /// The file.
        path: PathBuf,
        /// The field, its value and what is expected.
        reason: candle_core::Error,
    },
    /// A model that a GGUF file cannot hold, or one that was not written well.
    Gguf {
        /// The model, or the file.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// A weight file that is truncated, or not of the format that its name says.
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
    Audit(Box<Audit>),
    /// An adapter that this project does not support, or that fits no model.
    Adapter {
        /// The adapter, or its config.
        name: String,
        /// What does not fit.
        reason: String,
    },
    /// Tensors of an adapter that are missing, left over, of another shape or not finite.
    AdapterAudit(Box<AdapterAudit>),
    /// A tokenizer file that cannot be used, or text that it cannot encode.
    Tokenizer {
        /// The file or source.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A tokenizer that could not be fetched.
    TokenizerUnreachable {
        /// The source.
        name: String,
        /// What went wrong when it was requested.
        reason: Arc<LoadError>,
    },
    /// A text that gives no tokens.
    NothingLeft {
        /// The tokenizer's file.
        name: String,
        /// What the vocabulary cannot spell; empty if the text is only what separates words.
        characters: Unspellable,
    },
    /// A prompt that is too long for any tokenization to fit.
    PromptTooLong {
        /// The text's length.
        bytes: usize,
        /// The most that can be read.
        most: usize,
        /// The positions of the model.
        n_positions: usize,
    },
    /// A model on the Hub, in a build without the feature `hub`.
    NoHub {
        /// The model.
        model: String,
    },
    /// An endpoint that is not the address of a Hub.
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The Hub could not be reached.
    NoNetwork {
        /// The Hub's address.
        endpoint: String,
        /// What the system said.
        reason: String,
    },
    /// A file that is not in the cache and cannot be requested from the Hub.
    NotCached {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
        /// The file.
        file: String,
        /// The cache.
        cache: PathBuf,
        /// Whether the Hub is set offline, so that it was not asked.
        offline: bool,
    },
    /// No such model, or a private one.
    ModelNotFound {
        /// The model.
        model: String,
        /// The Hub's address.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// A model whose files are only available to users who accepted its terms.
    Gated {
        /// The model.
        model: String,
        /// Whether a token was sent.
        has_token: bool,
        /// What the Hub said.
        message: String,
    },
    /// A token that the Hub refuses.
    TokenRefused {
        /// The Hub's address.
        endpoint: String,
        /// What it said.
        reason: String,
    },
    /// A model without this branch, tag or commit.
    RevisionNotFound {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
    },
    /// A model without a file that it needs.
    FileNotFound {
        /// The model.
        model: String,
        /// The file, or several of which one is enough.
        file: String,
        /// The files that it has.
        found: String,
    },
    /// Too many requests.
    RateLimited {
        /// The Hub's address.
        endpoint: String,
        /// How many seconds it asks to wait.
        wait_s: Option<u64>,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The server failed.
    Server {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// Its name, such as `Not Found`.
        phrase: &'static str,
        /// What the server said.
        message: String,
    },
    /// The server, or a proxy on the way, refused.
    Refused {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// Its name, such as `Not Found`.
        phrase: &'static str,
        /// What the server said.
        message: String,
    },
    /// An answer that is not the Hub's.
    Unexpected {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A connection that ended before the answer did.
    Interrupted {
        /// What was asked for.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// No byte came for too long.
    Timeout {
        /// What was asked for.
        url: String,
        /// How long this process waited.
        seconds: u64,
    },
    /// Content that differs from what the server announced.
    Checksum {
        /// The model and the file.
        file: String,
        /// The announced hash.
        expected: String,
        /// The content's hash, or its length if that is already wrong.
        found: String,
        /// How a small body begins.
        start: String,
    },
    /// A cached file whose content is wrong, and which cannot be fetched again.
    BadCache {
        /// The file.
        path: PathBuf,
        /// The hash that it should have.
        expected: String,
        /// The model.
        model: String,
    },
    /// A cached file whose hash the cache does not know.
    Unverified {
        /// The file.
        path: PathBuf,
    },
    /// The server announces no hash for the file.
    NoHash {
        /// What was asked for.
        url: String,
        /// What it announces.
        etag: String,
    },
    /// A file that is pinned to different content.
    Pin {
        /// The model and the file.
        file: String,
        /// The pinned hash and length.
        expected: String,
        /// The announced hash and length.
        found: String,
    },
    /// A weight file whose tensors cannot be listed without the whole file.
    NoHeader {
        /// The model.
        model: String,
        /// The file.
        file: &'static str,
    },
    /// No room for a file.
    DiskFull {
        /// Where.
        path: PathBuf,
        /// The bytes that are still missing.
        needed: u64,
        /// The bytes that are free, if the system says.
        free: Option<u64>,
    },
    /// A cache that cannot be written to.
    CacheNotWritable {
        /// What was to be written.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another process is writing the same file and makes no progress.
    Locked {
        /// The lock.
        path: PathBuf,
        /// How long this process waited.
        seconds: u64,
    },
    /// Candle failed on tensors whose names and shapes were right.
    Tensor {
        /// The checkpoint.
        name: String,
        /// Candle's reason.
        source: candle_core::Error,
    },
}
