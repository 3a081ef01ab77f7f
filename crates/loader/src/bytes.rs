//! Bytes of a file: mapped, or compiled into the binary.

use crate::LoadError;
use std::path::Path;
use std::sync::Arc;

/// The content of a file that is not copied into memory.
#[derive(Debug, Clone)]
pub enum Bytes {
    /// Mapped from disk; pages are read when they are used.
    Mapped(Arc<memmap2::Mmap>),
    /// Part of the binary.
    Embedded(&'static [u8]),
}

impl Bytes {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn map(path: &Path) -> Result<Self, LoadError> {
        // Asked before opening: to open a pipe is to wait for its writer.
        let meta = std::fs::metadata(path).map_err(LoadError::io(path))?;
        if !meta.is_file() {
            let reason = std::io::Error::other("is a folder, a device or a pipe; expected a file");
            return Err(LoadError::io(path)(reason));
        }
        let file = std::fs::File::open(path).map_err(LoadError::io(path))?;
        if meta.len() == 0 {
            return Ok(Self::Embedded(&[])); // an empty file cannot be mapped everywhere
        }
        #[allow(unsafe_code)]
        // SAFETY: the map is read-only and lives as long as the tensors that read from it; the values are
        // plain numbers, for which any bytes are valid. What another process does to the file shows here:
        // one that writes changes the numbers, one that truncates ends this process (SIGBUS). This crate
        // itself replaces files whole, by renaming.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(LoadError::io(path))?;
        Ok(Self::Mapped(Arc::new(map)))
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }
}
