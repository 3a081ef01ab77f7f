//! Writes files whole or not at all.

use crate::Error;
use crate::unfinished::Listed;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Temporary files and folders are called `.gpt2-XXXXXX.tmp`. On Unix, the process that writes a file holds a lock on it, which tells
/// the other processes on this machine that it is alive. Locks on other systems are mandatory: they would keep out the
/// writer itself.
pub(crate) const PREFIX: &str = ".gpt2-";
pub(crate) const SUFFIX: &str = ".tmp";

/// Lets `write` fill a temporary file beside `path`, then renames it to `path`: [`stage`] followed by
/// [`Staged::commit`].
///
/// # Errors
/// When `stage` or `commit` fails.
pub fn write<E>(path: &Path, write: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), Error>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    stage(path, write)?.commit()
}

/// Like [`fn@write`], for content in memory.
///
/// # Errors
/// When the folder cannot be written to.
pub fn write_bytes(path: &Path, content: &[u8]) -> Result<(), Error> {
    stage_bytes(path, content)?.commit()
}

/// Lets `write` fill a temporary file beside `path`, and flushes it to disk; [`Staged::commit`] renames it to `path`.
/// If anything fails or the process dies before that, `path` stays as it was, and the next write into that folder
/// removes the temporary file. It follows links. The new file keeps the permissions of the old one; if there was
/// none, it gets those of any new file.
///
/// # Errors
/// When the folder cannot be written to, `path` is a folder, a device, a pipe or a link that leads to itself, or
/// `write` fails.
pub fn stage<E>(path: &Path, write: impl FnOnce(&Path) -> Result<(), E>) -> Result<Staged, Error>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let failed = |e: io::Error| Error::at(path)(e);
    let (target, before) = target(path)?;
    let dir = folder_of(path, &target)?;
    remove_abandoned(dir);
    let (file, listed) = temporary(dir, &target).map_err(failed)?;
    let permissions = match before {
        Some(before) => before.permissions(),
        None => file.as_file().metadata().map_err(failed)?.permissions(),
    };
    // Nobody who may not read the old file reads the new one meanwhile.
    std::fs::set_permissions(file.path(), permissions.clone()).map_err(failed)?;
    write(file.path()).map_err(|e| failed(io::Error::other(e)))?;
    // `write` may have replaced the temporary file by another, with other permissions and without a lock.
    let written = File::options().write(true).open(file.path()).map_err(failed)?;
    if cfg!(unix) {
        let _ = written.try_lock();
    }
    std::fs::set_permissions(file.path(), permissions).map_err(failed)?;
    // The data must be on disk before the file replaces the old one.
    written.sync_all().map_err(failed)?;
    Ok(Staged { path: path.to_path_buf(), target, file, listed, _written: written })
}

/// Like [`stage`], for content in memory.
///
/// # Errors
/// When the folder cannot be written to.
pub fn stage_bytes(path: &Path, content: &[u8]) -> Result<Staged, Error> {
    stage(path, |temporary| File::create(temporary)?.write_all(content))
}

/// The file that [`stage`] would write for `path`, after following links. Checks that its folder is writable.
///
/// # Errors
/// When `path` or its folder is one that `stage` refuses.
pub fn check(path: &Path) -> Result<PathBuf, Error> {
    let (target, _) = target(path)?;
    temporary(folder_of(path, &target)?, &target).map_err(Error::at(path))?;
    Ok(target)
}

/// A complete file under a temporary name. Dropping it without committing removes the file.
#[derive(Debug)]
pub struct Staged {
    /// The path as the caller gave it.
    path: PathBuf,
    /// The file that `path` leads to.
    target: PathBuf,
    file: NamedTempFile,
    listed: Listed,
    /// Holds the lock of the temporary file.
    _written: File,
}

impl Staged {
    /// Puts the file in its place.
    ///
    /// # Errors
    /// When the system refuses to rename it.
    pub fn commit(self) -> Result<(), Error> {
        self.rename(NamedTempFile::persist)
    }

    /// Like [`commit`](Self::commit), but leaves a file alone that has been written to its place meanwhile.
    ///
    /// # Errors
    /// When there is a file that is not empty, or the system refuses to rename this one.
    pub fn commit_new(self) -> Result<(), Error> {
        if std::fs::metadata(&self.target).is_ok_and(|there| there.len() == 0) {
            return self.commit();
        }
        self.rename(|file, target| match file.persist_noclobber(&target) {
            // Some file systems cannot rename without replacing.
            Err(failed)
                if failed.error.kind() != io::ErrorKind::AlreadyExists
                    && target.symlink_metadata().is_err() =>
            {
                failed.file.persist(target)
            }
            done => done,
        })
    }

