//! Whether and how to join other processes.

use crate::error::Error;
use std::time::Duration;

/// Whether to join other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Choice {
    /// If a launcher started more than one process.
    #[default]
    Auto,
    /// Never.
    None,
    /// Always, even where there is only one.
    Mpi,
}

/// How to join.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Joining {
    /// Whether to join.
    pub choice: Choice,
    /// How long to wait for another rank: 10 minutes.
    pub timeout: Duration,
    /// Called, from another thread, just before this process ends because a transfer is stuck. Does nothing.
    pub on_stuck: fn(&Error),
}

impl Joining {
    /// The defaults, with this choice.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, timeout: Duration::from_mins(10), on_stuck: |_| {} }
    }

    /// With this timeout.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// With this function to report that a transfer is stuck.
    #[must_use]
    pub fn on_stuck(mut self, report: fn(&Error)) -> Self {
        self.on_stuck = report;
        self
    }
}
