//! Opens regular files only: opening a pipe waits for its writer, and a device may never end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

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
    let mut text = String::new();
    let read = open_regular(path)?.take(limit.saturating_add(1)).read_to_string(&mut text)?;
    if read as u64 > limit {
        return Err(io::Error::other(format!("is longer than {limit} bytes")));
    }
    Ok(text)
}
