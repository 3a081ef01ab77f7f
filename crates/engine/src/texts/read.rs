//! Texts from files and pipes, read within bounds.

use crate::observer::Observer;
use anyhow::{Context, bail};
use std::fs::File;
use std::io::Read;
use std::path::Path;
#[cfg(unix)]
use std::{sync::mpsc::RecvTimeoutError, time::Duration};

/// The longest prompt to read, in bytes: far more text than any context holds, but little enough to read in full.
pub const LONGEST_PROMPT: u64 = 1 << 24;

/// The time to wait for a named pipe's writer before a note.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(1);

/// The mark that some programs write before a text in UTF-8; it is no part of the text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Reads a whole text of at most `limit` bytes, without a byte order mark. It may come from a pipe.
///
/// # Errors
/// When it is longer, not UTF-8, or cannot be read.
pub fn read_limited(reader: impl Read, limit: u64) -> std::io::Result<String> {
    let mut bytes = vec![];
    if reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)? as u64 > limit {
        return Err(std::io::Error::other(format!("it is longer than {limit} bytes; shorten it")));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        std::io::Error::other(format!(
            "it is not UTF-8: byte {at} is {:#04x}; convert it, as `iconv -f latin1 -t utf-8` does",
            e.as_bytes()[at]
        ))
    })?;
    Ok(text.strip_prefix(BYTE_ORDER_MARK).map_or_else(|| text.clone(), str::to_owned))
}

/// Reads `what`, a text of at most `limit` bytes, from a file or a pipe.
///
/// # Errors
/// When it is longer, not UTF-8, or cannot be read.
pub fn read_file(what: &str, path: &Path, limit: u64, observer: &dyn Observer) -> anyhow::Result<String> {
    let text = open_text(path, observer).and_then(|file| read_limited(file, limit));
    text.with_context(|| format!("cannot read {what} from {}", path.display()))
}

/// Refuses a device, which may never end, where a file or a pipe with a whole document is needed.
///
/// # Errors
/// When the path leads to a device.
pub fn refuse_device(path: &Path) -> anyhow::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = std::fs::metadata(path).ok().map(|found| found.file_type());
        if kind.is_some_and(|kind| kind.is_char_device() || kind.is_block_device()) {
            bail!("is a device; expected a file");
        }
    }
    Ok(())
}

/// Opens the file or the pipe at `path`. Opening a named pipe waits until another program opens it to write: a note says so.
///
/// # Errors
/// When it is a folder, or cannot be opened.
pub fn open_text(path: &Path, observer: &dyn Observer) -> std::io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(std::io::Error::other("it is a folder, expected a file"));
    }
    #[cfg(unix)]
    if std::os::unix::fs::FileTypeExt::is_fifo(&kind) {
        let mut opened = None;
        observer.waiting(&mut || opened = Some(open_pipe(path, observer)));
        return opened.unwrap_or_else(|| Err(std::io::Error::other("nobody waited for its writer")));
    }
    #[cfg(not(unix))]
    let _ = observer;
    File::open(path)
}

#[cfg(unix)]
fn open_pipe(path: &Path, observer: &dyn Observer) -> std::io::Result<File> {
    let (send, opened) = std::sync::mpsc::channel();
    let pipe = path.to_path_buf();
    std::thread::Builder::new().spawn(move || send.send(File::open(pipe)))?;
    match opened.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => {
            observer.note(&format!("waiting for a program that writes to the pipe {}", path.display()));
            opened.recv().map_err(std::io::Error::other)?
        }
        opened => opened.map_err(std::io::Error::other)?,
    }
}
