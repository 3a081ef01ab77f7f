//! [`Hub::verify`]: the cached files of a model, hashed again.

use super::fetch::{Ask, Fetch};
use super::{FileCheck, FileState, Hub, ModelId};
use crate::error::LoadError;
use crate::file_names::CONFIG;
use std::path::Path;
use std::sync::Arc;

impl Hub {
    /// Hashes every cached file of a model again; with `repair`, downloads the bad ones again.
    ///
    /// # Errors
    /// When nothing of the model is cached, or the revision is invalid, as for [`open`](Self::open).
    pub fn verify(&self, model: &ModelId, revision: &str, repair: bool) -> Result<Vec<FileCheck>, LoadError> {
        let fetch = Fetch::new(self, model, revision, Ask::WhereNeeded)?;
        let commit = fetch.repo.commit(revision).ok_or_else(|| fetch.not_cached(CONFIG))?;
        let dir = fetch.repo.snapshot(&commit);
        let mut names = vec![];
        file_names(&dir, "", &mut names).map_err(|_| fetch.not_cached(CONFIG))?;
        names.sort();
        Ok(names.into_iter().map(|name| fetch.check(&commit, name, repair)).collect())
    }
}

impl Fetch<'_> {
    /// Hashes one file of the cache again.
    fn check(&self, commit: &str, file: String, repair: bool) -> FileCheck {
        let (state, error) = match self.state_of(commit, &file, repair) {
            Ok(state) => (state, None),
            Err(error) => (FileState::Bad, Some(Arc::new(error))),
        };
        let size = std::fs::metadata(self.repo.pointer(commit, &file)).map_or(0, |meta| meta.len());
        FileCheck { file, state, size, error }
    }

    fn state_of(&self, commit: &str, name: &str, repair: bool) -> Result<FileState, LoadError> {
        let known = self.repo.digest(commit, name).or_else(|| self.repo.recorded(commit, name));
        let digest = match known {
            Some(digest) => digest,
            None if self.hub.offline => return Ok(FileState::Unknown),
            None => match self.client(name)?.announced(commit, name)? {
                Some(announced) => announced.digest,
                None => return Ok(FileState::Unknown),
            },
        };
        let before = self.repo.stamp(commit, name, &digest);
        let pointer = self.repo.pointer(commit, name);
        if self.hashes_to(&pointer, name, &digest)? && self.fits_pin(commit, name, &digest) {
            self.repo.set_verified(commit, name, &digest, before);
            return Ok(FileState::Good);
        }
        self.repo.forget(commit, name);
        if !repair {
            return Ok(FileState::Bad);
        }
        self.required(commit, name)?;
        Ok(FileState::Repaired)
    }
}

/// The files below `dir`, by their paths relative to it.
fn file_names(dir: &Path, prefix: &str, names: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            file_names(&entry.path(), &format!("{name}/"), names)?;
        } else {
            names.push(name);
        }
    }
    Ok(())
}
