//! The temporary files and new folders of this process, for whoever has to end it before it is done.
//!
//! A signal's thread calls [`end`] and then ends the process. Files that belong together get their names in
//! [`together`], which [`end`] waits for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The temporary files and folders, with the file or folder that each will become; and the new folders, innermost first.
#[derive(Debug)]
struct All {
    files: BTreeMap<PathBuf, PathBuf>,
    folders: Vec<PathBuf>,
}

static ALL: Mutex<All> = Mutex::new(All { files: BTreeMap::new(), folders: vec![] });
static TOGETHER: Mutex<()> = Mutex::new(());

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `moves`, which give several files their names. [`end`] comes before them or after them. They must not call this again.
pub fn together<T>(moves: impl FnOnce() -> T) -> T {
    let _guard = lock(&TOGETHER);
    moves()
}

/// Removes this process's temporary files, and its new folders if they are empty. Returns the files that are not written for that.
/// From then on, whoever writes a file waits for ever: the caller ends the process.
#[must_use]
pub fn end() -> Vec<PathBuf> {
    std::mem::forget(lock(&TOGETHER));
    let mut all = lock(&ALL);
    for path in all.files.keys() {
        let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
    }
    for path in &all.folders {
        let _ = std::fs::remove_dir(path);
    }
    let mut targets: Vec<PathBuf> = std::mem::take(&mut all.files).into_values().collect();
    targets.dedup();
    std::mem::forget(all);
    targets
}

/// New folders, innermost first, which [`end`] removes if they are empty, as long as this lives.
#[derive(Debug)]
pub struct NewFolders(Vec<PathBuf>);

impl NewFolders {
    /// Makes the folder, and those above it that are missing.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn make(folder: &Path) -> io::Result<Self> {
        let mut all = lock(&ALL);
        // Those that another of these made are this one's, too: whichever goes last finds them empty.
        let is_new = |dir: &Path| !dir.exists() || all.folders.iter().any(|made| made == dir);
        let missing = folder.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && is_new(dir));
        let made: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        // They may lie in those that were made before.
        all.folders.splice(0..0, made.iter().cloned());
        drop(all);
        let made = Self(made);
        std::fs::create_dir_all(folder)?;
        Ok(made)
    }
}

impl Drop for NewFolders {
    /// Removes those that are empty.
    fn drop(&mut self) {
        let mut all = lock(&ALL);
        for dir in &self.0 {
            let _ = std::fs::remove_dir(dir);
            if let Some(at) = all.folders.iter().position(|listed| listed == dir) {
                all.folders.remove(at);
            }
        }
    }
}

/// Makes a file in a temporary folder.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    // While `end` empties the folder, nothing comes into it.
    let _all = lock(&ALL);
    File::create_new(path)
}

/// A temporary file, or a temporary folder with all in it, that [`end`] removes, as long as this lives.
#[derive(Debug)]
pub(crate) struct Listed(PathBuf);

impl Listed {
    /// Makes a file or a folder at a place that `make` chooses, and lists it.
    pub(crate) fn new<F: AsRef<Path>>(
        target: &Path,
        make: impl FnOnce() -> io::Result<F>,
    ) -> io::Result<(F, Self)> {
        let mut all = lock(&ALL);
        let file = make()?;
        all.files.insert(file.as_ref().to_path_buf(), target.to_path_buf());
        let listed = Self(file.as_ref().to_path_buf());
        Ok((file, listed))
    }

    /// Runs `rename`, after which the file is no longer listed.
    pub(crate) fn renamed<T>(self, rename: impl FnOnce() -> T) -> T {
        let mut all = lock(&ALL);
        let result = rename();
        all.files.remove(&self.0);
        result
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&ALL).files.remove(&self.0);
    }
}
