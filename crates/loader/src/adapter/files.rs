//! [`AdapterFiles`]: where an adapter's files are.

use crate::bytes::Bytes;
use crate::error::LoadError;
use crate::file_names::{ADAPTER_CONFIG, ADAPTER_PICKLE, ADAPTER_SAFETENSORS, CONFIG};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files of an adapter. They exist; nothing else about them has been checked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AdapterFiles {
    /// The adapter's name in messages.
    pub name: String,
    /// `adapter_config.json`
    pub config: PathBuf,
    /// `adapter_model.safetensors` or `adapter_model.bin`
    pub weights: PathBuf,
    /// The commit, for files from the Hub.
    pub commit: Option<String>,
    /// The hash of the weights by the file's name, as in [`Files::verified`](crate::Files::verified).
    pub verified: BTreeMap<String, String>,
}

impl AdapterFiles {
    /// The files of an adapter in a folder, as PEFT's `save_pretrained` writes them.
    ///
    /// # Errors
    /// When the folder or one of the two files is missing.
    pub fn directory(dir: &Path) -> Result<Self, LoadError> {
        let refused =
            |reason: &str| LoadError::Adapter { name: dir.display().to_string(), reason: reason.into() };
        if !dir.is_dir() {
            return Err(refused(
                "no such folder, nor the name of an adapter on the Hub (owner/name); expected one with \
                 adapter_config.json and adapter_model.safetensors",
            ));
        }
        let find = |name: &str| Some(dir.join(name)).filter(|path| path.symlink_metadata().is_ok());
        let Some(config) = find(ADAPTER_CONFIG) else {
            return Err(refused(if find(CONFIG).is_some() {
                "holds a model, not an adapter: there is a config.json and no adapter_config.json"
            } else {
                "no adapter_config.json here; expected a folder as PEFT's save_pretrained writes it"
            }));
        };
        let Some(weights) = find(ADAPTER_SAFETENSORS).or_else(|| find(ADAPTER_PICKLE)) else {
            return Err(refused("neither adapter_model.safetensors nor adapter_model.bin is here"));
        };
        Ok(Self::new(dir.display().to_string(), config, weights))
    }

    pub(crate) fn new(name: String, config: PathBuf, weights: PathBuf) -> Self {
        Self { name, config, weights, commit: None, verified: BTreeMap::new() }
    }

    /// Whether a folder holds an adapter.
    #[must_use]
    pub fn is_in(dir: &Path) -> bool {
        dir.join(ADAPTER_CONFIG).symlink_metadata().is_ok()
    }

    /// Whether the weights are a pickle.
    pub(super) fn is_pickle(&self) -> bool {
        self.weights.extension().is_some_and(|end| end == "bin")
    }

    /// The config's bytes.
    pub(super) fn config_bytes(&self) -> Result<Bytes, LoadError> {
        Bytes::open(&self.config)
    }
}
