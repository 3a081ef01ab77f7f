//! [`Repo`]: one model's part of the cache, laid out as Python's `huggingface_hub` lays it out.
//!
//! ```text
//! models--owner--name/
//!   refs/main                   the commit of `main` when it was last asked for
//!   snapshots/COMMIT/FILE       a link to ../../blobs/HASH
//!   blobs/HASH                  a file, named by the hash of its content
//!   blobs/HASH.HEX.incomplete   the part of it that has arrived, in a file that one process writes
//!   .no_exist/COMMIT/FILE       an empty file: the commit has no such file
//!   .gpt2-verified/COMMIT/FILE  which content was verified, see `is_verified`; only this crate reads it
//! .locks/models--owner--name/HASH.lock
//! ```

use super::digest::Digest;
use super::model_id::ModelId;
use crate::error::hub_error::HubError;
use crate::files::WEIGHTS;
use gpt2_files::atomic;
use gpt2_files::read_text;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The time that a waiting process sleeps before it looks again.
const POLL: Duration = Duration::from_millis(100);

/// Bytes of a ref, which holds a commit, or of a record, which holds a hash and three numbers.
pub(super) const LONGEST_RECORD: u64 = 4096;

/// Whether `revision` is the full hash of a commit.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// One model's part of a cache.
#[derive(Debug, Clone)]
pub(crate) struct Repo {
    root: PathBuf,
    locks: PathBuf,
}

/// Held while a blob is written; released when it is dropped, or when its process dies.
pub(crate) struct Lock {
    /// `None` on a file system without locks.
    file: Option<File>,
    /// Part of the name of the file that the blob arrives in.
    tag: u32,
}

impl Lock {
    /// The file that a blob arrives in. Each process has its own, since on some networks' file systems a lock that is granted keeps
    /// nobody away. With a lock, the longest part that another process has left behind becomes this one's.
    pub(crate) fn partial(&self, repo: &Repo, digest: &Digest) -> PathBuf {
        let blobs = repo.root.join("blobs");
        let own = blobs.join(format!("{}.{:08x}.incomplete", digest.as_str(), self.tag));
        if self.file.is_some()
            && !own.exists()
            && let Some(left) = longest_part(&blobs, digest)
        {
            // If another process is faster, there is nothing to go on from.
            let _ = std::fs::rename(left, &own);
        }
        own
    }
}

impl Repo {
    /// The model's part of `cache`: under its id, or, if that has nothing for `revision`, under the short name
    /// (`gpt2`), where transformers keeps it when it is given only that name.
    pub(crate) fn new(cache: &Path, model: &ModelId, revision: &str) -> Self {
        let of = |id: String| {
            let of = if model.is_dataset() { hf_hub::Repo::dataset } else { hf_hub::Repo::model };
            let folder = of(id).folder_name();
            Self { root: cache.join(&folder), locks: cache.join(".locks").join(folder) }
        };
        let repo = of(model.path());
        match model.alias().map(|alias| of(alias.to_string())) {
            Some(aliased) if !repo.has_weights(revision) && aliased.has_weights(revision) => aliased,
            _ => repo,
        }
    }

    fn has_weights(&self, revision: &str) -> bool {
        let has = |commit: String| WEIGHTS.iter().any(|name| self.has_file(&commit, name));
        self.commit(revision).is_some_and(has)
    }

