//! [`Hub::cached`]: what the cache holds.

use super::client::NO_TOKEN;
use super::{CachedModel, ENDPOINT, Hub};
use crate::LoadError;
use hf_hub::HFClient;

impl Hub {
    /// The models that the cache has files of.
    ///
    /// # Errors
    /// When the cache cannot be read.
    pub fn cached(&self) -> Result<Vec<CachedModel>, LoadError> {
        let failed = |reason: String| LoadError::io(&self.cache_dir)(std::io::Error::other(reason));
        let api = HFClient::builder().endpoint(ENDPOINT).token(NO_TOKEN).cache_dir(&self.cache_dir);
        let api = api.build().map_err(|e| failed(e.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let cache = runtime.map_err(|e| failed(e.to_string()))?.block_on(api.scan_cache().send());
        let repositories = cache.map_err(|e| failed(e.to_string()))?.repos;
        let models = repositories.into_iter().filter(|repository| repository.repo_type == "model");
        let mut models: Vec<_> = models
            .flat_map(|model| {
                model.revisions.into_iter().filter(|revision| !revision.files.is_empty()).map(
                    move |revision| CachedModel {
                        id: model.repo_id.clone(),
                        commit: revision.commit_hash,
                        refs: revision.refs,
                        size: revision.size_on_disk,
                    },
                )
            })
            .collect();
        models.sort_by(|a, b| (&a.id, &a.commit).cmp(&(&b.id, &b.commit)));
        Ok(models)
    }
}
