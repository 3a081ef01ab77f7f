//! Turns failures into [`LoadError`]s.

use super::load_error::LoadError;
use crate::json::Misfit;
use std::path::Path;

impl From<gpt2_files::Error> for LoadError {
    fn from(error: gpt2_files::Error) -> Self {
        Self::Io { path: error.path, source: error.source }
    }
}

impl LoadError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// A failure to write to the cache.
    #[cfg(feature = "hub")]
    pub(crate) fn cache(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        use std::io::ErrorKind;
        let path = path.to_path_buf();
        move |source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, needed: 1, free: None }
            }
            _ => Self::CacheNotWritable { path, source },
        }
    }

    /// Whether the Hub could not be asked, or did not answer.
    #[cfg(feature = "hub")]
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

    /// JSON that does not match the content that the file should have.
    pub(crate) fn json(path: &Path, expected: &'static str) -> impl FnOnce(Misfit) -> Self + use<> {
        let path = path.to_path_buf();
        move |misfit| Self::Json { path, expected, reason: misfit.to_string() }
    }

    pub(crate) fn damaged(path: &Path, format: &'static str, bytes: &[u8], reason: impl ToString) -> Self {
        Self::Damaged { path: path.to_path_buf(), format, reason: reason.to_string(), remedy: remedy(bytes) }
    }
}

/// What to do about a damaged file, judged by its first bytes.
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
