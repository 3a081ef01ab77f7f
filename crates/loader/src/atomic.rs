//! Files that are either whole or not there.

use crate::LoadError;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Lets `write` fill a temporary file beside `path`, then renames it to `path`. After a failure, or a
/// process that dies in between, `path` is what it was before. A link is followed; the permissions are
/// those of the file that was there, else those of any new file.
///
/// # Errors
/// When the folder cannot be written to, `path` is a folder, a device or a pipe, or `write` fails.
pub fn write<E>(path: &Path, write: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), LoadError>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let refused = |reason: &str| LoadError::io(path)(std::io::Error::other(reason));
    let target = follow_links(path);
    let before = std::fs::metadata(&target).ok();
    if before.as_ref().is_some_and(|m| !m.is_file()) {
        return Err(refused("is a folder, a device or a pipe; name a file"));
    }
    if before.as_ref().is_some_and(|m| m.permissions().readonly()) {
        return Err(refused("is read-only; allow writing to it, or choose another name"));
    }
    let dir = match target.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if !dir.is_dir() {
        return Err(refused(&format!("there is no folder {}; make it first", dir.display())));
    }
    let file = tempfile::Builder::new()
        .prefix(".gpt2-")
        .permissions_like_any_new_file()
        .tempfile_in(dir)
        .map_err(LoadError::io(path))?;
    let permissions = match before {
        Some(before) => before.permissions(),
        None => file.as_file().metadata().map_err(LoadError::io(path))?.permissions(),
    };
    write(file.path()).map_err(|e| LoadError::io(path)(std::io::Error::other(e)))?;
    // `write` may have put another file, with other permissions, in the temporary one's place.
    std::fs::set_permissions(file.path(), permissions).map_err(LoadError::io(path))?;
    // On disk before it takes the old file's place: `write` may have replaced what `file` has open.
    std::fs::File::open(file.path()).and_then(|f| f.sync_all()).map_err(LoadError::io(path))?;
    file.persist(&target).map_err(|e| LoadError::io(path)(e.error))?;
    Ok(())
}

/// The file that `path` leads to, there or not yet.
fn follow_links(path: &Path) -> PathBuf {
    // Linux gives up after 40 links; so does this, and writing then fails with the system's reason.
    let mut target = path.to_path_buf();
    for _ in 0..40 {
        match std::fs::read_link(&target) {
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => break,
        }
    }
    target
}

/// [`fn@write`] for content that is in memory.
///
/// # Errors
/// When the folder cannot be written to.
pub fn write_bytes(path: &Path, content: &[u8]) -> Result<(), LoadError> {
    write(path, |temporary| std::fs::File::create(temporary)?.write_all(content))
}

/// `tempfile` makes files that only their owner can read; what is kept gets the mode of any new file.
trait Permissions {
    fn permissions_like_any_new_file(&mut self) -> &mut Self;
}

impl Permissions for tempfile::Builder<'_, '_> {
    #[cfg(unix)]
    fn permissions_like_any_new_file(&mut self) -> &mut Self {
        use std::os::unix::fs::PermissionsExt;
        self.permissions(std::fs::Permissions::from_mode(0o666)) // the umask takes away what it takes away
    }

    #[cfg(not(unix))]
    fn permissions_like_any_new_file(&mut self) -> &mut Self {
        self
    }
}
