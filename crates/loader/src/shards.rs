//! [`Index`]: which shard of a checkpoint in several files holds which tensor.

use crate::bytes::Bytes;
use crate::error::LoadError;
use crate::json;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const FORMAT: &str = "safetensors index";

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
        let Json { weight_map } = json::parse(&json).map_err(LoadError::json(path, FORMAT))?;
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
        LoadError::damaged(&self.path, FORMAT, &self.json, reason)
    }
}
