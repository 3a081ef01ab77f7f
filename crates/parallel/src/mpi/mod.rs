//! A group of processes over MPI.

mod calls;
mod library;
mod meeting;
mod watch;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::joining::Joining;
use crate::launcher::{Launcher, OPEN_MPI};
use calls::Calls;
use std::thread::ThreadId;
use std::time::Duration;
use watch::Watch;

/// Bytes in one call of the library, over all ranks: 25 MB. Larger calls gain no speed, and the library's own buffers
/// grow with them.
const BUCKET: usize = 25_000_000;

/// A group of processes over an MPI library, which is opened at run time: Open MPI 4 and 5, MPICH and all with its ABI,
/// and all with MPI 5's.
///
/// Dropping it ends MPI, which waits until every rank does.
#[derive(Debug)]
pub struct Mpi {
    calls: Calls,
    rank: usize,
    size: usize,
    thread: ThreadId,
    timeout: Duration,
    watch: Watch,
}

impl Mpi {
    /// Opens the library and joins the processes that `launcher` started.
    ///
    /// # Errors
    /// When there is no library, or it sees other processes than the launcher started.
    pub(crate) fn open(launcher: Option<Launcher>, joining: &Joining) -> Result<Self> {
        let opened = library::open(launcher.as_ref())?;
        let path = opened.path.clone();
        let calls = Calls::of(opened).map_err(|reason| Error::NotALibrary { path, reason: reason.into() })?;
        // Another library would end the process, with a message about its own insides.
        if let Some(launcher) = launcher.filter(|launcher| launcher.name == OPEN_MPI)
            && !calls.version().starts_with("Open MPI")
        {
            return Err(Error::WrongLibrary { launcher: launcher.name, library: calls.version().into() });
        }
        calls.start()?;
        let (rank, size) = (calls.rank()?, calls.size()?);
        let watch = Watch::new(meeting::patience(joining.timeout), joining.on_stuck);
        let thread = std::thread::current().id();
        let mpi = Self { calls, rank, size, thread, timeout: joining.timeout, watch };
        match launcher {
            Some(Launcher { name, size: started, .. }) if started != size => Err(Error::WrongLauncher {
                launcher: name,
                started,
                library: mpi.calls.version().to_owned(),
                seen: size,
            }),
            _ => Ok(mpi),
        }
    }

    /// Waits for all ranks, then runs a transfer.
    fn together(&self, doing: &'static str, transfer: impl FnOnce(&Calls) -> Result<()>) -> Result<()> {
        if std::thread::current().id() != self.thread {
            return Err(Error::OtherThread);
        }
        if self.size > 1 {
            meeting::meet(&self.calls, self.rank, self.size, self.timeout, doing)?;
        }
        self.watch.during(doing, || transfer(&self.calls))
    }

    /// Refuses lengths that are not one for each rank, or do not add up.
    fn check(&self, function: &'static str, lengths: &[usize], whole: usize) -> Result<()> {
        let sum = lengths.iter().sum();
        if lengths.len() != self.size {
            return Err(Error::Size { function, found: lengths.len(), expected: self.size });
        }
        if sum == whole { Ok(()) } else { Err(Error::Size { function, found: whole, expected: sum }) }
    }
}

/// The part of each of `lengths` that the transfer number `turn` moves, at most `most` bytes of each.
fn turns(lengths: &[usize], turn: usize, most: usize) -> Vec<usize> {
    lengths.iter().map(|length| length.saturating_sub(turn * most).min(most)).collect()
}

/// Where each of the parts begins that lie one after the other.
fn starts(lengths: &[usize]) -> Vec<usize> {
    let sum = |end: &mut usize, length: &usize| {
        *end += length;
        Some(*end - length)
    };
    lengths.iter().scan(0, sum).collect()
}

