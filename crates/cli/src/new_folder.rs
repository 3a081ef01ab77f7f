//! A folder for a run's output. If the run leaves nothing in it, the folder is removed again.

use anyhow::Context;
use std::path::{Path, PathBuf};

/// The folders that this run created, innermost first. Dropping it removes those that are empty.
#[derive(Debug)]
pub(crate) struct NewFolder(Vec<PathBuf>);

impl NewFolder {
    /// Creates `dir` and any missing parents.
    pub(crate) fn make(dir: &Path) -> anyhow::Result<Self> {
        let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        let made = Self(missing.map(Path::to_path_buf).collect());
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(made)
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // This only removes empty folders.
        for dir in &self.0 {
            let _ = std::fs::remove_dir(dir);
        }
    }
}
