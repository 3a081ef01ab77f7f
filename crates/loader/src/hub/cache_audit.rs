//! [`Hub::cached`] and [`Hub::verify`]: what the cache holds, and whether it is good.

use super::cache::{LONGEST_RECORD, is_commit};
use super::fetch::{CommitLookup, Fetch};
use super::{CachedModel, FileCheck, FileState, Hub, ModelId};
use crate::error::LoadError;
use crate::files::CONFIG;
use gpt2_files::read_text;
use std::io;
use std::path::Path;
use std::sync::Arc;

impl Hub {
    /// The models that the cache has files of.
    ///
    /// # Errors
    /// When the cache cannot be read.
    pub fn cached(&self) -> Result<Vec<CachedModel>, LoadError> {
        let folders = match std::fs::read_dir(&self.cache_dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            folders => folders.map_err(LoadError::io(&self.cache_dir))?,
        };
        let mut models = vec![];
        for folder in folders.flatten() {
            let name = folder.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_prefix("models--")) else { continue };
            let refs = folder.path().join("refs");
            let commit_of = |name: &String| read_text(&refs.join(name), LONGEST_RECORD).unwrap_or_default();
            let names = files_below(&refs).unwrap_or_default();
            let Ok(snapshots) = std::fs::read_dir(folder.path().join("snapshots")) else { continue };
            for snapshot in snapshots.flatten() {
                let Ok(commit) = snapshot.file_name().into_string() else { continue };
                let files = files_below(&snapshot.path()).unwrap_or_default();
                if files.is_empty() || !is_commit(&commit) {
                    continue;
                }
                let len =
                    |file: &String| std::fs::metadata(snapshot.path().join(file)).map_or(0, |m| m.len());
                let size = files.iter().map(len).sum();
                let refs = names.iter().filter(|name| commit_of(name).trim() == commit).cloned().collect();
                models.push(CachedModel { id: id.replace("--", "/"), commit, refs, size });
            }
        }
        models.sort_by(|a, b| (&a.id, &a.commit).cmp(&(&b.id, &b.commit)));
        Ok(models)
    }

    /// Hashes every cached file of a model again; with `repair`, downloads the bad ones again.
    ///
    /// # Errors
    /// When nothing of the model is cached, or the revision is invalid, as for [`open`](Self::open).
    pub fn verify(&self, model: &ModelId, revision: &str, repair: bool) -> Result<Vec<FileCheck>, LoadError> {
        let fetch = Fetch::new(self, model, revision, CommitLookup::WhereNeeded)?;
        let commit = fetch.repo.commit(revision).ok_or_else(|| fetch.not_cached(CONFIG))?;
        let names = files_below(&fetch.repo.snapshot(&commit)).map_err(|_| fetch.not_cached(CONFIG))?;
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
        self.repo.forget(commit, name, &digest);
        if !repair {
            return Ok(FileState::Bad);
        }
        self.required(commit, name)?;
        Ok(FileState::Repaired)
    }
}

/// The files below `dir` in order, by their paths relative to it.
fn files_below(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = vec![];
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if entry.file_type()?.is_dir() {
            names.extend(files_below(&entry.path())?.into_iter().map(|below| format!("{name}/{below}")));
        } else {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
