//! Writes files whole or not at all, and reads only regular files.
//!
//! [`atomic`] fills a temporary file and renames it: a reader sees the old file or the new one, never half of one.
//! [`folder`] gives the files of a folder their names together.
//! [`write_safetensors`] writes the same bytes for the same tensors, and [`TensorSpool`] collects them one at a time.
//! [`StoreWriter`] and [`Store`] keep the values of many tokens in shards.
//! [`unfinished`] removes what a process that has to end would leave behind.
//! [`open_regular`] and [`read_text`] refuse pipes and devices, which may never end.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("numbers.txt");
//! gpt2_files::atomic::write_bytes(&path, b"1 2 3")?;
//! assert_eq!(gpt2_files::read_text(&path, 100)?, "1 2 3");
//! # Ok(())
//! # }
//! ```

pub mod atomic;
pub mod folder;
mod identity;
mod safetensors;
mod spool;
mod store;
pub mod unfinished;

pub use candle_core;
pub use identity::{Identity, is_same_file};
pub use safetensors::{write_any_safetensors, write_safetensors};
pub use spool::TensorSpool;
pub use store::{INDEX, Shard, Store, StoreIndex, StoreWriter};

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A file that could not be read or written.
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
    pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self { path, source }
    }
}

/// Opens the file at `path`.
///
/// # Errors
/// When it is a folder, a device or a pipe, and when it cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Check before opening: opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("is a folder, a device or a pipe; expected a file"));
    }
    File::open(path)
}

/// The text of the file at `path`, of at most `limit` bytes.
///
/// # Errors
/// When [`open_regular`] fails, or the file is longer or not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    read_text_of(&open_regular(path)?, limit)
}

/// The text of an open file from its place on, of at most `limit` bytes.
///
/// # Errors
/// When the file is longer or not UTF-8, or cannot be read.
pub fn read_text_of(file: &File, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = file.take(limit.saturating_add(1)).read_to_string(&mut text)?;
    if read as u64 > limit {
        return Err(io::Error::other(format!("is longer than {limit} bytes")));
    }
    Ok(text)
}

/// The bytes of a regular file.
pub(crate) fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let size = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![];
    bytes.try_reserve_exact(size).map_err(|_| {
        let reason = format!("there is no memory for its {size} bytes; give more, or record smaller shards");
        io::Error::new(io::ErrorKind::OutOfMemory, reason)
    })?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
