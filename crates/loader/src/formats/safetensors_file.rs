//! Tensors of safetensors files: of one, of its [`Header`] alone, and of the shards that an [`Index`] names.

use crate::error::LoadError;
use crate::stored::bytes::Bytes;
use crate::stored::{Encoding, Stored, TensorInfo};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const FORMAT: &str = "safetensors";
const INDEX_FORMAT: &str = "safetensors index";

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

/// `model.safetensors.index.json`. Each shard that it names is a plain file name, and so lies beside the index.
pub(crate) struct Index {
    path: PathBuf,
    json: Bytes,
    /// The shard of each tensor.
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Json {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads the index at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let json = Bytes::open(path)?;
        let Json { weight_map } = json.parse().map_err(LoadError::json(path, INDEX_FORMAT))?;
        let index = Self { path: path.to_path_buf(), json, weight_map };
        if let Some(shard) = index.shards().find(|shard| Path::new(shard).file_name() != Some(shard.as_ref()))
        {
            return Err(index.damaged(format!("shard {shard:?} is not a file name beside the index")));
        }
        Ok(index)
    }

    /// Each tensor and its shard.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&str, &str)> {
        self.weight_map.iter().map(|(tensor, shard)| (tensor.as_str(), shard.as_str()))
    }

    /// Each shard once.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &str> {
        self.weight_map.values().map(String::as_str).collect::<BTreeSet<_>>().into_iter()
    }

    /// The path of a shard.
    pub(crate) fn path_of(&self, shard: &str) -> PathBuf {
        self.path.with_file_name(shard)
    }

    /// The error for an index whose content is wrong.
    pub(crate) fn damaged(&self, reason: String) -> LoadError {
        LoadError::damaged(&self.path, INDEX_FORMAT, &self.json, reason)
    }
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
        transposed: false,
    });
    tensors.collect()
}

/// Every tensor of the shards that the index at `path` names.
pub(crate) fn read_index(path: &Path) -> Result<Vec<Stored>, LoadError> {
    let index = Index::open(path)?;
    let mut tensors: Vec<Stored> = vec![];
    for shard in index.shards() {
        let shard_path = index.path_of(shard);
        if shard_path.symlink_metadata().is_err() {
            return Err(index.damaged(format!("its shard {} is not there", shard_path.display())));
        }
        tensors.extend(read(&shard_path, &Bytes::open(&shard_path)?)?);
    }
    let held: BTreeSet<(&str, &Path)> =
        tensors.iter().map(|t| (t.info.name.as_str(), t.info.file.as_path())).collect();
    for (name, shard) in index.tensors() {
        if !held.contains(&(name, index.path_of(shard).as_path())) {
            return Err(index.damaged(format!("tensor {name} is not in {shard}, where the index puts it")));
        }
    }
    Ok(tensors)
}
