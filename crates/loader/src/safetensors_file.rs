//! Tensors of a safetensors file, and of the shards that an index names.

use crate::checkpoint::{Stored, parse_json};
use crate::{Bytes, Header, LoadError, TensorInfo};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const FORMAT: &str = "safetensors";
const INDEX: &str = "safetensors index";

/// Every tensor of one file; only the header is read.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<Stored>, LoadError> {
    let (header_len, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|e| LoadError::damaged(path, FORMAT, bytes, e))?;
    // The header's offsets were checked against the file's length above.
    Ok(stored(path, &metadata, 8 + header_len, bytes))
}

/// Every tensor that a header names; there is no data to load.
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
        info: TensorInfo { name, dtype: info.dtype, shape: info.shape.clone(), file: path.to_path_buf() },
        bytes: bytes.clone(),
        range: data_start.saturating_add(info.data_offsets.0)..data_start.saturating_add(info.data_offsets.1),
        entry: None,
    });
    tensors.collect()
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The shards that the index at `path` names, each a file name.
pub(crate) fn shards(path: &Path) -> Result<Vec<String>, LoadError> {
    let (_, index) = parse_index(path)?;
    Ok(index.weight_map.into_values().collect::<BTreeSet<_>>().into_iter().collect())
}

fn parse_index(path: &Path) -> Result<(Bytes, Index), LoadError> {
    let json = Bytes::open(path)?;
    let index: Index = parse_json(path, &json, INDEX)?;
    if let Some(shard) = index.weight_map.values().find(|s| Path::new(s).file_name() != Some(s.as_ref())) {
        let reason = format!("shard {shard:?} is not a file name beside the index");
        return Err(LoadError::damaged(path, INDEX, &json, reason));
    }
    Ok((json, index))
}

/// Every tensor of the shards that the index at `path` names.
pub(crate) fn read_index(path: &Path) -> Result<Vec<Stored>, LoadError> {
    let (json, index) = parse_index(path)?;
    let damaged = |reason: String| LoadError::damaged(path, INDEX, &json, reason);

    let mut tensors: Vec<Stored> = vec![];
    for shard in index.weight_map.values().collect::<BTreeSet<_>>() {
        let shard_path: PathBuf = path.with_file_name(shard);
        if shard_path.symlink_metadata().is_err() {
            return Err(damaged(format!("its shard {} is not there", shard_path.display())));
        }
        tensors.extend(read(&shard_path, &Bytes::open(&shard_path)?)?);
    }
    let held: BTreeSet<(&str, &Path)> =
        tensors.iter().map(|t| (t.info.name.as_str(), t.info.file.as_path())).collect();
    for (name, shard) in &index.weight_map {
        let shard_path = path.with_file_name(shard);
        if !held.contains(&(name.as_str(), shard_path.as_path())) {
            return Err(damaged(format!("tensor {name} is not in {shard}, where the index puts it")));
        }
    }
    Ok(tensors)
}
