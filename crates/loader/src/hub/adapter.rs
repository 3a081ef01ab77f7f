//! [`Hub::open_adapter`]: the two files of an adapter, verified.

use super::fetch::{Ask, Fetch};
use super::{Hub, ModelId};
use crate::adapter::AdapterFiles;
use crate::error::LoadError;
use crate::file_names::{ADAPTER_CONFIG, ADAPTER_PICKLE, ADAPTER_SAFETENSORS};

impl Hub {
    /// The files of a LoRA adapter at a revision; cached as by [`open`](Self::open).
    ///
    /// # Errors
    /// When a file is neither cached nor available, or its content differs from what the Hub announced.
    pub fn open_adapter(&self, adapter: &ModelId, revision: &str) -> Result<AdapterFiles, LoadError> {
        let fetch = Fetch::new(self, adapter, revision, Ask::WhereNeeded)?;
        let commit = fetch.commit()?;
        let config = fetch.required(&commit, ADAPTER_CONFIG)?;
        let kinds = [ADAPTER_SAFETENSORS, ADAPTER_PICKLE];
        let cached = kinds.into_iter().find(|name| fetch.repo.has_file(&commit, name));
        let name = match cached {
            Some(name) => name,
            None if fetch.is_listed(&commit, ADAPTER_SAFETENSORS)? => ADAPTER_SAFETENSORS,
            None if fetch.is_listed(&commit, ADAPTER_PICKLE)? => ADAPTER_PICKLE,
            None => return Err(fetch.missing(&kinds.join(", "))),
        };
        let weights = fetch.required(&commit, name)?;
        fetch.keep_commit(&commit)?;
        let digest = fetch.repo.digest(&commit, name);
        Ok(AdapterFiles {
            verified: digest
                .map(|digest| (name.to_string(), digest.as_str().to_string()))
                .into_iter()
                .collect(),
            commit: Some(commit.clone()),
            ..AdapterFiles::new(fetch.label(&commit), config, weights)
        })
    }
}
