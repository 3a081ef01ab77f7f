//! What each [`LoadError`] says is wrong, and its [`Remedy`].

use super::load_error::LoadError;
use super::remedy::Remedy;
use std::fmt::{self, Display, Formatter};

/// What to do without a tokenizer.
const WITHOUT_TOKENIZER: &str = "fetch its files again, or give token ids instead of text";

impl LoadError {
    /// What is wrong, without the [`remedy`](Self::remedy).
    #[must_use]
    pub fn problem(&self) -> impl Display + '_ {
        Problem(self)
    }

    /// What to do, for errors where a program may have its own words for it. Other errors say it themselves.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Endpoint { .. } => Remedy::CheckEndpoint,
            Self::NoNetwork { .. } => Remedy::CheckNetwork,
            Self::Unexpected { .. } => Remedy::CheckAnswer,
            Self::NotCached { model, revision, offline, .. } => {
                Remedy::Download { model: model.clone(), revision: revision.clone(), offline: *offline }
            }
            Self::NoHeader { model, .. } => Remedy::DownloadFirst { model: model.clone() },
            Self::ModelNotFound { has_token, .. } => Remedy::CheckName { has_token: *has_token },
            Self::Gated { has_token, .. } => Remedy::AcceptTerms { has_token: *has_token },
            Self::TokenRefused { .. } => Remedy::RenewToken,
            Self::RevisionNotFound { .. } => Remedy::ChooseRevision,
            Self::RateLimited { has_token, .. } => Remedy::TryLater { token_helps: !has_token },
            Self::Server { .. } => Remedy::TryLater { token_helps: false },
            Self::Interrupted { .. } => Remedy::RunAgain,
            Self::Timeout { .. } => Remedy::RaiseTimeout,
            Self::BadCache { model, .. } => Remedy::RepairCache { model: model.clone() },
            Self::DiskFull { .. } => Remedy::MakeRoom,
            Self::CacheNotWritable { .. } => Remedy::MoveCache,
            _ => return None,
        })
    }
}

impl Display for LoadError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.problem().fmt(f)?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

struct Problem<'a>(&'a LoadError);

