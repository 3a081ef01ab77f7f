//! The ranks meet before each transfer: rank 0 waits for a mark of each, then lets all go.
//!
//! MPI's own calls wait at full speed, forever, and do not tell for whom. Here the waiting ranks sleep, which leaves the
//! processor to those that still compute, and rank 0 knows who is missing.

use super::calls::Calls;
use crate::error::{Error, Result};
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// The tags of the two messages.
const HERE: c_int = 1;
const GO: c_int = 2;
/// How often to look before sleeping, and the longest sleep.
const LOOKS: u32 = 2000;
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// How long all others wait where rank 0 waits for `limit`: it knows who is missing, and should say so first.
pub(super) fn patience(limit: Duration) -> Duration {
    limit + limit / 2 + Duration::from_secs(2)
}

/// Returns once all `size` ranks are here.
pub(super) fn meet(
    calls: &Calls,
    rank: usize,
    size: usize,
    limit: Duration,
    doing: &'static str,
) -> Result<()> {
    let started = Instant::now();
    if rank > 0 {
        calls.send_mark(0, HERE)?;
        let limit = patience(limit);
        if !waited(started, limit, || calls.has_mark(0, GO))? {
            return Err(Error::Stuck { missing: vec![0], after: limit, doing });
        }
        return calls.receive_mark(0, GO);
    }
    let mut missing: Vec<usize> = (1..size).collect();
    let all_here = || {
        let mut kept = vec![];
        for from in missing.drain(..) {
            if calls.has_mark(from, HERE)? {
                calls.receive_mark(from, HERE)?;
            } else {
                kept.push(from);
            }
        }
        missing = kept;
        Ok(missing.is_empty())
    };
    if !waited(started, limit, all_here)? {
        return Err(Error::Stuck { missing, after: limit, doing });
    }
    (1..size).try_for_each(|to| calls.send_mark(to, GO))
}

/// Asks until the answer is yes, or the time is over.
fn waited(started: Instant, limit: Duration, mut ask: impl FnMut() -> Result<bool>) -> Result<bool> {
    let (mut looks, mut sleep) = (0, Duration::from_micros(10));
    while !ask()? {
        looks += 1;
        if looks < LOOKS {
            std::thread::yield_now();
            continue;
        }
        if started.elapsed() > limit {
            return Ok(false);
        }
        std::thread::sleep(sleep);
        sleep = (sleep * 2).min(LONGEST_SLEEP);
    }
    Ok(true)
}
