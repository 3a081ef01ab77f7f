//! Tensors of safetensors files: of one, and of its [`Header`] alone.

use crate::error::LoadError;
use crate::stored::bytes::Bytes;
use crate::stored::{Encoding, Stored, TensorInfo};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use std::path::{Path, PathBuf};

const FORMAT: &str = "safetensors";

/// The beginning of a safetensors file that was not downloaded.
#[derive(Debug, Clone)]
pub struct Header {
    /// The file's name in messages.
    pub path: PathBuf,
    /// The length of the header, the header, and possibly more.
    pub bytes: Vec<u8>,
    /// The length of the whole file, if known.
    pub file_len: Option<u64>,
}

/// Every tensor of one file; reads only the header.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<Stored>, LoadError> {
    let (header_len, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|e| LoadError::damaged(path, FORMAT, bytes, e))?;
    // The header's offsets were checked against the file's length above.
    Ok(stored(path, &metadata, 8 + header_len, bytes))
}

/// Every tensor that a header names, without data to load.
pub(crate) fn read_header(header: &Header) -> Result<Vec<Stored>, LoadError> {
    let Header { path, bytes, file_len } = header;
    let damaged = |reason: String| LoadError::damaged(path, FORMAT, bytes, reason);
    let len = bytes.first_chunk().map(|len| u64::from_le_bytes(*len));
    let end = len.and_then(|len| usize::try_from(len.checked_add(8)?).ok());
    let json = end.and_then(|end| bytes.get(8..end)).ok_or_else(|| {
        damaged(match len {
            Some(len) => format!("its header should be {len} bytes long"),
            None => "it is shorter than the length of a header".into(),
        })
    })?;
    let metadata: Metadata = serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))?;
    let data_end = metadata.tensors().values().map(|info| info.data_offsets.1).max().unwrap_or(0);
    let expected = (8 + json.len() as u64).saturating_add(data_end as u64);
    if file_len.is_some_and(|len| len != expected) {
        return Err(damaged(format!(
            "its header describes {expected} bytes, the file has {}",
            file_len.unwrap_or_default()
        )));
    }
    Ok(stored(path, &metadata, 8 + json.len(), &Bytes::Embedded(&[])))
}

fn stored(path: &Path, metadata: &Metadata, data_start: usize, bytes: &Bytes) -> Vec<Stored> {
    let tensors = metadata.tensors().into_iter().map(|(name, info)| Stored {
        info: TensorInfo {
            name,
            dtype: Encoding::Plain(info.dtype),
            shape: info.shape.clone(),
            file: path.to_path_buf(),
        },
        bytes: bytes.clone(),
        range: data_start.saturating_add(info.data_offsets.0)..data_start.saturating_add(info.data_offsets.1),
        entry: None,
        strides: None,
        transposed: false,
    });
    tensors.collect()
}
