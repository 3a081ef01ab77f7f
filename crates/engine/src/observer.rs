//! The caller's side of work that takes long: it hears notes and progress, and may end the work.

use candle_core::Result;
use gpt2_loader::hub::Progress;
use std::fmt::{self, Display};

/// Hears from work that takes long, and may end it: a terminal, a Python callback, a page. Several threads may call it.
pub trait Observer: Sync {
    /// Hears a line for the reader, such as a choice that was made or what is left out.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// Hears the name of what runs: of a `model`, `device`, `adapter` or `dictionary`.
    fn found(&self, what: &str, name: &str) {
        self.note(&format!("{what}: {name}"));
    }

    /// Hears that `done` of `all` steps are done; `steps` names them, such as `runs` or `bytes`. Work of unknown length has no `all`.
    ///
    /// # Errors
    /// To end the work.
    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> Result<()> {
        let _ = (steps, done, all);
        Ok(())
    }

    /// Hears the figures of the steps so far, such as `explains 0.873`, to show beside them.
    fn figures(&self, text: &str) {
        let _ = text;
    }

    /// Hears how long a part of the work took, such as `scored 479 edges in 0.3 s`.
    fn timing(&self, text: &str) {
        let _ = text;
    }

    /// Whether work that can save what it has should do so now, and end with [`Stopped`].
    fn is_asked_to_stop(&self) -> bool {
        false
    }

    /// Calls `wait`, which waits for another program and has nothing to finish first.
    fn waiting(&self, wait: &mut dyn FnMut()) {
        wait();
    }

    /// The listener for downloads from the Hub.
    fn downloads(&self) -> Option<Progress> {
        None
    }
}

/// Hears nothing, and never ends the work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {}

/// The end of work that was asked to stop: it says how far it came, and how to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped(pub String);

impl Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Stopped {}

/// A callback for the libraries that reports `steps` to an observer.
pub fn steps<'a>(observer: &'a dyn Observer, steps: &'a str) -> impl FnMut(usize, usize) -> Result<()> + 'a {
    move |done, all| observer.step(steps, done as u64, Some(all as u64))
}
