//! [`Hub`]'s calls in a build without the feature `hub`: each refuses.

use super::{CachedModel, FileCheck, Headers, Hub, HubError, ModelId, Snapshot};
use crate::adapter::checkpoint::AdapterFiles;
use crate::dictionary::DictionaryCheckpoint;
use crate::error::LoadError;
use std::fmt::Display;
use std::path::PathBuf;

/// Refuses every call: this build has no Hub.
#[allow(missing_docs, clippy::missing_errors_doc)] // documented where they do something
impl Hub {
    pub fn open(&self, model: &ModelId, _: &str) -> Result<Snapshot, LoadError> {
        no_hub(model)
    }

    pub fn download(&self, model: &ModelId, _: &str) -> Result<Snapshot, LoadError> {
        no_hub(model)
    }

    pub fn open_gguf(&self, model: &ModelId, _: &str, _: &str) -> Result<Snapshot, LoadError> {
        no_hub(model)
    }

    pub fn open_adapter(&self, adapter: &ModelId, _: &str) -> Result<AdapterFiles, LoadError> {
        no_hub(adapter)
    }

    pub fn open_dictionary(&self, id: &ModelId, _: &str, _: &str) -> Result<DictionaryCheckpoint, LoadError> {
        no_hub(id)
    }

    pub fn open_dataset_file(&self, dataset: &ModelId, _: &str, _: &str) -> Result<PathBuf, LoadError> {
        no_hub(dataset)
    }

    pub fn headers(&self, model: &ModelId, _: &str) -> Result<Headers, LoadError> {
        no_hub(model)
    }

    pub fn verify(&self, model: &ModelId, _: &str, _: bool) -> Result<Vec<FileCheck>, LoadError> {
        no_hub(model)
    }

    pub fn cached(&self) -> Result<Vec<CachedModel>, LoadError> {
        no_hub("the cache")
    }
}

fn no_hub<T>(model: impl Display) -> Result<T, LoadError> {
    Err(HubError::NoHub { model: model.to_string() }.into())
}
