//! The file to which a path leads.

use std::path::Path;

/// Identifies a file, regardless of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// The identity of the file that `path` leads to; `None` if it does not exist. Does not open it: it may be a pipe.
    #[cfg(unix)]
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).ok().map(|meta| Self(meta.dev(), meta.ino()))
    }

    /// The identity of an open file or folder.
    #[cfg(unix)]
    #[must_use]
    pub fn of_file(file: &std::fs::File) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        file.metadata().ok().map(|meta| Self(meta.dev(), meta.ino()))
    }

    /// `None`: only Unix needs it.
    #[cfg(not(unix))]
    #[must_use]
    pub fn of_file(_: &std::fs::File) -> Option<Self> {
        None
    }

    /// The identity of the file that `path` leads to; `None` if it does not exist or cannot be opened.
    #[cfg(windows)]
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let handle = winapi_util::Handle::from_path_any(path).ok()?;
        let file = winapi_util::file::information(handle).ok()?;
        Some(Self(file.volume_serial_number(), file.file_index()))
    }

    /// `None`: there are no files here.
    #[cfg(not(any(unix, windows)))]
    #[must_use]
    pub fn of(_: &Path) -> Option<Self> {
        None
    }
}

/// Whether two paths lead to one file, which exists.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = Identity::of(one);
    identity.is_some() && identity == Identity::of(other)
}