    /// The commit of `revision`, if the cache knows it.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_string());
        }
        let commit = read_text(&self.root.join("refs").join(revision), LONGEST_RECORD).ok()?;
        Some(commit.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// The folder of a commit's files.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// The path of a commit's file.
    pub(crate) fn pointer(&self, commit: &str, name: &str) -> PathBuf {
        self.snapshot(commit).join(name)
    }

    /// Whether anything is at the path of a commit's file, even a broken link.
    pub(crate) fn has_file(&self, commit: &str, name: &str) -> bool {
        self.pointer(commit, name).symlink_metadata().is_ok()
    }

    /// The path of the blob with this hash.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.as_str())
    }

    /// The hash that the content of a commit's file must have: the name of the blob that the file links to. Only the
    /// first link is followed; a further one leads to a store with other names. On a system without links, where the
    /// cache holds the file itself, this is the hash that the file was last verified against.
    pub(crate) fn digest(&self, commit: &str, name: &str) -> Option<Digest> {
        if let Ok(target) = std::fs::read_link(self.pointer(commit, name)) {
            return Digest::parse(target.file_name()?.to_str()?);
        }
        self.recorded(commit, name)
    }

    /// The hash that the file was last verified against, even if the file has changed since.
    pub(crate) fn recorded(&self, commit: &str, name: &str) -> Option<Digest> {
        let record = read_text(&self.record(commit, name), LONGEST_RECORD).ok()?;
        Digest::parse(record.split(' ').next()?)
    }

    /// Whether the file was verified and has not changed since, by its size, time of change and inode.
    pub(crate) fn is_verified(&self, commit: &str, name: &str, digest: &Digest) -> bool {
        let stamp = stamp(&self.pointer(commit, name), digest);
        let record = read_text(&self.record(commit, name), LONGEST_RECORD);
        matches!((stamp, record), (Ok(stamp), Ok(record)) if stamp == record)
    }

    /// The file's state, taken before it is hashed, for [`set_verified`](Self::set_verified).
    pub(crate) fn stamp(&self, commit: &str, name: &str, digest: &Digest) -> Option<String> {
        stamp(&self.pointer(commit, name), digest).ok()
    }

    /// Remembers that a file is good, unless it changed while it was hashed. If the record cannot be written, the
    /// file is hashed again next time.
    pub(crate) fn set_verified(&self, commit: &str, name: &str, digest: &Digest, before: Option<String>) {
        let record = self.record(commit, name);
        let unchanged = before.filter(|before| self.stamp(commit, name, digest).as_ref() == Some(before));
        if let (Some(stamp), Some(dir)) = (unchanged, record.parent()) {
            let _ = std::fs::create_dir_all(dir);
            let _ = atomic::write_bytes(&record, stamp.as_bytes());
        }
    }

    fn record(&self, commit: &str, name: &str) -> PathBuf {
        self.root.join(".gpt2-verified").join(commit).join(name)
    }

    /// Forgets that the file was verified, but not its hash: it is hashed again before it is next used.
    pub(crate) fn forget(&self, commit: &str, name: &str, digest: &Digest) {
        let record = self.record(commit, name);
        if record.exists() && atomic::write_bytes(&record, digest.as_str().as_bytes()).is_err() {
            let _ = std::fs::remove_file(record);
        }
    }

    /// Removes the pointer of a file and the blob that it points to, so that nobody trusts it.
    pub(crate) fn discard(&self, commit: &str, name: &str, digest: &Digest) -> Result<(), HubError> {
        for path in [self.record(commit, name), self.pointer(commit, name), self.blob(digest)] {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(HubError::cache(&path)(e)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the cache knows that the commit has no such file.
    pub(crate) fn is_absent(&self, commit: &str, name: &str) -> bool {
        self.root.join(".no_exist").join(commit).join(name).exists()
    }

    /// Remembers that the commit has no such file.
    pub(crate) fn set_absent(&self, commit: &str, name: &str) {
        let dir = self.root.join(".no_exist").join(commit);
        let _ = std::fs::create_dir_all(&dir).and_then(|()| File::create(dir.join(name)));
    }

    /// Remembers the commit of `revision`.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit(revision).is_some_and(|known| known == commit) {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        make_parent(&path)?;
        atomic::write_bytes(&path, commit.as_bytes())
            .map_err(|error| HubError::cache(&error.path)(error.source))
    }

    /// Puts a link to the blob in the place of a commit's file, or without `links` the file itself: the blob if it is `fresh`, which
    /// no other commit links to, else a copy.
    pub(crate) fn link(
        &self,
        commit: &str,
        name: &str,
        digest: &Digest,
        links: bool,
        fresh: bool,
    ) -> Result<(), HubError> {
        let pointer = self.pointer(commit, name);
        make_parent(&pointer)?;
        // Joined piece by piece: in a link, Windows follows only its own separators.
        let up = 2 + name.matches('/').count();
        let target: PathBuf = std::iter::repeat_n("..", up).chain(["blobs", digest.as_str()]).collect();
        let dir = pointer.parent().unwrap_or(Path::new("."));
        let put = || {
            if fresh {
                return std::fs::rename(self.blob(digest), &pointer);
            }
            let copy = tempfile::Builder::new().prefix(".gpt2-").tempfile_in(dir)?;
            std::fs::copy(self.blob(digest), copy.path())?;
            copy.persist(&pointer).map(drop).map_err(|error| error.error)
        };
        if !links {
            return put().map_err(HubError::cache(&pointer));
        }
        // Create it beside the file, then rename it: another process sees the old file or the new one.
        let made = tempfile::Builder::new().prefix(".gpt2-").make_in(dir, |path| symlink(&target, path));
        let linked = match made {
            Ok(link) => link.into_temp_path().persist(&pointer).map_err(|e| e.error),
            // Without links, Python keeps the file itself in the snapshot.
            Err(_) if cfg!(windows) => put(),
            Err(e) => Err(e),
        };
        linked.map_err(HubError::cache(&pointer))
    }

    /// Waits until no other process writes this blob. Calls `waiting` once if it has to wait.
    ///
    /// # Errors
    /// When the cache cannot be written to, or the other process has made no headway for `patience`.
    pub(crate) fn lock(
        &self,
        digest: &Digest,
        patience: Duration,
        waiting: impl FnOnce() -> Result<(), HubError>,
    ) -> Result<Lock, HubError> {
        make_parent(&self.blob(digest))?;
        let path = self.locks.join(format!("{}.lock", digest.as_str()));
        make_parent(&path)?;
        if std::fs::metadata(&path).is_ok_and(|meta| !meta.is_file()) {
            return Err(HubError::NotAFile { path });
        }
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(HubError::cache(&path))?;
        let tag = tag();
        let mut waiting = Some(waiting);
        let mut seen = (self.bytes_of(digest), Instant::now());
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { file: Some(file), tag }),
                Err(TryLockError::Error(_)) => return Ok(Lock { file: None, tag }),
                Err(TryLockError::WouldBlock) => {}
            }
            if let Some(waiting) = waiting.take() {
                waiting()?;
            }
            let bytes = self.bytes_of(digest);
            if bytes != seen.0 {
                seen = (bytes, Instant::now());
            } else if seen.1.elapsed() > patience {
                return Err(HubError::Locked { path, seconds: patience.as_secs() });
            }
            std::thread::sleep(POLL);
        }
    }

    /// The bytes on disk of a blob and of its parts, of every process that writes them.
    fn bytes_of(&self, digest: &Digest) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.root.join("blobs")) else { return 0 };
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(digest.as_str()))
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .sum()
    }
}

