//! [`ZipEntry`]: an uncompressed entry of a zip archive, and its checksum.

use crate::bytes::Bytes;
use std::ops::Range;

/// How many bytes of an entry to hold in memory at a time while checking it.
const CHUNK: usize = 1 << 20;

/// The place of an entry's bytes in the archive, and the CRC-32 that the archive gives for them.
#[derive(Debug)]
pub(crate) struct ZipEntry {
    pub(crate) name: String,
    pub(crate) range: Range<usize>,
    pub(crate) crc32: u32,
}

impl ZipEntry {
    /// Reads the entry and compares its checksum.
    pub(crate) fn check(&self, archive: &Bytes) -> Result<(), String> {
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; CHUNK.min(self.range.len())];
        let mut at = self.range.start;
        while at < self.range.end {
            let part = &mut buffer[..CHUNK.min(self.range.end - at)];
            archive.read_at(at, part).map_err(|e| format!("storage {}: {e}", self.name))?;
            hasher.update(part);
            at += part.len();
        }
        let found = hasher.finalize();
        if found != self.crc32 {
            return Err(format!(
                "storage {}: its CRC-32 is {found:08x}, and the archive says {:08x}",
                self.name, self.crc32
            ));
        }
        Ok(())
    }
}
