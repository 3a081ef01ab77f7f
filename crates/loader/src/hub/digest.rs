//! [`Digest`]: the hash that the Hub announces for a file, and the file's own; [`HashWhileWriting`] computes it while the file is
//! being written.

use gpt2_files::open_regular;
use sha1::digest::{Digest as _, DynDigest};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The hash that a file's content must have. It is the file's `ETag` on the Hub and its blob's name in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Digest {
    /// SHA-256 of the content, for files in large file storage.
    Sha256(String),
    /// Git's id of a blob, SHA-1 of `blob {length}\0` and the content, for all others.
    GitSha1(String),
}

impl Digest {
    /// Reads an `ETag`; `None` if it is not a hash of content.
    pub(crate) fn parse(etag: &str) -> Option<Self> {
        let hex = etag.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match etag.len() {
            64 if hex => Some(Self::Sha256(etag.into())),
            40 if hex => Some(Self::GitSha1(etag.into())),
            _ => None,
        }
    }

    /// The hash in hexadecimal.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitSha1(hex) => hex,
        }
    }

    /// The hash of the file at `path`, of the same kind as this one.
    pub(crate) fn of_file(&self, path: &Path) -> io::Result<String> {
        let mut file = open_regular(path)?;
        let mut hasher = Hasher::new(self, file.metadata()?.len());
        hasher.read(&mut file, u64::MAX)?;
        Ok(hasher.finish())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "sha256 {hex}"),
            Self::GitSha1(hex) => write!(f, "git blob sha1 {hex}"),
        }
    }
}

/// A hash that is being computed.
struct Hasher(Box<dyn DynDigest + Send>);

impl Hasher {
    fn new(digest: &Digest, len: u64) -> Self {
        Self(match digest {
            Digest::Sha256(_) => Box::new(sha2::Sha256::new()),
            Digest::GitSha1(_) => Box::new(sha1::Sha1::new_with_prefix(format!("blob {len}\0"))),
        })
    }

    /// Takes in up to `limit` bytes of `file`; returns how many there were.
    fn read(&mut self, file: &mut File, limit: u64) -> io::Result<u64> {
        let mut buffer = vec![0; 1 << 18];
        let mut total = 0;
        while total < limit {
            let room = usize::try_from(limit - total).unwrap_or(usize::MAX).min(buffer.len());
            let n = match file.read(&mut buffer[..room]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.0.update(&buffer[..n]);
            total += n as u64;
        }
        Ok(total)
    }

    fn finish(self) -> String {
        hex::encode(self.0.finalize())
    }
}

/// The number of bytes written between two flushes.
const FLUSH: u64 = 32 << 20;

/// Two threads that follow the writing thread. They compute the hash from bytes read back from the file, so it
/// covers the file's real content.
pub(crate) struct HashWhileWriting {
    hash: Worker<String>,
    flush: Worker<()>,
}

impl HashWhileWriting {
    /// Follows the file at `path`, which will be `len` bytes long.
    pub(crate) fn start(path: &Path, digest: &Digest, len: u64) -> io::Result<Self> {
        let mut hasher = Hasher::new(digest, len);
        let mut file = File::open(path)?;
        let hash = Worker::start("hash", move |written| {
            let mut done = 0;
            while let Some(end) = latest(written) {
                done += hasher.read(&mut file, end - done)?;
                if done < end {
                    let reason = "the file was cut while it was hashed";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
                }
            }
            Ok(hasher.finish())
        })?;
        let file = File::options().write(true).open(path)?;
        let flush = Worker::start("flush", move |written| {
            let mut done = 0;
            while let Some(end) = latest(written) {
                if end - done >= FLUSH {
                    file.sync_data()?;
                    done = end;
                }
            }
            file.sync_all()
        })?;
        Ok(Self { hash, flush })
    }

    /// Tells the threads that the first `len` bytes are in the file.
    pub(crate) fn written(&self, len: u64) {
        // If a thread has failed, `finish` says why.
        let _ = self.hash.written.send(len);
        let _ = self.flush.written.send(len);
    }

    /// Waits until everything is on disk, and returns the hash of the announced bytes.
    pub(crate) fn finish(self) -> io::Result<String> {
        let Self { hash, flush } = self;
        drop((hash.written, flush.written));
        let joined = |_| io::Error::other("a thread behind a download panicked");
        flush.thread.join().map_err(joined)??;
        hash.thread.join().map_err(joined)?
    }
}

/// A thread, and the channel that tells it how far the writer is.
struct Worker<T> {
    written: Sender<u64>,
    thread: JoinHandle<io::Result<T>>,
}

impl<T: Send + 'static> Worker<T> {
    fn start(
        name: &str,
        work: impl FnOnce(&Receiver<u64>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<Self> {
        let (written, receiver) = channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&receiver))?;
        Ok(Self { written, thread })
    }
}

/// The writer's present position; `None` once it is done.
fn latest(written: &Receiver<u64>) -> Option<u64> {
    let first = written.recv().ok()?;
    Some(written.try_iter().last().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::{Digest, HashWhileWriting};
    use std::io::Write;

    // `printf 'hello\n' | git hash-object --stdin` and `printf 'hello\n' | sha256sum`
    const GIT: &str = "ce013625030ba8dba906f756967f9e9ca394464a";
    const SHA256: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    #[test]
    fn a_file_hashes_as_git_and_sha256sum_say() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"hello\n").unwrap();
        for hex in [GIT, SHA256] {
            let digest = Digest::parse(hex).unwrap();
            assert_eq!(digest.of_file(file.path()).unwrap(), hex);
        }
        for etag in
            ["", "abc", &GIT.to_uppercase(), &"g".repeat(64), "../../../../../../etc/passwd-0000000000"]
        {
            assert_eq!(Digest::parse(etag), None, "{etag}");
        }
    }

    #[test]
    fn a_growing_file_hashes_to_what_it_holds() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let follower = HashWhileWriting::start(file.path(), &Digest::parse(SHA256).unwrap(), 6).unwrap();
        for (i, byte) in b"hello\n".iter().enumerate() {
            file.write_all(&[*byte]).unwrap();
            follower.written(i as u64 + 1);
        }
        assert_eq!(follower.finish().unwrap(), SHA256);
    }

    #[test]
    fn a_file_that_is_cut_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let follower = HashWhileWriting::start(file.path(), &Digest::parse(SHA256).unwrap(), 6).unwrap();
        follower.written(6);
        assert!(follower.finish().is_err());
    }
}