/// The longest of the parts of a blob that have arrived; Python's, from before 2.4, has no tag in its name.
fn longest_part(blobs: &Path, digest: &Digest) -> Option<PathBuf> {
    let entries = std::fs::read_dir(blobs).ok()?.flatten();
    let parts = entries.filter(|entry| {
        let name = entry.file_name();
        let inside =
            name.to_str().and_then(|name| name.strip_prefix(digest.as_str())?.strip_suffix(".incomplete"));
        inside.is_some_and(|tag| tag.is_empty() || tag.starts_with('.'))
    });
    let by_len = parts.filter_map(|entry| {
        Some((entry.metadata().ok().filter(std::fs::Metadata::is_file)?.len(), entry.path()))
    });
    by_len.max().map(|(_, path)| path)
}

/// Digits that no other process has, most likely.
fn tag() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    // Its keys are random in each process; the lower half is as random as the rest.
    #[allow(clippy::cast_possible_truncation)]
    let tag = RandomState::new().hash_one(std::process::id()) as u32;
    tag
}

/// Creates the folder for `path`.
pub(crate) fn make_parent(path: &Path) -> Result<(), HubError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(HubError::cache(dir))
}

/// The state of a file when it was verified: its hash, size, time of change and inode.
fn stamp(path: &Path, digest: &Digest) -> io::Result<String> {
    let meta = std::fs::metadata(path)?;
    let modified = meta.modified()?.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos());
    Ok(format!("{} {} {modified} {}", digest.as_str(), meta.len(), inode(&meta)))
}

#[cfg(unix)]
fn inode(meta: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(meta)
}

#[cfg(not(unix))]
fn inode(_: &std::fs::Metadata) -> u64 {
    0
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)?;
    // Wine says that it made one, and makes none.
    link.symlink_metadata().map(drop)
}

#[cfg(test)]
mod tests {
    use super::{Digest, HubError, Repo, is_commit};
    use crate::hub::ModelId;
    use std::fs::File;
    use std::io::Write;
    use std::time::{Duration, Instant};

