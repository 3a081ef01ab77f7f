//! The caller's side of work that takes long: it hears notes and progress, and may end the work.

use candle_core::Result;
use gpt2_loader::hub::Progress;

/// Hears from work that takes long, and may end it: a terminal, a Python callback, a page. Several threads may call it.
pub trait Observer: Sync {
    /// Hears a line for the reader, such as a choice that was made or what is left out.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// Hears that `done` of `all` steps are done; `steps` names them, such as `runs` or `bytes`. Work of unknown length has no `all`.
    ///
    /// # Errors
    /// To end the work.
    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> Result<()> {
        let _ = (steps, done, all);
        Ok(())
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

/// A callback for the libraries that reports `steps` to an observer.
pub fn steps<'a>(observer: &'a dyn Observer, steps: &'a str) -> impl FnMut(usize, usize) -> Result<()> + 'a {
    move |done, all| observer.step(steps, done as u64, Some(all as u64))
}