impl Group for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<()> {
        if root >= self.size {
            return Err(Error::Size { function: "broadcast", found: root, expected: self.size });
        }
        self.together("broadcast", |calls| {
            data.chunks_mut(BUCKET).try_for_each(|bucket| calls.broadcast(root, bucket))
        })
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8], lengths: &[usize]) -> Result<()> {
        self.check("all_gather", lengths, all.len())?;
        if mine.len() != lengths[self.rank] {
            let (found, expected) = (mine.len(), lengths[self.rank]);
            return Err(Error::Size { function: "all_gather", found, expected });
        }
        let doing = "all-gather";
        if all.len() <= BUCKET {
            return self.together(doing, |calls| calls.all_gather(mine, all, lengths));
        }
        let (most, starts) = (BUCKET / self.size, starts(lengths));
        let rounds = lengths.iter().max().map_or(0, |longest| longest.div_ceil(most));
        let mut bucket = vec![];
        self.together(doing, |calls| {
            for turn in 0..rounds {
                let parts = turns(lengths, turn, most);
                let from = (turn * most).min(mine.len());
                bucket.resize(parts.iter().sum(), 0);
                calls.all_gather(&mine[from..from + parts[self.rank]], &mut bucket, &parts)?;
                let mut rest = &bucket[..];
                for (start, length) in starts.iter().zip(parts) {
                    let (part, after) = rest.split_at(length);
                    // A rank whose part is over has nothing left to place.
                    if length > 0 {
                        all[start + turn * most..][..length].copy_from_slice(part);
                    }
                    rest = after;
                }
            }
            Ok(())
        })
    }

    fn all_to_all(&self, parts: &[u8], lengths: &[usize], received: &mut [u8], from: &[usize]) -> Result<()> {
        self.check("all_to_all", lengths, parts.len())?;
        self.check("all_to_all", from, received.len())?;
        // Ranks with less to move make as many calls as those with more.
        let largest = self.gather_lengths(parts.len().max(received.len()))?;
        let doing = "all-to-all";
        if largest <= BUCKET {
            return self.together(doing, |calls| calls.all_to_all(parts, lengths, received, from));
        }
        let most = BUCKET / self.size;
        let longest = self.gather_lengths(lengths.iter().chain(from).copied().max().unwrap_or(0))?;
        let (starts, from_starts) = (starts(lengths), starts(from));
        let (mut out, mut bucket) = (vec![], vec![]);
        self.together(doing, |calls| {
            for turn in 0..longest.div_ceil(most) {
                let (sent, taken) = (turns(lengths, turn, most), turns(from, turn, most));
                out.clear();
                for (start, length) in starts.iter().zip(&sent).filter(|(_, length)| **length > 0) {
                    out.extend_from_slice(&parts[start + turn * most..][..*length]);
                }
                bucket.resize(taken.iter().sum(), 0);
                calls.all_to_all(&out, &sent, &mut bucket, &taken)?;
                let mut rest = &bucket[..];
                for (start, length) in from_starts.iter().zip(taken) {
                    let (part, after) = rest.split_at(length);
                    if length > 0 {
                        received[start + turn * most..][..length].copy_from_slice(part);
                    }
                    rest = after;
                }
            }
            Ok(())
        })
    }

    fn barrier(&self) -> Result<()> {
        self.together("barrier", |_| Ok(()))
    }

    fn abort(&self, exit_code: i32) -> ! {
        if std::thread::current().id() == self.thread {
            self.calls.abort(exit_code);
        }
        std::process::exit(exit_code)
    }

    fn describe(&self) -> Option<String> {
        let ranks = if self.size == 1 { "1 rank".into() } else { format!("{} ranks", self.size) };
        Some(format!("{ranks} over {}", self.calls.version()))
    }
}

impl Mpi {
    /// The largest of the ranks' lengths.
    fn gather_lengths(&self, mine: usize) -> Result<usize> {
        let mut all = vec![0usize; self.size];
        let lengths = vec![size_of::<usize>(); self.size];
        self.all_gather(bytemuck::bytes_of(&mine), bytemuck::cast_slice_mut(&mut all), &lengths)?;
        Ok(all.into_iter().max().unwrap_or(0))
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // A rank that panics must not wait for the others, nor may another thread call the library.
        if std::thread::current().id() == self.thread && !std::thread::panicking() {
            self.calls.finish();
        }
    }
}