    #[test]
    fn a_lock_is_waited_for_but_not_for_ever() {
        let cache = tempfile::tempdir().unwrap();
        let repo = Repo::new(cache.path(), &ModelId::parse("gpt2").unwrap(), "main");
        let digest = Digest::parse(&"a".repeat(40)).unwrap();
        let held = repo.lock(&digest, Duration::ZERO, || panic!("nobody to wait for")).unwrap();
        let mut waited = false;
        let error = repo
            .lock(&digest, Duration::from_millis(300), || {
                waited = true;
                Ok(())
            })
            .err()
            .unwrap();
        assert!(matches!(error, HubError::Locked { .. }) && waited, "{error}");
        drop(held);
        repo.lock(&digest, Duration::ZERO, || panic!("nobody to wait for")).unwrap();
    }

    #[test]
    fn a_waiting_process_is_patient_while_the_blob_grows() {
        let cache = tempfile::tempdir().unwrap();
        let repo = Repo::new(cache.path(), &ModelId::parse("gpt2").unwrap(), "main");
        let digest = Digest::parse(&"a".repeat(40)).unwrap();
        let held = repo.lock(&digest, Duration::ZERO, || panic!("nobody to wait for")).unwrap();
        let mut partial = File::create(held.partial(&repo, &digest)).unwrap();
        let patience = Duration::from_millis(400);
        let begun = Instant::now();
        let download = std::thread::spawn(move || {
            while begun.elapsed() < Duration::from_millis(500) {
                partial.write_all(b"a byte more").unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
            // A pause shorter than the patience: the waiting process looks again and sees no progress.
            std::thread::sleep(Duration::from_millis(220));
            drop(held);
        });
        let lock = repo.lock(&digest, patience, || Ok(()));
        download.join().unwrap();
        assert!(lock.is_ok() && begun.elapsed() > patience, "{:?}", lock.err());
    }

    #[test]
    #[cfg(unix)]
    fn a_link_leads_from_any_folder_of_a_snapshot_to_the_blob() {
        let cache = tempfile::tempdir().unwrap();
        let commit = "a".repeat(40);
        let repo = Repo::new(cache.path(), &ModelId::parse("gpt2").unwrap(), &commit);
        let digest = Digest::parse(&"b".repeat(40)).unwrap();
        super::make_parent(&repo.blob(&digest)).unwrap();
        std::fs::write(repo.blob(&digest), "content").unwrap();
        for name in ["model.bin", "onnx/model.bin", "onnx/small/model.bin"] {
            repo.link(&commit, name, &digest, true, false).unwrap();
            assert_eq!(std::fs::read_to_string(repo.pointer(&commit, name)).unwrap(), "content", "{name}");
            assert_eq!(repo.digest(&commit, name), Some(digest.clone()), "{name}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn without_links_a_blob_that_another_commit_links_to_stays() {
        let cache = tempfile::tempdir().unwrap();
        let old = "a".repeat(40);
        let new = "c".repeat(40);
        let repo = Repo::new(cache.path(), &ModelId::parse("gpt2").unwrap(), &old);
        let digest = Digest::parse(&"b".repeat(40)).unwrap();
        super::make_parent(&repo.blob(&digest)).unwrap();
        std::fs::write(repo.blob(&digest), "content").unwrap();
        repo.link(&old, "model.bin", &digest, true, true).unwrap();
        repo.link(&new, "model.bin", &digest, false, false).unwrap();
        for commit in [&old, &new] {
            assert_eq!(
                std::fs::read_to_string(repo.pointer(commit, "model.bin")).unwrap(),
                "content",
                "{commit}"
            );
        }
        assert!(repo.pointer(&new, "model.bin").symlink_metadata().unwrap().is_file());
        // A blob that was just fetched has no other link: it becomes the file.
        repo.link(&new, "other.bin", &digest, false, true).unwrap();
        assert!(!repo.blob(&digest).exists());
    }

    #[test]
    fn a_commit_is_forty_hexadecimal_digits() {
        assert!(is_commit(&"0a".repeat(20)));
        for other in
            ["0a".repeat(19), "0a".repeat(21), format!("a{}", "g".repeat(39)), format!("{}/", "a".repeat(39))]
        {
            assert!(!is_commit(&other), "{other}");
        }
    }
}