    fn rename(
        self,
        rename: impl FnOnce(NamedTempFile, PathBuf) -> Result<File, tempfile::PersistError>,
    ) -> Result<(), Error> {
        let Self { path, target, file, listed, .. } = self;
        let Err(failed) = listed.renamed(|| rename(file, target)) else { return Ok(()) };
        let reason = match failed.error {
            // Denied, a sharing violation, a file that is mapped to memory.
            e if cfg!(windows) && matches!(e.raw_os_error(), Some(5 | 32 | 1224)) => io::Error::new(
                e.kind(),
                format!(
                    "{e}: it cannot be replaced; close other programs that have it open, or choose another name"
                ),
            ),
            e if e.kind() == io::ErrorKind::AlreadyExists => {
                io::Error::new(e.kind(), "another program has written it meanwhile; choose another name")
            }
            e => e,
        };
        Err(Error::at(&path)(reason))
    }
}

/// Follows links: returns the final path and the file's metadata, if it exists.
fn target(path: &Path) -> Result<(PathBuf, Option<std::fs::Metadata>), Error> {
    let refused = |reason: &str| Error::at(path)(io::Error::other(reason));
    // Check the path itself as well: some links, such as /dev/stdout, do not lead where they say.
    let before = std::fs::metadata(path).ok();
    if before.as_ref().is_some_and(|m| !m.is_file()) {
        return Err(refused("is a folder, a device or a pipe; name a file"));
    }
    let target = follow_links(path).map_err(Error::at(path))?;
    if before.as_ref().is_some_and(|m| m.permissions().readonly()) {
        return Err(refused("is read-only; allow writing to it, or choose another name"));
    }
    Ok((target, before))
}

/// The folder of `target`; an error names `path`.
fn folder_of<'a>(path: &Path, target: &'a Path) -> Result<&'a Path, Error> {
    let dir = match target.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if dir.is_dir() {
        return Ok(dir);
    }
    let reason = format!("there is no folder {}; make it first", dir.display());
    Err(Error::at(path)(io::Error::new(ErrorKind::NotFound, reason)))
}

/// The file that `path` leads to, which need not exist. A link that leads to itself fails with the system's reason.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_path_buf();
    // Linux follows as many.
    for _ in 0..40 {
        match std::fs::read_link(&target) {
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(target),
        }
    }
    match std::fs::metadata(path) {
        Err(e) => Err(e),
        Ok(_) => Err(io::Error::other("too many links lead from one to the next; name the file itself")),
    }
}

/// A new temporary file in `dir` whose lock this process holds, to become `target`.
fn temporary(dir: &Path, target: &Path) -> io::Result<(NamedTempFile, Listed)> {
    for _ in 0..100 {
        let new = || {
            tempfile::Builder::new()
                .prefix(PREFIX)
                .suffix(SUFFIX)
                .permissions_like_any_new_file()
                .tempfile_in(dir)
        };
        let (file, listed) = Listed::new(target, new).map_err(|e| of_folder(dir, e))?;
        if !cfg!(unix) {
            return Ok((file, listed));
        }
        // Before we locked it, another process may have taken it for abandoned and removed it, or be about to.
        match file.as_file().try_lock() {
            // The file system has no locks.
            Err(TryLockError::Error(_)) => return Ok((file, listed)),
            Ok(()) if file.path().exists() => return Ok((file, listed)),
            Err(TryLockError::WouldBlock) | Ok(()) => {}
        }
    }
    Err(io::Error::other("its temporary file is removed again and again by another process"))
}

/// The reason in words that name the folder instead of the temporary file.
pub(crate) fn of_folder(dir: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            let reason = format!("the folder {} cannot be written to; choose another", dir.display());
            io::Error::new(error.kind(), reason)
        }
        _ => error,
    }
}

/// Whether a file or a folder of this name is temporary.
pub(crate) fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
    random.is_some_and(|random| random.len() == 6 && random.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Removes the temporary files in `dir` that nobody has locked: the processes that wrote them have died.
fn remove_abandoned(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if cfg!(unix)
            && is_file
            && entry.file_name().to_str().is_some_and(is_temporary)
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Gives a file the mode of any new file: `tempfile` makes files that only their owner can read.
trait Permissions {
    fn permissions_like_any_new_file(&mut self) -> &mut Self;
}

impl Permissions for tempfile::Builder<'_, '_> {
    #[cfg(unix)]
    fn permissions_like_any_new_file(&mut self) -> &mut Self {
        use std::os::unix::fs::PermissionsExt;
        self.permissions(std::fs::Permissions::from_mode(0o666)) // minus the umask
    }

    #[cfg(not(unix))]
    fn permissions_like_any_new_file(&mut self) -> &mut Self {
        self
    }
}
