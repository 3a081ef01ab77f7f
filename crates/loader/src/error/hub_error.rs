//! [`HubError`]: why the Hub or its cache did not give a file, and [`Remedy`]: what to do about it, as data.

use std::fmt;
use std::path::PathBuf;

/// A failure of the Hub, or of the cache of its files. Displays what is wrong. The remedy is in
/// [`remedy`](Self::remedy) if a program may want its own words for it, and in the text otherwise; a `LoadError` shows
/// both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A model on the Hub, in a build without the feature `hub`.
    #[error(
        "{model}: this build has no Hub; build it with the feature `hub`, or name a folder with the model's files"
    )]
    NoHub {
        /// The model.
        model: String,
    },
    /// The caller's [`Progress`](crate::hub::Progress) ended the download.
    #[error("the download was stopped; the next one goes on from there")]
    Stopped,
    /// An endpoint that is not the address of a Hub.
    #[error("{endpoint}: not a Hub's address: {reason}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// The reason.
        reason: String,
    },
    /// The Hub could not be reached.
    #[error("{endpoint} cannot be reached: {reason}")]
    NoNetwork {
        /// The Hub's address.
        endpoint: String,
        /// The system's message.
        reason: String,
    },
    /// A file that is not in the cache and cannot be requested from the Hub.
    #[error(
        "{model} at {revision}: {file} is not in the cache {}{}",
        cache.display(),
        if *offline { ", and no request is made offline" } else { "" }
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
        /// Whether the Hub is set offline, so that it was not asked.
        offline: bool,
    },
    /// No such model, or a private one.
    #[error("{model}: {endpoint} has no such model, or it is private")]
    ModelNotFound {
        /// The model.
        model: String,
        /// The Hub's address.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// A model whose files are only available to users who accepted its terms.
    #[error("{model} is gated{}", after_colon(message))]
    Gated {
        /// The model.
        model: String,
        /// Whether a token was sent.
        has_token: bool,
        /// The Hub's message.
        message: String,
    },
    /// A token that the Hub refuses.
    #[error("{endpoint} does not take the token: {reason}")]
    TokenRefused {
        /// The Hub's address.
        endpoint: String,
        /// The Hub's message.
        reason: String,
    },
    /// A model without this branch, tag or commit.
    #[error("{model} has no revision {revision:?}")]
    RevisionNotFound {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
    },
    /// A model without a file that it needs.
    #[error(
        "{model} has no {file}; it has: {}",
        if found.is_empty() { "nothing that the Hub would list" } else { found }
    )]
    FileNotFound {
        /// The model.
        model: String,
        /// The file, or several files, any one of which is enough.
        file: String,
        /// The files that it has.
        found: String,
    },
    /// Too many requests.
    #[error(
        "{endpoint} takes no more requests for now{}",
        wait_s.map_or_else(String::new, |s| format!(" (for {s} s, it says)"))
    )]
    RateLimited {
        /// The Hub's address.
        endpoint: String,
        /// The seconds that the Hub asks to wait.
        wait_s: Option<u64>,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The server failed.
    #[error("{url}: the server failed: {status} {phrase}{}", after_colon(message))]
    Server {
        /// The requested address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// Its name, such as `Not Found`.
        phrase: &'static str,
        /// The server's message.
        message: String,
    },
    /// The server, or a proxy on the way, refused.
    #[error(
        "{url}: refused: {status} {phrase}{}; check what the token may read, if one is in use, and whether a proxy or \
         a firewall is on the way",
        after_colon(message)
    )]
    Refused {
        /// The requested address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// Its name, such as `Not Found`.
        phrase: &'static str,
        /// The server's message.
        message: String,
    },
    /// An answer that is not the Hub's.
    #[error("{url}: not an answer of the Hub: {reason}")]
    Unexpected {
        /// The requested address.
        url: String,
        /// The reason.
        reason: String,
    },
    /// A connection that ended before the answer did.
    #[error("{url}: the connection was cut: {reason}")]
    Interrupted {
        /// The requested address.
        url: String,
        /// The system's message.
        reason: String,
    },
    /// No byte came for too long.
    #[error("{url}: no answer for {seconds} s")]
    Timeout {
        /// The requested address.
        url: String,
        /// The seconds that this process waited.
        seconds: u64,
    },
    /// Content that differs from what the server announced.
    #[error(
        "{file}: expected {expected}, found {found}{start}; it is not used; does something on the way change it?"
    )]
    Checksum {
        /// The model and the file.
        file: String,
        /// The announced hash.
        expected: String,
        /// The content's hash, or its length if that is already wrong.
        found: String,
        /// The beginning of a small body.
        start: String,
    },
    /// A cached file whose content is wrong, and which cannot be fetched again.
    #[error("{}: damaged: its {expected} does not match", path.display())]
    BadCache {
        /// The file.
        path: PathBuf,
        /// The hash that it should have.
        expected: String,
        /// The model.
        model: String,
    },
    /// A cached file whose hash the cache does not know.
    #[error(
        "{}: the cache does not say what its hash should be, and the Hub cannot be asked; to use it as it is, name its \
         folder",
        path.display()
    )]
    Unverified {
        /// The file.
        path: PathBuf,
    },
    /// The server announces no hash for the file.
    #[error(
        "{url}: the server announces no hash of the file (its ETag is {etag:?}), so it cannot be verified; use the Hub \
         itself, or fetch the files yourself and name their folder"
    )]
    NoHash {
        /// The requested address.
        url: String,
        /// The announced `ETag`.
        etag: String,
    },
    /// A file that is pinned to different content.
    #[error("{file}: pinned to {expected}, the Hub announces {found}; do not use it, and tell its owner")]
    Pin {
        /// The model and the file.
        file: String,
        /// The pinned hash and length.
        expected: String,
        /// The announced hash and length.
        found: String,
    },
    /// A weight file whose tensors cannot be listed without the whole file.
    #[error("{model}: its weights are only in {file}, whose tensors cannot be listed without all of it")]
    NoHeader {
        /// The model.
        model: String,
        /// The file.
        file: &'static str,
    },
    /// No room for a file.
    #[error(
        "{}: {needed} bytes are needed{}",
        path.display(),
        free.map_or_else(String::new, |free| format!(", {free} are free"))
    )]
    DiskFull {
        /// The path.
        path: PathBuf,
        /// The bytes that are still missing.
        needed: u64,
        /// The bytes that are free, if the system says.
        free: Option<u64>,
    },
    /// A cache that cannot be written to.
    #[error("{}: {reason}; the cache cannot be written to and lacks files of this model", path.display())]
    CacheNotWritable {
        /// The path that was to be written.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// A path of the cache that is not a file.
    #[error("{}: is a folder, a device or a pipe; remove it, and run this again", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another process is writing the same file and makes no progress.
    #[error(
        "{}: another process fetches this file and has made no headway for {seconds} s; stop it, then run this again",
        path.display()
    )]
    Locked {
        /// The lock.
        path: PathBuf,
        /// The seconds that this process waited.
        seconds: u64,
    },
}

