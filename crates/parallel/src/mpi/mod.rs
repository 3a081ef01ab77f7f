//! A group of processes over MPI.

mod calls;
mod library;
mod meeting;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::joining::{Joining, Launcher, OPEN_MPI};
use calls::Calls;
use meeting::{Doing, Member, TransferWatch};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

/// Bytes in one call of the library, over all ranks: 25 MB. Larger calls gain no speed, and the library's own buffers
/// grow with them.
const BUCKET: usize = 25_000_000;

/// A group of processes over an MPI library, which is opened at run time: Open MPI 4 and 5, MPICH and all with its ABI,
/// and all with MPI 5's.
///
/// Dropping it ends MPI, which waits until every rank does. After an error the ranks are apart: a program can only end
/// itself, and with [`abort`](Group::abort) the others.
#[derive(Debug)]
pub struct Mpi {
    member: Member,
    thread: ThreadId,
    watch: TransferWatch,
    /// Whether a meeting or a transfer has failed: some rank may never come to the end of MPI.
    has_failed: AtomicBool,
}

impl Mpi {
    /// Opens the library and joins the processes that `launcher` started.
    ///
    /// # Errors
    /// When there is no library, or it sees other processes than the launcher started.
    pub(crate) fn open(launcher: Option<Launcher>, joining: &Joining) -> Result<Self> {
        let opened = library::open(launcher.as_ref())?;
        let path = opened.path.clone();
        let calls =
            Calls::new(opened).map_err(|reason| Error::NotALibrary { path, reason: reason.into() })?;
        // Another library would end the process, with a message about its own insides.
        if let Some(launcher) = launcher.filter(|launcher| launcher.name == OPEN_MPI)
            && !calls.version().starts_with("Open MPI")
        {
            return Err(Error::WrongLibrary { launcher: launcher.name, library: calls.version().into() });
        }
        calls.start()?;
        let rank = calls.rank()?;
        let size = calls.size()?;
        let watch = TransferWatch::new(meeting::patience(joining.timeout), joining.on_stuck);
        let thread = std::thread::current().id();
        let member = Member { calls, rank, size, limit: joining.timeout };
        let mpi = Self { member, thread, watch, has_failed: false.into() };
        match launcher {
            Some(Launcher { name, size: started, .. }) if started != size => Err(Error::WrongLauncher {
                launcher: name,
                started,
                library: mpi.member.calls.version().to_owned(),
                seen: size,
            }),
            _ => Ok(mpi),
        }
    }

    /// Waits until all ranks are here to do the same; returns the largest of their numbers.
    fn meet(&self, doing: Doing, number: usize) -> Result<usize> {
        if std::thread::current().id() != self.thread {
            return Err(Error::OtherThread);
        }
        if self.member.size == 1 {
            return Ok(number);
        }
        self.noted(self.member.meet(doing, number))
    }

    /// Remembers a failure.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        self.has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result
    }

    /// Runs a transfer of one bucket, for which the ranks have met.
    fn transfer(&self, doing: Doing, transfer: impl FnOnce(&Calls) -> Result<()>) -> Result<()> {
        self.noted(self.watch.during(doing.as_str(), || transfer(&self.member.calls)))
    }

    /// Refuses lengths that are not one for each rank, or do not add up.
    fn check(&self, function: &'static str, lengths: &[usize], whole: usize) -> Result<()> {
        let sum = lengths.iter().sum();
        if lengths.len() != self.member.size {
            return Err(Error::Size { function, found: lengths.len(), expected: self.member.size });
        }
        if sum == whole { Ok(()) } else { Err(Error::Size { function, found: whole, expected: sum }) }
    }
}

/// The part of each of `lengths` that the transfer number `turn` moves, at most `most` bytes of each.
fn turns(lengths: &[usize], turn: usize, most: usize) -> Vec<usize> {
    lengths.iter().map(|length| length.saturating_sub(turn * most).min(most)).collect()
}

/// The start of each part, where all parts lie one after the other.
fn starts(lengths: &[usize]) -> Vec<usize> {
    let sum = |end: &mut usize, length: &usize| {
        *end += length;
        Some(*end - length)
    };
    lengths.iter().scan(0, sum).collect()
}

/// Copies the parts in a bucket, `lengths` of them one after the other, to where they belong: each to `shift` after its
/// start.
fn place(bucket: &[u8], lengths: &[usize], shift: usize, to: &mut [u8], starts: &[usize]) {
    let mut rest = bucket;
    for (start, length) in starts.iter().zip(lengths) {
        let (part, after) = rest.split_at(*length);
        // The place of a part that is over may lie beyond the end.
        if *length > 0 {
            to[start + shift..][..*length].copy_from_slice(part);
        }
        rest = after;
    }
}

