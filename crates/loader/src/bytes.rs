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
        let file = std::fs::File::open(path).map_err(LoadError::io(path))?;
        if file.metadata().map_err(LoadError::io(path))?.len() == 0 {
            return Ok(Self::Embedded(&[])); // an empty file cannot be mapped everywhere
        }
        // SAFETY: the map is read-only and lives as long as the tensors that read from it. Another process
        // that writes to the file while it is mapped changes what is read here, as for every reader of
        // safetensors; the values are plain numbers, for which any bytes are valid.
        #[allow(unsafe_code)]
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
