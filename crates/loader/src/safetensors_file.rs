//! Tensors of a safetensors file, and of the shards that an index names.

use crate::checkpoint::{Stored, parse_json};
use crate::{Bytes, LoadError, TensorInfo};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Every tensor of one file; only the header is read.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<Stored>, LoadError> {
    let (header_len, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|e| LoadError::damaged(path, "safetensors", bytes, e))?;
    let data_start = 8 + header_len;
    let tensors = metadata.tensors().into_iter().map(|(name, info)| Stored {
        info: TensorInfo { name, dtype: info.dtype, shape: info.shape.clone(), file: path.to_path_buf() },
        bytes: bytes.clone(),
        // The header's offsets were checked against the file's length above.
        range: data_start + info.data_offsets.0..data_start + info.data_offsets.1,
    });
    Ok(tensors.collect())
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Every tensor of the shards that the index at `path` names.
pub(crate) fn read_index(path: &Path) -> Result<Vec<Stored>, LoadError> {
    const FORMAT: &str = "safetensors index";
    let json = Bytes::open(path)?;
    let index: Index = parse_json(path, &json, FORMAT)?;
    let damaged = |reason: String| LoadError::damaged(path, FORMAT, &json, reason);

    let mut tensors: Vec<Stored> = vec![];
    for shard in index.weight_map.values().collect::<BTreeSet<_>>() {
        if Path::new(shard).file_name() != Some(shard.as_ref()) {
            return Err(damaged(format!("shard {shard:?} is not a file name beside the index")));
        }
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
