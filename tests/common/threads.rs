//! A group whose ranks are threads of this process: what runs on it runs on any group.

use gpt2_parallel::{Error, Group, Result};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};

/// One rank of a group of threads.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    rank: usize,
    board: Arc<Board>,
}

/// The board on which ranks leave bytes for each other.
#[derive(Debug)]
struct Board {
    slots: Vec<Mutex<Vec<u8>>>,
    all: Barrier,
}

/// Runs `work` on `size` ranks, and returns the results in rank order.
pub(crate) fn on_threads<T: Send>(size: usize, work: impl Fn(Arc<dyn Group>) -> T + Sync) -> Vec<T> {
    let slots = (0..size).map(|_| Mutex::default()).collect();
    let board = Arc::new(Board { slots, all: Barrier::new(size) });
    std::thread::scope(|scope| {
        let start = |rank| {
            let thread = Thread { rank, board: Arc::clone(&board) };
            let work = &work;
            scope.spawn(move || work(Arc::new(thread)))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

impl Thread {
    fn slot(&self, rank: usize) -> MutexGuard<'_, Vec<u8>> {
        self.board.slots[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows `mine` to all ranks while they read.
    fn show(&self, mine: &[u8], read: impl FnOnce() -> Result<()>) -> Result<()> {
        *self.slot(self.rank) = mine.to_vec();
        self.board.all.wait();
        let result = read();
        self.board.all.wait();
        result
    }
}

/// Copies, and refuses another length.
fn copy(function: &'static str, from: &[u8], to: &mut [u8]) -> Result<()> {
    if from.len() != to.len() {
        return Err(Error::Size { function, found: from.len(), expected: to.len() });
    }
    to.copy_from_slice(from);
    Ok(())
}

impl Group for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.board.slots.len()
    }

    fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<()> {
        let mine = data.to_vec();
        self.show(&mine, || copy("broadcast", &self.slot(root), data))
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8], lengths: &[usize]) -> Result<()> {
        self.show(mine, || {
            let mut rest = all;
            for (rank, length) in lengths.iter().enumerate() {
                let (part, after) = rest.split_at_mut(*length);
                copy("all_gather", &self.slot(rank), part)?;
                rest = after;
            }
            copy("all_gather", &[], rest)
        })
    }

    fn all_to_all(&self, parts: &[u8], lengths: &[usize], received: &mut [u8], from: &[usize]) -> Result<()> {
        let starts = |lengths: &[usize]| (0..=lengths.len()).map(|r| lengths[..r].iter().sum()).collect();
        // The board shows where each part ends, then the parts.
        let mine: Vec<usize> = starts(lengths);
        let mut shown: Vec<u8> = mine.iter().flat_map(|end| end.to_le_bytes()).collect();
        shown.extend_from_slice(parts);
        self.show(&shown, || {
            let places: Vec<usize> = starts(from);
            for rank in 0..self.size() {
                let slot = self.slot(rank);
                let (ends, parts) = slot.split_at(8 * (self.size() + 1));
                let end = |r: usize| {
                    let bytes = ends[8 * r..8 * r + 8].try_into().expect("eight bytes");
                    usize::from_le_bytes(bytes)
                };
                let part = &parts[end(self.rank)..end(self.rank + 1)];
                copy("all_to_all", part, &mut received[places[rank]..places[rank + 1]])?;
            }
            Ok(())
        })
    }

    fn barrier(&self) -> Result<()> {
        self.board.all.wait();
        Ok(())
    }

    fn abort(&self, exit_code: i32) -> ! {
        std::process::exit(exit_code)
    }

    fn describe(&self) -> Option<String> {
        Some(format!("{} threads", self.size()))
    }
}
