//! [`Follower`]: hashes a file and flushes it to disk while it is being written.

use super::digest::{Digest, Hasher};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// How many bytes are written between two flushes.
const FLUSH: u64 = 32 << 20;

/// Two threads that follow the writing thread. They compute the hash from bytes read back from the file, so it
/// covers the file's real content.
pub(crate) struct Follower {
    hash: Worker<String>,
    flush: Worker<()>,
}

impl Follower {
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
    use super::Follower;
    use crate::hub::digest::Digest;
    use std::io::Write;

    // `printf 'hello\n' | sha256sum`
    const HASH: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    #[test]
    fn a_growing_file_hashes_to_what_it_holds() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let follower = Follower::start(file.path(), &Digest::parse(HASH).unwrap(), 6).unwrap();
        for (i, byte) in b"hello\n".iter().enumerate() {
            file.write_all(&[*byte]).unwrap();
            follower.written(i as u64 + 1);
        }
        assert_eq!(follower.finish().unwrap(), HASH);
    }

    #[test]
    fn a_file_that_is_cut_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let follower = Follower::start(file.path(), &Digest::parse(HASH).unwrap(), 6).unwrap();
        follower.written(6);
        assert!(follower.finish().is_err());
    }
}
