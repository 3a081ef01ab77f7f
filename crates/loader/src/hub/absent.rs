//! [`Hub`]'s calls in a build without the feature `hub`: each says so.

use super::{CachedModel, FileCheck, Headers, Hub, ModelId, Snapshot};
use crate::LoadError;

impl Hub {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn open(&self, model: &ModelId, _: &str) -> Result<Snapshot, LoadError> {
        Err(no_hub(model))
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn download(&self, model: &ModelId, _: &str) -> Result<Snapshot, LoadError> {
        Err(no_hub(model))
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn headers(&self, model: &ModelId, _: &str) -> Result<Headers, LoadError> {
        Err(no_hub(model))
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn verify(&self, model: &ModelId, _: &str, _: bool) -> Result<Vec<FileCheck>, LoadError> {
        Err(no_hub(model))
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn cached(&self) -> Result<Vec<CachedModel>, LoadError> {
        Err(LoadError::NoHub { model: "the cache".into() })
    }
}

fn no_hub(model: &ModelId) -> LoadError {
    LoadError::NoHub { model: model.to_string() }
}
