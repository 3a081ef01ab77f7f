//! Threads that share short pieces of work and stay awake between them.
//!
//! Decoding a token runs some sixty products of 20 to 200 µs each. A thread of rayon's pool that finds no work for about
//! 10 µs falls asleep, and waking it takes up to 50 µs, most of all in a virtual machine. These threads look for work a
//! little longer, and the caller never waits for one that comes late.

#![allow(unsafe_code)]

use rayon::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The time that a helper looks for work before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);

/// Calls `task` with each number below `tasks`, on this thread and on as many others as rayon's pool has; returns when all
/// calls have ended. While another caller uses the helpers, rayon's threads share the work.
pub(crate) fn for_each(tasks: usize, task: impl Fn(usize) + Sync) {
    share_out(tasks, &task);
}

/// [`for_each`], compiled once for all tasks.
fn share_out(tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                return;
            }
            task(i);
        }
    };
    let helpers = rayon::current_num_threads().min(tasks).saturating_sub(1);
    let team = TEAM.get_or_init(Team::default);
    if helpers == 0 {
        return work();
    }
    if team.taken.swap(true, Ordering::Acquire) {
        return (0..helpers + 1).into_par_iter().with_max_len(1).for_each(|_| work());
    }
    let panicked = AtomicBool::new(false);
    let shared: &(dyn Fn() + Sync) = &|| {
        if catch_unwind(AssertUnwindSafe(&work)).is_err() {
            panicked.store(true, Ordering::Relaxed);
        }
    };
    // SAFETY: `shared` outlives `open`, and does not panic.
    let open = unsafe { Open::new(team, &shared, helpers) };
    work();
    drop(open);
    assert!(!panicked.into_inner(), "a task of another thread panicked");
}

