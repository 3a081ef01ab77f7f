//! [`Index`]: the JSON file that says which shard holds which tensor, of safetensors and of pickles.

use super::{json, pickle, safetensors_file};
use crate::error::LoadError;
use crate::stored::Stored;
use crate::stored::bytes::Bytes;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const FORMAT: &str = "shard index";

/// `model.safetensors.index.json` or `pytorch_model.bin.index.json`. Each shard that it names is a plain file name, and so lies
/// beside the index.
pub(crate) struct Index {
    path: PathBuf,
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
        let bytes = Bytes::open(path)?;
        let Json { weight_map } = json::read(path, &bytes, FORMAT)?;
        let index = Self { path: path.to_path_buf(), weight_map };
        if let Some(shard) = index.shards().find(|shard| Path::new(shard).file_name() != Some(shard.as_ref()))
        {
            return Err(index.misfit(&format!("shard {shard:?} is not a file name beside the index")));
        }
        Ok(index)
    }

    /// Each shard once.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &str> {
        self.weight_map.values().map(String::as_str).collect::<BTreeSet<_>>().into_iter()
    }

    /// The path of a shard.
    pub(crate) fn path_of(&self, shard: &str) -> PathBuf {
        self.path.with_file_name(shard)
    }

    /// The error for an index that is sound by itself, and not the one of the shards beside it.
    fn misfit(&self, reason: &str) -> LoadError {
        let reason = format!(
            "does not fit the files beside it: {reason}; take the index and its shards together, from one place"
        );
        LoadError::Unread { path: self.path.clone(), reason }
    }

    /// Every tensor of the shards.
    pub(crate) fn read(&self) -> Result<Vec<Stored>, LoadError> {
        let mut tensors: Vec<Stored> = vec![];
        for shard in self.shards() {
            let path = self.path_of(shard);
            if path.symlink_metadata().is_err() {
                return Err(self.misfit(&format!("its shard {} is not there: fetch it", path.display())));
            }
            let bytes = Bytes::open(&path)?;
            let is_safetensors = path.extension().is_some_and(|end| end == "safetensors");
            let read = if is_safetensors { safetensors_file::read } else { pickle::read };
            tensors.extend(read(&path, &bytes)?);
        }
        let mut held: BTreeMap<&str, &Path> = BTreeMap::new();
        for tensor in &tensors {
            if let Some(other) = held.insert(&tensor.info.name, &tensor.info.file) {
                let name = |path: &Path| path.file_name().unwrap_or_default().display().to_string();
                return Err(self.misfit(&format!(
                    "tensor {} is in two shards, {} and {}",
                    tensor.info.name,
                    name(other),
                    tensor.info.file_name()
                )));
            }
        }
        for (name, shard) in &self.weight_map {
            if held.get(name.as_str()) != Some(&self.path_of(shard).as_path()) {
                return Err(self.misfit(&format!("tensor {name} is not in {shard}, where the index puts it")));
            }
        }
        Ok(tensors)
    }
}
