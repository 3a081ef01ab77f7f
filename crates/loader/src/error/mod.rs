//! [`LoadError`]: one variant a cause.

mod causes;

use crate::Audit;
use std::path::PathBuf;

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
        "{path}: no such directory, nor the name of a model on the Hub (owner/name, gpt2, gpt2-medium, \
         gpt2-large, gpt2-xl, distilgpt2); expected a folder with config.json and model.safetensors", path = path.display()
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
    /// A text of which the vocabulary can spell nothing.
    #[error(
        "{name}: the text gives no tokens{why}; give other text, or token ids",
        why = if characters.is_empty() { String::new() } else {
            format!(": the vocabulary has none of its characters: {characters}")
        }
    )]
    NothingLeft {
        /// The tokenizer's file.
        name: String,
        /// What cannot be spelt; empty where the tokenizer takes the rest for space between words.
        characters: crate::Unspellable,
    },
    /// A prompt that cannot fit, whatever its tokens are.
    #[error(
        "the prompt has {bytes} bytes; for a model of n_positions = {n_positions} tokens at most {most} are read: shorten it"
    )]
    PromptTooLong {
        /// The text's length.
        bytes: usize,
        /// The most that can be read.
        most: usize,
        /// The positions of the model.
        n_positions: usize,
    },
    /// A model of the Hub, in a build without it.
    #[error(
        "{model}: this build has no Hub; build it with the feature `hub`, or name a folder with the model's files"
    )]
    NoHub {
        /// The model.
        model: String,
    },
    /// An address that cannot be asked.
    #[error("{endpoint}: not a Hub's address: {reason}; check HF_ENDPOINT or --endpoint")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The Hub could not be reached.
    #[error(
        "{endpoint} cannot be reached: {reason}; check the network and HTTPS_PROXY, set HF_ENDPOINT to a mirror, \
         name a folder with the model's files, or leave --model out for the built-in demo model"
    )]
    NoNetwork {
        /// The Hub's address.
        endpoint: String,
        /// What the system said.
        reason: String,
    },
    /// A file that is not cached, and may not or cannot be asked for.
    #[error(
        "{model} at {revision}: {file} is not in the cache {cache}{why}; run `gpt2 download {model} --revision {revision}` \
         where there is a network, or name a folder with the model's files",
        cache = cache.display(),
        why = if *offline { ", and no request is made offline (--offline, HF_HUB_OFFLINE)" } else { "" }
    )]
    NotCached {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
        /// The file.
        file: String,
        /// The cache.
        cache: PathBuf,
        /// Whether a request was out of the question.
        offline: bool,
    },
    /// No such model, or none that may be seen.
    #[error(
        "{model}: {endpoint} has no such model, or it is private; check the name{hint}",
        hint = if *has_token { " and whether the token in use may read it" }
            else { ", or give a token in HF_TOKEN if it is private" }
    )]
    ModelNotFound {
        /// The model.
        model: String,
        /// The Hub's address.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// A model whose files are given to those who accepted its terms.
    #[error(
        "{model} is gated{colon}{message}; accept its terms on the model's page{hint}",
        colon = if message.is_empty() { "" } else { ": " },
        hint = if *has_token { " with the account of the token in use" } else { ", then give a token in HF_TOKEN" }
    )]
    Gated {
        /// The model.
        model: String,
        /// Whether a token was sent.
        has_token: bool,
        /// What the Hub said.
        message: String,
    },
    /// A token that is no good.
    #[error("{endpoint} does not take the token: {reason}; check HF_TOKEN, or log in again")]
    TokenRefused {
        /// The Hub's address.
        endpoint: String,
        /// What it said.
        reason: String,
    },
    /// A model without this branch, tag or commit.
    #[error("{model} has no revision {revision:?}; name a branch, a tag or the 40 digits of a commit")]
    RevisionNotFound {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
    },
    /// A model without a file that it needs.
    #[error(
        "{model} has no {file}; it has: {found}",
        found = if found.is_empty() { "nothing that the Hub would list" } else { found }
    )]
    FileNotFound {
        /// The model.
        model: String,
        /// The file, or those of which one would do.
        file: String,
        /// The files that it has.
        found: String,
    },
    /// Too many requests.
    #[error(
        "{endpoint} takes no more requests for now{wait}; try again later{hint}",
        wait = wait_s.map_or_else(String::new, |s| format!(" (for {s} s, it says)")),
        hint = if *has_token { "" } else { ", or give a token in HF_TOKEN, which is allowed more" }
    )]
    RateLimited {
        /// The Hub's address.
        endpoint: String,
        /// How many seconds it asks to wait.
        wait_s: Option<u64>,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The server failed.
    #[error(
        "{url}: the server failed: {status}{colon}{message}; try again later",
        colon = if message.is_empty() { "" } else { ": " }
    )]
    Server {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: String,
        /// What the server said.
        message: String,
    },
    /// The server, or a proxy on the way, refused.
    #[error(
        "{url}: refused: {status}{colon}{message}; check what the token may read, if one is in use, and whether a \
         proxy or a firewall is on the way",
        colon = if message.is_empty() { "" } else { ": " }
    )]
    Refused {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: String,
        /// What the server said.
        message: String,
    },
    /// An answer that is not the Hub's.
    #[error(
        "{url}: not an answer of the Hub: {reason}; does the network ask for a login, or HF_ENDPOINT lead elsewhere?"
    )]
    Unexpected {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A connection that ended before the answer did.
    #[error(
        "{url}: the connection was cut: {reason}; run the command again, a download goes on from where it ended"
    )]
    Interrupted {
        /// What was asked for.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// No byte came for too long.
    #[error("{url}: no answer for {seconds} s; run the command again, or allow more with --timeout")]
    Timeout {
        /// What was asked for.
        url: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Content that is not what was announced.
    #[error(
        "{file}: expected {expected}, found {found}{start}; it is not used; is something on the way that changes it?"
    )]
    Checksum {
        /// The model and the file.
        file: String,
        /// The announced hash.
        expected: String,
        /// The content's hash, or its length where that is wrong already.
        found: String,
        /// How a small body begins.
        start: String,
    },
    /// A cached file that is not what was announced, and cannot be fetched anew.
    #[error("{path}: damaged: its {expected} does not hold; run `gpt2 verify-cache {model} --repair` where there is a network", path = path.display())]
    BadCache {
        /// The file.
        path: PathBuf,
        /// The hash that it should have.
        expected: String,
        /// The model.
        model: String,
    },
    /// A cached file of which the cache does not say what it should be.
    #[error(
        "{path}: the cache does not say what its hash should be, and the Hub cannot be asked; to use it as it is, \
         name its folder", path = path.display()
    )]
    Unverified {
        /// The file.
        path: PathBuf,
    },
    /// The server announces no hash of the content.
    #[error(
        "{url}: the server announces no hash of the file (its ETag is {etag:?}), so it cannot be verified; use the Hub itself, or fetch the files yourself and name their folder"
    )]
    NoHash {
        /// What was asked for.
        url: String,
        /// What it announces.
        etag: String,
    },
    /// A file that is pinned to another content.
    #[error("{file}: pinned to {expected}, the Hub announces {found}; do not use it, and tell its owner")]
    Pin {
        /// The model and the file.
        file: String,
        /// The pinned hash and length.
        expected: String,
        /// The announced hash and length.
        found: String,
    },
    /// Weights whose names cannot be read without the whole file.
    #[error(
        "{model}: its weights are in {file} only, which cannot be looked into from afar; run `gpt2 download {model}` first"
    )]
    NoHeader {
        /// The model.
        model: String,
        /// The file.
        file: &'static str,
    },
    /// No room for a file.
    #[error(
        "{path}: {needed} bytes are needed{free}; make room, or set HF_HUB_CACHE to a folder on another disk",
        path = path.display(), free = free.map_or_else(String::new, |free| format!(", {free} are free"))
    )]
    DiskFull {
        /// Where.
        path: PathBuf,
        /// The bytes that are still to come.
        needed: u64,
        /// The bytes that are free, where the system says.
        free: Option<u64>,
    },
    /// A cache that cannot be written to.
    #[error(
        "{path}: {source}; the cache cannot be written to and lacks files of this model: set HF_HUB_CACHE to \
         another folder, or run `gpt2 download` as who may write", path = path.display()
    )]
    CacheNotWritable {
        /// What was to be written.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another process writes the same file and makes no headway.
    #[error(
        "{path}: another process fetches this file and has made no headway for {seconds} s; stop it, then run \
         this again", path = path.display()
    )]
    Locked {
        /// The lock.
        path: PathBuf,
        /// How long was waited.
        seconds: u64,
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
