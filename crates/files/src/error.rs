//! [`Error`]: which file, and why.

use std::io;
use std::path::{Path, PathBuf};

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}", path = path.display())]
#[non_exhaustive]
pub struct Error {
    /// The file, as the caller named it.
    pub path: PathBuf,
    /// The system's reason, or advice on what path to give instead.
    pub source: io::Error,
}

impl Error {
    /// Adds the file's name to a reason.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self { path, source }
    }
}