/// The server's message after a colon, or nothing.
fn after_colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

impl HubError {
    /// The remedy, for errors where a program may have its own words for it. The text of other errors includes the
    /// remedy.
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

    /// A failure to write to the cache.
    #[cfg(feature = "hub")]
    pub(crate) fn cache(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let path = path.to_path_buf();
        move |reason| match reason.kind() {
            StorageFull | QuotaExceeded => Self::DiskFull { path, needed: 1, free: None },
            _ => Self::CacheNotWritable { path, reason },
        }
    }

    /// Whether the Hub could not be asked, or did not answer.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::NotCached { .. }
                | Self::NoNetwork { .. }
                | Self::Timeout { .. }
                | Self::Interrupted { .. }
                | Self::Server { .. }
                | Self::RateLimited { .. }
        )
    }
}

/// A remedy for a [`HubError`]. Displays in a library's words; a program that has options or variables for it can name
/// them instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Correct the Hub's address.
    CheckEndpoint,
    /// Check the network, or work without it.
    CheckNetwork,
    /// Find out what answers instead of the Hub.
    CheckAnswer,
    /// Download the model on a machine with a network.
    Download {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
        /// Whether the Hub was not asked because it is set offline.
        offline: bool,
    },
    /// Download the whole model before reading its headers.
    DownloadFirst {
        /// The model.
        model: String,
    },
    /// Correct the model's name, or check the token.
    CheckName {
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Accept the model's terms.
    AcceptTerms {
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Give another token.
    RenewToken,
    /// Name another revision.
    ChooseRevision,
    /// Wait and try again.
    TryLater {
        /// Whether a token would allow more requests.
        token_helps: bool,
    },
    /// Try again: what has arrived is kept.
    RunAgain,
    /// Try again with a longer timeout.
    RaiseTimeout,
    /// Fetch bad cached files again.
    RepairCache {
        /// The model.
        model: String,
    },
    /// Free some disk space, or move the cache to another disk.
    MakeRoom,
    /// Move the cache to a folder that is writable.
    MoveCache,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CheckEndpoint => "check the endpoint",
            Self::CheckNetwork => {
                "check the network and its proxy, set the endpoint to a mirror, or name a folder with the model's files"
            }
            Self::CheckAnswer => "does the network ask for a login, or the endpoint lead elsewhere?",
            Self::Download { .. } => {
                "download it where there is a network, or name a folder with the model's files"
            }
            Self::DownloadFirst { .. } => "download it first",
            Self::CheckName { has_token: true } => "check the name and whether the token in use may read it",
            Self::CheckName { has_token: false } => "check the name, or give a token if it is private",
            Self::AcceptTerms { has_token: true } => {
                "accept its terms on the model's page with the account of the token in use"
            }
            Self::AcceptTerms { has_token: false } => {
                "accept its terms on the model's page, then give a token"
            }
            Self::RenewToken => "check the token, or log in again",
            Self::ChooseRevision => "name a branch, a tag or the 40 digits of a commit",
            Self::TryLater { token_helps: false } => "try again later",
            Self::TryLater { token_helps: true } => {
                "try again later, or give a token, which allows more requests"
            }
            Self::RunAgain => "try again: a download resumes where it stopped",
            Self::RaiseTimeout => "try again, or allow more time",
            Self::RepairCache { .. } => "repair the cache where there is a network",
            Self::MakeRoom => "make room, or keep the cache on another disk",
            Self::MoveCache => "keep the cache in another folder, or download as a user who can write to it",
        })
    }
}