impl Display for Problem<'_> {
    #[allow(clippy::too_many_lines)] // an arm for each variant
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        use LoadError as E;
        match self.0 {
            E::Io { path, source } => write!(f, "{}: {source}", path.display()),
            E::NotFound { path } => write!(
                f,
                "{}: no such directory, nor the name of a model on the Hub (owner/name, gpt2, gpt2-medium, \
                 gpt2-large, gpt2-xl, distilgpt2); expected a folder with config.json and model.safetensors",
                path.display()
            ),
            E::NotADirectory { path } => {
                write!(
                    f,
                    "{}: is a file; name the folder that holds it, with its config.json",
                    path.display()
                )
            }
            E::NoConfig { dir } => write!(
                f,
                "{}: no config.json here; expected a folder as transformers' save_pretrained writes it",
                dir.display()
            ),
            E::NoWeights { dir } => write!(
                f,
                "{}: no weights here; expected model.safetensors, model.safetensors.index.json with its shards, \
                 or pytorch_model.bin",
                dir.display()
            ),
            E::NoTokenizer { name, vocab_size } => write!(
                f,
                "{name}: no tokenizer here; expected tokenizer.json, or vocab.json with merges.txt \
                 (a vocabulary of {vocab_size} is not GPT-2's own 50257); give token ids instead of text"
            ),
            E::HalfTokenizer { dir, missing } => write!(
                f,
                "{}: {missing} is missing; vocab.json and merges.txt only serve together",
                dir.display()
            ),
            E::Json { path, expected, reason } => {
                write!(f, "{}: {reason}; expected a {expected}", path.display())
            }
            E::Config { path, reason } => write!(f, "{}: {reason}", path.display()),
            E::Gguf { name, reason } => write!(f, "{name}: cannot be written as GGUF: {reason}"),
            E::Damaged { path, format, reason, remedy } => {
                write!(f, "{}: damaged or not a {format} file: {reason}; {remedy}", path.display())
            }
            E::Audit(audit) => audit.fmt(f),
            E::Adapter { name, reason } => write!(f, "{name}: {reason}"),
            E::AdapterAudit(audit) => audit.fmt(f),
            E::Tokenizer { name, reason } => write!(f, "{name}: tokenizer: {reason}; {WITHOUT_TOKENIZER}"),
            E::TokenizerUnreachable { name, reason } => {
                write!(f, "{name}: tokenizer: {reason}; {WITHOUT_TOKENIZER}")
            }
            E::NothingLeft { name, characters } => {
                write!(f, "{name}: the text gives no tokens")?;
                if !characters.is_empty() {
                    write!(f, ": the vocabulary has none of its characters: {characters}")?;
                }
                write!(f, "; give other text, or token ids")
            }
            E::PromptTooLong { bytes, most, n_positions } => write!(
                f,
                "the prompt has {bytes} bytes; a model with n_positions = {n_positions} tokens reads at most {most}: \
                 shorten it"
            ),
            E::Tensor { name, source } => write!(f, "{name}: {source}"),
            E::NoHub { model } => write!(
                f,
                "{model}: this build has no Hub; build it with the feature `hub`, or name a folder with the \
                 model's files"
            ),
            E::Endpoint { endpoint, reason } => write!(f, "{endpoint}: not a Hub's address: {reason}"),
            E::NoNetwork { endpoint, reason } => write!(f, "{endpoint} cannot be reached: {reason}"),
            E::NotCached { model, revision, file, cache, offline } => {
                write!(f, "{model} at {revision}: {file} is not in the cache {}", cache.display())?;
                f.write_str(if *offline { ", and no request is made offline" } else { "" })
            }
            E::ModelNotFound { model, endpoint, .. } => {
                write!(f, "{model}: {endpoint} has no such model, or it is private")
            }
            E::Gated { model, message, .. } => write!(f, "{model} is gated{}", after_colon(message)),
            E::TokenRefused { endpoint, reason } => {
                write!(f, "{endpoint} does not take the token: {reason}")
            }
            E::RevisionNotFound { model, revision } => write!(f, "{model} has no revision {revision:?}"),
            E::FileNotFound { model, file, found } => {
                let found = if found.is_empty() { "nothing that the Hub would list" } else { found };
                write!(f, "{model} has no {file}; it has: {found}")
            }
            E::RateLimited { endpoint, wait_s, .. } => {
                write!(f, "{endpoint} takes no more requests for now")?;
                wait_s.map_or(Ok(()), |s| write!(f, " (for {s} s, it says)"))
            }
            E::Server { url, status, phrase, message } => {
                write!(f, "{url}: the server failed: {status} {phrase}{}", after_colon(message))
            }
            E::Refused { url, status, phrase, message } => write!(
                f,
                "{url}: refused: {status} {phrase}{}; check what the token may read, if one is in use, and \
                 whether a proxy or a firewall is on the way",
                after_colon(message)
            ),
            E::Unexpected { url, reason } => write!(f, "{url}: not an answer of the Hub: {reason}"),
            E::Interrupted { url, reason } => write!(f, "{url}: the connection was cut: {reason}"),
            E::Timeout { url, seconds } => write!(f, "{url}: no answer for {seconds} s"),
            E::Checksum { file, expected, found, start } => write!(
                f,
                "{file}: expected {expected}, found {found}{start}; it is not used; does something on \
                 the way change it?"
            ),
            E::BadCache { path, expected, .. } => {
                write!(f, "{}: damaged: its {expected} does not match", path.display())
            }
            E::Unverified { path } => write!(
                f,
                "{}: the cache does not say what its hash should be, and the Hub cannot be asked; to use it as it \
                 is, name its folder",
                path.display()
            ),
            E::NoHash { url, etag } => write!(
                f,
                "{url}: the server announces no hash of the file (its ETag is {etag:?}), so it cannot be verified; \
                 use the Hub itself, or fetch the files yourself and name their folder"
            ),
            E::Pin { file, expected, found } => write!(
                f,
                "{file}: pinned to {expected}, the Hub announces {found}; do not use it, and tell its owner"
            ),
            E::NoHeader { model, file } => {
                write!(
                    f,
                    "{model}: its weights are only in {file}, whose tensors cannot be listed without all of it"
                )
            }
            E::DiskFull { path, needed, free } => {
                write!(f, "{}: {needed} bytes are needed", path.display())?;
                free.map_or(Ok(()), |free| write!(f, ", {free} are free"))
            }
            E::CacheNotWritable { path, source } => write!(
                f,
                "{}: {source}; the cache cannot be written to and lacks files of this model",
                path.display()
            ),
            E::Locked { path, seconds } => write!(
                f,
                "{}: another process fetches this file and has made no headway for {seconds} s; stop it, then run \
                 this again",
                path.display()
            ),
        }
    }
}

/// What a server said, if it said anything.
fn after_colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}
