//! Stops long work in good order after Ctrl-C, or after the SIGTERM of a launcher or a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A signal this soon after the first is another copy of it: a launcher passes on what the terminal has sent already.
const COPY: Duration = Duration::from_secs(2);

/// Whether somebody asked this run to stop.
#[derive(Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens from now on. A second signal, before the run has stopped, ends the process at once.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let mut first: Option<Instant> = None;
        #[cfg(unix)]
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
        ctrlc::set_handler(move || {
            flag.store(true, Ordering::SeqCst);
            if first.get_or_insert_with(Instant::now).elapsed() > COPY {
                std::process::exit(130);
            }
        })?;
        Ok(Self(stop))
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
