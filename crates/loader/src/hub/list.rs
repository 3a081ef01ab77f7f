//! [`Hub::cached`]: what the cache holds.

use super::cache::LONGEST_RECORD;
use super::commit::is_commit;
use super::{CachedModel, Hub};
use crate::error::LoadError;
use gpt2_files::read_text;
use std::io;
use std::path::{Path, PathBuf};

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
            let mut refs = vec![];
            named_commits(&folder.path().join("refs"), "", &mut refs);
            refs.sort();
            for (commit, snapshot) in folders_in(&folder.path().join("snapshots")) {
                let size = files_below(&snapshot);
                let refs =
                    refs.iter().filter(|(_, of)| *of == commit).map(|(name, _)| name.clone()).collect();
                if let Some(size) = size.filter(|_| is_commit(&commit)) {
                    models.push(CachedModel { id: id.replace("--", "/"), commit, refs, size });
                }
            }
        }
        models.sort_by(|a, b| (&a.id, &a.commit).cmp(&(&b.id, &b.commit)));
        Ok(models)
    }
}

/// The folders in `dir` with their names; none if it cannot be read.
fn folders_in(dir: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
    let folders = entries.flatten().filter(|entry| entry.path().is_dir());
    folders.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

/// Each branch and tag below `dir`, and its commit.
fn named_commits(dir: &Path, prefix: &str, found: &mut Vec<(String, String)>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            named_commits(&entry.path(), &format!("{name}/"), found);
        } else if let Ok(commit) = read_text(&entry.path(), LONGEST_RECORD) {
            found.push((name, commit.trim().to_string()));
        }
    }
}

/// The bytes of all files below `dir`, following links; `None` if there are no files.
fn files_below(dir: &Path) -> Option<u64> {
    let mut total = None;
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let size = if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files_below(&entry.path())
        } else {
            std::fs::metadata(entry.path()).ok().map(|meta| meta.len())
        };
        total = total.map_or(size, |sum: u64| Some(sum + size.unwrap_or(0)));
    }
    total
}
