//! The ranks meet before each transfer: each tells rank 0 what it wants to do, and rank 0 lets all go.
//!
//! MPI's own calls wait at full speed, forever, and do not tell for whom. Here the waiting ranks sleep, which leaves the
//! processor to those that still compute, and rank 0 knows who is missing, and who wants something else than it does.
//! A [`TransferWatch`] ends the process if a transfer never ends after that.

use super::calls::Calls;
use crate::error::{Error, Result};
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The tags of the two messages.
const HERE: c_int = 1;
const GO: c_int = 2;
/// The number of looks before the first sleep.
const LOOKS: u32 = 2000;
/// The longest sleep between two looks.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// The exchange that the ranks meet for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Broadcast = 1,
    AllGather,
    AllToAll,
    Barrier,
}

impl Doing {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::AllGather => "all-gather",
            Self::AllToAll => "all-to-all",
            Self::Barrier => "barrier",
        }
    }
}

/// The upper byte of a message is what to do, the others are a number.
const NUMBER: u64 = (1 << 56) - 1;

/// The time that all others wait where rank 0 waits for `limit`: it knows who is missing, and should say so first.
pub(super) fn patience(limit: Duration) -> Duration {
    limit.saturating_add(limit / 2).saturating_add(Duration::from_secs(2))
}

/// One rank of a group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) calls: Calls,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The longest wait for another rank.
    pub(super) limit: Duration,
}

impl Member {
    /// Returns once all ranks are here to do the same, with the largest of their numbers.
    pub(super) fn meet(&self, doing: Doing, number: usize) -> Result<usize> {
        let number = number as u64 & NUMBER;
        let agreed = if self.rank == 0 { self.lead(doing, number) } else { self.follow(doing, number) }?;
        usize::try_from(agreed).map_err(|_| Error::Apart { rank: 0, doing: doing.as_str() })
    }

    fn follow(&self, doing: Doing, number: u64) -> Result<u64> {
        self.calls.send_number(0, HERE, ((doing as u64) << 56) | number)?;
        let limit = patience(self.limit);
        if !waited(limit, || self.calls.has_message(0, GO))? {
            return Err(Error::Stuck { missing: vec![0], after: limit, doing: doing.as_str() });
        }
        self.calls.receive_number(0, GO)
    }

    fn lead(&self, doing: Doing, number: u64) -> Result<u64> {
        let mut missing: Vec<usize> = (1..self.size).collect();
        let mut largest = number;
        let mut other = None;
        let all_here = || {
            let mut kept = vec![];
            for from in missing.drain(..) {
                if !self.calls.has_message(from, HERE)? {
                    kept.push(from);
                    continue;
                }
                let message = self.calls.receive_number(from, HERE)?;
                largest = largest.max(message & NUMBER);
                if message >> 56 != doing as u64 {
                    other = Some(from);
                }
            }
            missing = kept;
            Ok(missing.is_empty())
        };
        if !waited(self.limit, all_here)? {
            return Err(Error::Stuck { missing, after: self.limit, doing: doing.as_str() });
        }
        if let Some(rank) = other {
            return Err(Error::Apart { rank, doing: doing.as_str() });
        }
        (1..self.size).try_for_each(|to| self.calls.send_number(to, GO, largest))?;
        Ok(largest)
    }
}

/// Asks until the answer is yes, or the time is over. What counts is the time between two looks, a second at most: a job
/// that was paused as a whole has lost none.
fn waited(limit: Duration, mut ask: impl FnMut() -> Result<bool>) -> Result<bool> {
    let mut looks = 0;
    let mut sleep = Duration::from_micros(10);
    let mut last = Instant::now();
    let mut waited = Duration::ZERO;
    while !ask()? {
        looks += 1;
        if looks < LOOKS {
            std::thread::yield_now();
            continue;
        }
        waited += last.elapsed().min(Duration::from_secs(1));
        last = Instant::now();
        if waited > limit {
            return Ok(false);
        }
        std::thread::sleep(sleep);
        sleep = (sleep * 2).min(LONGEST_SLEEP);
    }
    Ok(true)
}

/// The state that the thread in a transfer shares with the one that watches it.
#[derive(Debug, Default)]
struct Watched {
    /// The time that the present transfer has taken, and its name.
    since: Option<(Duration, &'static str)>,
    is_over: bool,
}

/// Ends this process if a transfer never ends: the thread in it cannot look at a clock.
#[derive(Debug)]
pub(super) struct TransferWatch {
    shared: Arc<(Mutex<Watched>, Condvar)>,
}

impl TransferWatch {
    /// Watches for transfers that take longer than `limit`; reports one with `on_stuck`.
    pub(super) fn new(limit: Duration, on_stuck: fn(&Error)) -> Self {
        let shared = Arc::new((Mutex::new(Watched::default()), Condvar::new()));
        let watched = Arc::clone(&shared);
        let pause = (limit / 4).clamp(Duration::from_millis(50), Duration::from_secs(5));
        std::thread::spawn(move || {
            let (state, change) = &*watched;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            while !state.is_over {
                if let Some((waited, doing)) = state.since
                    && waited > limit
                {
                    on_stuck(&Error::Stuck { missing: vec![], after: limit, doing });
                    // SAFETY: ends the process, whatever its other threads do. Exit handlers might wait for the library,
                    // which is what is stuck. The launcher notices, and ends the others.
                    #[allow(unsafe_code)] // leaving without the library's own clean-up
                    unsafe {
                        libc::_exit(1)
                    }
                }
                state = change.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
                // Not the clock's time: a job that was paused as a whole has lost none.
                if let Some((waited, _)) = &mut state.since {
                    *waited += pause;
                }
            }
        });
        Self { shared }
    }

    /// Runs a transfer under watch.
    pub(super) fn during<T>(&self, doing: &'static str, transfer: impl FnOnce() -> T) -> T {
        self.set(Some((Duration::ZERO, doing)));
        let result = transfer();
        self.set(None);
        result
    }

    fn set(&self, since: Option<(Duration, &'static str)>) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).since = since;
    }
}

impl Drop for TransferWatch {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.shared.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_others_wait_half_as_long_again_and_two_seconds() {
        assert_eq!(patience(Duration::from_secs(4)), Duration::from_secs(8));
        assert_eq!(patience(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn waiting_ends_with_the_answer_or_with_the_time() {
        let mut asked = 0;
        let third = waited(Duration::from_mins(1), || {
            asked += 1;
            Ok(asked == 3)
        });
        assert!(third.is_ok_and(|yes| yes) && asked == 3);
        assert!(waited(Duration::ZERO, || Ok(false)).is_ok_and(|yes| !yes));
        assert!(waited(Duration::ZERO, || Err(Error::OtherThread)).is_err());
    }
}
