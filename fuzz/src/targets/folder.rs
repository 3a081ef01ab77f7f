//! [`Folder`]: a folder for the files of one input, in memory where the system has such a place.

use std::path::PathBuf;
use tempfile::TempDir;

thread_local! {
    /// Made once: a fuzzer runs thousands of inputs a second.
    static DIR: TempDir = tempfile::tempdir().expect("a temporary folder");
}

/// The files of one input; gone with it.
pub(super) struct Folder(Vec<PathBuf>);

impl Folder {
    pub(super) fn new() -> Self {
        Self(vec![])
    }

    pub(super) fn dir() -> PathBuf {
        DIR.with(|dir| dir.path().to_path_buf())
    }

    pub(super) fn write(&mut self, name: &str, data: &[u8]) -> PathBuf {
        let path = Self::dir().join(name);
        std::fs::write(&path, data).expect("the temporary folder can be written to");
        self.0.push(path.clone());
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
