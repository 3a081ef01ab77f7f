//! Bytes of a file, opened or compiled into the binary, and the JSON in them.

use gpt2_files::{Error, open_regular};
use rayon::prelude::*;
use serde::Deserialize;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The content of a file. JSON and headers are read through a memory map; the tensors' data, which is most of
/// the file, is read straight into their own memory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Bytes {
    /// On disk.
    OnDisk(Arc<OnDisk>),
    /// Part of the binary.
    Embedded(&'static [u8]),
    /// In memory.
    InMemory(Arc<Vec<u8>>),
}

/// An open file and a memory map of it, whose pages are read when they are used.
#[derive(Debug)]
pub struct OnDisk {
    file: File,
    map: memmap2::Mmap,
}

impl Bytes {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = open_regular(path).map_err(Error::at(path))?;
        if file.metadata().map_err(Error::at(path))?.len() == 0 {
            return Ok(Self::Embedded(&[])); // an empty file cannot be mapped everywhere
        }
        #[allow(unsafe_code)]
        // SAFETY: the map is read-only and lives as long as what reads from it; it is read as plain bytes,
        // and any byte is valid. Another process that writes to the file changes the bytes that are read here,
        // and one that truncates it ends this process (SIGBUS). This crate itself never changes a file in place:
        // it renames a new one over it.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::at(path))?;
        Ok(Self::OnDisk(Arc::new(OnDisk { file, map })))
    }

    /// The JSON value that they hold, and nothing after it.
    ///
    /// # Errors
    /// The field that does not fit, and why.
    pub(crate) fn parse<'de, T: Deserialize<'de>>(&'de self) -> Result<T, String> {
        parse_json(self)
    }

    /// Fills `out` with the bytes from `start` on, on all threads.
    ///
    /// Reads the file instead of copying from its map: touched pages of a map count as this process's memory, so
    /// the checkpoint would take up twice its size.
    pub(crate) fn read_at(&self, start: usize, out: &mut [u8]) -> io::Result<()> {
        const CHUNK: usize = 4 << 20;
        let end = start.checked_add(out.len()).filter(|&end| end <= self.len());
        if end.is_none() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the tensor does"));
        }
        match self {
            Self::OnDisk(on_disk) => out
                .par_chunks_mut(CHUNK)
                .enumerate()
                .try_for_each(|(i, chunk)| read_exact_at(&on_disk.file, chunk, (start + i * CHUNK) as u64)),
            Self::Embedded(_) | Self::InMemory(_) => {
                out.copy_from_slice(&self[start..start + out.len()]);
                Ok(())
            }
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !out.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_read(file, out, offset)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out = &mut out[n..];
        offset += n as u64;
    }
    Ok(())
}

/// Other targets, such as a browser, have no files.
#[cfg(not(any(unix, windows)))]
fn read_exact_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::OnDisk(on_disk) => &on_disk.map,
            Self::Embedded(bytes) => bytes,
            Self::InMemory(bytes) => bytes,
        }
    }
}

/// Reads one JSON value and nothing after it.
///
/// # Errors
/// The field that does not fit, and why.
pub(crate) fn parse_json<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value =
        serde_path_to_error::deserialize(&mut deserializer).map_err(|e| match e.path().to_string() {
            whole if whole == "." => e.into_inner().to_string(),
            field => format!("{field}: {}", e.into_inner()),
        })?;
    deserializer.end().map_err(|e| e.to_string())?;
    Ok(value)
}