impl Group for Mpi {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn size(&self) -> usize {
        self.member.size
    }

    fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<()> {
        if root >= self.member.size {
            return Err(Error::Size { function: "broadcast", found: root, expected: self.member.size });
        }
        self.meet(Doing::Broadcast, 0)?;
        data.chunks_mut(BUCKET)
            .try_for_each(|bucket| self.transfer(Doing::Broadcast, |calls| calls.broadcast(root, bucket)))
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8], lengths: &[usize]) -> Result<()> {
        self.check("all_gather", lengths, all.len())?;
        if mine.len() != lengths[self.member.rank] {
            let found = mine.len();
            let expected = lengths[self.member.rank];
            return Err(Error::Size { function: "all_gather", found, expected });
        }
        self.meet(Doing::AllGather, 0)?;
        if all.len() <= BUCKET {
            return self.transfer(Doing::AllGather, |calls| calls.all_gather(mine, all, lengths));
        }
        let most = BUCKET / self.member.size;
        let starts = starts(lengths);
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut bucket = vec![];
        for turn in 0..longest.div_ceil(most) {
            let parts = turns(lengths, turn, most);
            let from = (turn * most).min(mine.len());
            bucket.resize(parts.iter().sum(), 0);
            let own = &mine[from..from + parts[self.member.rank]];
            self.transfer(Doing::AllGather, |calls| calls.all_gather(own, &mut bucket, &parts))?;
            place(&bucket, &parts, turn * most, all, &starts);
        }
        Ok(())
    }

    fn all_to_all(&self, parts: &[u8], lengths: &[usize], received: &mut [u8], from: &[usize]) -> Result<()> {
        self.check("all_to_all", lengths, parts.len())?;
        self.check("all_to_all", from, received.len())?;
        // Ranks with less to move make the same number of calls.
        let longest = lengths.iter().chain(from).copied().max().unwrap_or(0);
        let longest = self.meet(Doing::AllToAll, longest)?;
        let most = BUCKET / self.member.size;
        if longest <= most {
            return self.transfer(Doing::AllToAll, |calls| calls.all_to_all(parts, lengths, received, from));
        }
        let (starts, from_starts) = (starts(lengths), starts(from));
        let mut out = vec![];
        let mut bucket = vec![];
        for turn in 0..longest.div_ceil(most) {
            let sent = turns(lengths, turn, most);
            let taken = turns(from, turn, most);
            out.clear();
            for (start, length) in starts.iter().zip(&sent).filter(|(_, length)| **length > 0) {
                out.extend_from_slice(&parts[start + turn * most..][..*length]);
            }
            bucket.resize(taken.iter().sum(), 0);
            self.transfer(Doing::AllToAll, |calls| calls.all_to_all(&out, &sent, &mut bucket, &taken))?;
            place(&bucket, &taken, turn * most, received, &from_starts);
        }
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.meet(Doing::Barrier, 0).map(|_| ())
    }

    fn abort(&self, exit_code: i32) -> ! {
        if std::thread::current().id() == self.thread {
            self.member.calls.abort(exit_code);
        }
        std::process::exit(exit_code)
    }

    fn describe(&self) -> Option<String> {
        let ranks =
            if self.member.size == 1 { "1 rank".into() } else { format!("{} ranks", self.member.size) };
        Some(format!("{ranks} over {}", self.member.calls.version()))
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // A rank that fails must not wait for the others, nor may another thread call the library.
        let may_wait = !std::thread::panicking() && !self.has_failed.load(Ordering::Relaxed);
        if std::thread::current().id() == self.thread && may_wait {
            self.watch.during("the end of MPI", || self.member.calls.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_turns_are_the_whole_in_its_order() {
        let lengths = [5, 0, 3, 7];
        assert_eq!(starts(&lengths), [0, 5, 5, 8]);
        let whole: Vec<u8> = (0..15).collect();
        for most in [1, 2, 3, 7, 100] {
            let mut found = vec![0; 15];
            for turn in 0..7usize.div_ceil(most) {
                let parts = turns(&lengths, turn, most);
                assert!(parts.iter().all(|length| *length <= most));
                let mut bucket = vec![];
                for (start, (length, part)) in starts(&lengths).into_iter().zip(lengths.iter().zip(&parts)) {
                    let from = (turn * most).min(*length);
                    bucket.extend_from_slice(&whole[start + from..][..*part]);
                }
                place(&bucket, &parts, turn * most, &mut found, &starts(&lengths));
            }
            assert_eq!(found, whole, "{most} at most");
        }
    }
}
