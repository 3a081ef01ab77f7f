//! [`Hub`]: pretrained weights by name, from the Hugging Face Hub or its cache.
//!
//! It uses a file only after comparing its content with the hash that the Hub announced for it, and cached files
//! without a request. The cache is shared with Python's `huggingface_hub`: each uses the files that the other has
//! downloaded. Downloads are HTTP requests with ranges, so that an interrupted one resumes where it stopped.

mod model_id;

#[cfg(feature = "hub")]
mod address;
#[cfg(feature = "hub")]
mod cache;
#[cfg(feature = "hub")]
mod cache_audit;
#[cfg(feature = "hub")]
mod client;
#[cfg(feature = "hub")]
mod digest;
#[cfg(feature = "hub")]
mod fetch;
#[cfg(feature = "hub")]
mod http;
#[cfg(feature = "hub")]
mod open;
#[cfg(feature = "hub")]
mod transfer;
#[cfg(not(feature = "hub"))]
mod without_hub;

pub use crate::error::hub_error::{HubError, Remedy};
pub use model_id::ModelId;

use crate::error::LoadError;
use crate::files::Files;
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Settings for the Hub: its address, the cache of its files, and the requests to it. This crate reads no settings from
/// the environment, but the HTTP client reads the proxy variables (`HTTPS_PROXY`, `NO_PROXY`, ..).
#[derive(Clone)]
#[non_exhaustive]
pub struct Hub {
    /// The Hub's address, without a slash at its end.
    pub endpoint: String,
    /// The folder that holds `models--owner--name`: Python's `HF_HUB_CACHE`.
    pub cache_dir: PathBuf,
    /// Sent to the Hub, and never to another host.
    pub token: Option<String>,
    /// Whether to make no requests at all.
    pub offline: bool,
    /// The time that a request may go without receiving a byte. A whole download may take any time.
    pub timeout: Duration,
    /// Whether the cache has links from a commit's files to their content; otherwise the content itself lies there, as Python has it
    /// with `HF_HUB_DISABLE_SYMLINKS`.
    pub links: bool,
    /// Files whose content is known in advance.
    pub pins: Vec<Pin>,
    /// Called for each [`Event`].
    pub progress: Option<Progress>,
}

/// Called for each [`Event`], on the thread that does the work. `Break` ends the download with [`HubError::Stopped`]; what has
/// arrived stays, and the next download goes on from there.
pub type Progress = Arc<dyn Fn(&Event<'_>) -> ControlFlow<()> + Send + Sync>;

/// The address of the Hugging Face Hub.
pub const ENDPOINT: &str = "https://huggingface.co";

/// The default branch.
pub const MAIN: &str = "main";

/// A file of a model whose content is known in advance.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Pin {
    /// The model, `owner/name`.
    pub id: String,
    /// The commit.
    pub revision: String,
    /// The file.
    pub file: String,
    /// Its length in bytes.
    pub size: u64,
    /// The SHA-256 of its content, in hexadecimal; `None` if only the length is known.
    pub sha256: Option<String>,
    /// The license of the model.
    pub license: String,
}

/// A step in fetching or checking a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Another process is fetching this file, and this process waits for it.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// Bytes of a file begin to arrive.
    Fetching {
        /// The file.
        file: &'a str,
        /// Its length in bytes, if the Hub says.
        size: Option<u64>,
        /// The number of bytes that had arrived before.
        have: u64,
    },
    /// More bytes of a file have arrived.
    Received {
        /// The file.
        file: &'a str,
        /// The number of bytes that have arrived so far.
        bytes: u64,
    },
    /// A file is complete, verified and in the cache.
    Fetched {
        /// The file.
        file: &'a str,
    },
    /// A file of the cache is being hashed.
    Verifying {
        /// The file.
        file: &'a str,
        /// Its length in bytes.
        size: u64,
    },
    /// A try failed, and another will follow.
    Retrying {
        /// The error.
        error: &'a HubError,
        /// The time until the next try.
        wait: Duration,
    },
}

/// A commit whose files are in the cache, verified.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The commit.
    pub commit: String,
    /// Its folder.
    pub dir: PathBuf,
    /// Its files.
    pub files: Files,
}

/// The parts of a model that an audit needs, and nothing more.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Headers {
    /// The commit.
    pub commit: String,
    /// The config and the headers: no tokenizer, and no data to load.
    pub files: Files,
    /// The number of bytes of weight files that were read from the Hub. They cannot be verified: the hash that the Hub
    /// announces covers the whole file.
    pub bytes_read: u64,
}

/// A commit of a model that the cache has files of.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct CachedModel {
    /// The model, `owner/name`.
    pub id: String,
    /// The commit.
    pub commit: String,
    /// The branches and tags that point to this commit.
    pub refs: Vec<String>,
    /// The bytes of its files.
    pub size: u64,
}

/// Whether a cached file matches the Hub's announcement.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FileCheck {
    /// The file.
    pub file: String,
    /// Its state.
    pub state: FileState,
    /// Its length in bytes.
    pub size: u64,
    /// The error that kept it from being read or repaired, if there was one.
    pub error: Option<Arc<LoadError>>,
}

/// The result of checking a cached file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileState {
    /// Its content matches the Hub's announcement.
    Good,
    /// Its content was wrong, and was fetched again.
    Repaired,
    /// Its content is wrong or missing.
    Bad,
    /// The cache does not say what it should be.
    Unknown,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("endpoint", &self.endpoint)
            .field("cache_dir", &self.cache_dir)
            .field("has_token", &self.token.is_some())
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// The Hub at [`ENDPOINT`] without a token, with its cache in `cache_dir`.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: ENDPOINT.into(),
            cache_dir: cache_dir.into(),
            token: None,
            offline: false,
            timeout: Duration::from_secs(30),
            links: true,
            pins: vec![],
            progress: None,
        }
    }

    #[cfg(feature = "hub")]
    fn tell(&self, event: &Event<'_>) -> Result<(), HubError> {
        match &self.progress {
            Some(progress) if progress(event).is_break() => Err(HubError::Stopped),
            _ => Ok(()),
        }
    }
}