/// `task` of each number below `tasks`, computed as by [`for_each`].
pub(crate) fn map<T: Send>(tasks: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let results: Vec<Mutex<Option<T>>> = (0..tasks).map(|_| Mutex::new(None)).collect();
    for_each(tasks, |i| *results[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(task(i)));
    results
        .into_iter()
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

static TEAM: OnceLock<Team> = OnceLock::new();

type Work<'a> = &'a (dyn Fn() + Sync);

/// The helpers, and the place where they find work.
#[derive(Default)]
struct Team {
    /// Whether a caller uses the team.
    taken: AtomicBool,
    /// Points to the caller's [`Work`]; valid while [`OPEN`] is set or a helper is counted in `state`.
    work: AtomicPtr<()>,
    /// [`OPEN`], the number of helpers that may still join in units of [`PLACE`], and the number of those at work.
    state: AtomicUsize,
    /// The number of helpers.
    helpers: Mutex<usize>,
    wake: Condvar,
    /// The number of helpers that sleep or are about to.
    asleep: AtomicUsize,
}

const PLACE: usize = 1 << 12;
const OPEN: usize = 1 << 30;
const AT_WORK: usize = PLACE - 1;

/// Work that helpers may join, until this is dropped.
struct Open(&'static Team);

impl Open {
    /// # Safety
    /// `work` outlives the result, and does not panic.
    unsafe fn new(team: &'static Team, work: &Work, helpers: usize) -> Self {
        team.hire(helpers);
        team.work.store(std::ptr::from_ref(work).cast::<()>().cast_mut(), Ordering::Relaxed);
        team.state.store(OPEN + PLACE * helpers.min(AT_WORK), Ordering::SeqCst);
        if team.asleep.load(Ordering::SeqCst) > 0 {
            // A helper that is about to sleep holds the lock until it does.
            drop(team.helpers.lock());
            team.wake.notify_all();
        }
        Self(team)
    }
}

impl Drop for Open {
    /// Lets no further helper join, and waits for those at work, even when the caller's own part panics.
    fn drop(&mut self) {
        let Self(team) = self;
        team.state.fetch_and(AT_WORK, Ordering::AcqRel);
        let mut looks = 0u32;
        while team.state.load(Ordering::Acquire) != 0 {
            pause(&mut looks);
        }
        team.taken.store(false, Ordering::Release);
    }
}

impl Team {
    /// Starts helpers until there are `count`. If the system has no more threads, fewer do.
    fn hire(&'static self, count: usize) {
        let mut helpers = self.helpers.lock().unwrap_or_else(PoisonError::into_inner);
        while *helpers < count {
            let started = std::thread::Builder::new().name("candle-fused".into()).spawn(|| self.help());
            if started.is_err() {
                return;
            }
            *helpers += 1;
        }
    }

    /// Joins work forever.
    fn help(&self) {
        let mut idle_since = Instant::now();
        let mut looks = 0u32;
        loop {
            if self.join() {
                (idle_since, looks) = (Instant::now(), 0);
                continue;
            }
            pause(&mut looks);
            if looks.is_multiple_of(64) && idle_since.elapsed() > PATIENCE {
                self.sleep();
                (idle_since, looks) = (Instant::now(), 0);
            }
        }
    }

    fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) >= OPEN + PLACE
    }

    /// Does a part of the work, if there is any and a place is left.
    fn join(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let joined = state - PLACE * usize::from(state >= PLACE) + 1;
        if state < OPEN + PLACE
            || self.state.compare_exchange(state, joined, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        // SAFETY: the exchange saw the state that `Open::new` stored after the pointer. This helper is now counted, and
        // the caller keeps its work until nobody is.
        let work: Work = unsafe { *self.work.load(Ordering::Relaxed).cast::<Work>() };
        work();
        self.state.fetch_sub(1, Ordering::Release);
        true
    }

    /// Sleeps until a caller has work.
    fn sleep(&self) {
        let mut helpers = self.helpers.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        // A caller that opens work after this look sees this helper asleep, and wakes it.
        while !self.is_open() {
            helpers = self.wake.wait(helpers).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a moment; every now and then, lets another program have the processor.
fn pause(looks: &mut u32) {
    *looks = looks.wrapping_add(1);
    if looks.is_multiple_of(32) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::pool;

    #[test]
    fn every_task_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 7] {
            pool(threads).install(|| {
                for tasks in [0, 1, 2, 50] {
                    assert_eq!(map(tasks, |i| i * i), (0..tasks).map(|i| i * i).collect::<Vec<_>>());
                }
            });
        }
    }

    /// Each task waits for the other: one thread alone would never end.
    #[test]
    fn tasks_run_at_the_same_time_on_two_threads() {
        use std::sync::mpsc::channel;
        let ends =
            [channel::<()>(), channel::<()>()].map(|(send, receive)| (Mutex::new(send), Mutex::new(receive)));
        let met = pool(2).install(|| {
            map(2, |i| {
                ends[1 - i].0.lock().expect("no panic").send(()).expect("a receiver");
                let wait = std::time::Duration::from_secs(20);
                ends[i].1.lock().expect("no panic").recv_timeout(wait).is_ok()
            })
        });
        assert_eq!(met, [true, true]);
    }

    /// Callers that come at the same time do their own work; pauses between calls let helpers fall asleep.
    #[test]
    fn callers_on_many_threads_all_get_their_results() {
        std::thread::scope(|scope| {
            for caller in 0..4usize {
                scope.spawn(move || {
                    let pool = pool(3);
                    for round in 0..300usize {
                        let sum: usize = pool.install(|| map(20, |i| i * round + caller)).into_iter().sum();
                        assert_eq!(sum, 190 * round + 20 * caller);
                        if round % 50 == 0 {
                            std::thread::sleep(2 * PATIENCE);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let fails = |at: usize| {
            catch_unwind(|| pool(2).install(|| map(8, |i| assert_ne!(i, at, "as planned")))).is_err()
        };
        assert!(fails(0) && fails(7) && !fails(8));
        assert_eq!(map(3, |i| i), [0, 1, 2]);
    }
}
