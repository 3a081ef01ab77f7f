//! Ends this process if a transfer never ends: the thread in it cannot look at a clock.
#![allow(unsafe_code)] // leaving without the library's own clean-up

use crate::error::Error;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What the thread in a transfer and the one that watches share.
#[derive(Debug, Default)]
struct State {
    /// How long the present transfer has taken, and what it is.
    since: Option<(Duration, &'static str)>,
    is_over: bool,
}

#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Watch {
    /// Watches for transfers that take longer than `limit`; reports one with `on_stuck`.
    pub(super) fn new(limit: Duration, on_stuck: fn(&Error)) -> Self {
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
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
                    unsafe { libc::_exit(1) }
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

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.shared.1.notify_all();
    }
}
