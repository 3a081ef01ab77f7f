//! A folder that a run fills, removed again where the run leaves nothing in it.

use anyhow::Context;
use std::path::{Path, PathBuf};

/// The folders that were made, the innermost first. Dropped, it removes those that are empty.
#[derive(Debug)]
pub(crate) struct NewFolder(Vec<PathBuf>);

impl NewFolder {
    /// Makes `dir` and whatever folder above it is missing.
    pub(crate) fn make(dir: &Path) -> anyhow::Result<Self> {
        let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        let made = Self(missing.map(Path::to_path_buf).collect());
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(made)
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // A folder that holds anything cannot be removed so, and stays.
        for dir in &self.0 {
            let _ = std::fs::remove_dir(dir);
        }
    }
}
