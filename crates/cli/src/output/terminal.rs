//! The terminal as the observer of long work.

use super::bars::is_quiet;
use super::progress::downloads;
use super::screen::{self, note};
use crate::process::signals::{self, Stop};
use gpt2_engine::{Observer, Stopped};
use gpt2_loader::hub::Progress;
use std::process::ExitCode;

/// Hears for the person at the terminal.
#[derive(Debug)]
pub(crate) struct Terminal;

/// The one observer of a command.
pub(crate) static TERMINAL: Terminal = Terminal;

impl Terminal {
    /// The command has read what it was given, and works from now on: it shows that it lives.
    #[allow(clippy::unused_self)] // the terminal's, as all that it shows
    pub(crate) fn works(&self) {
        screen::works();
    }

    /// Takes the bar away while `print` writes a part of the results, and puts it back.
    #[allow(clippy::unused_self)]
    pub(crate) fn between<T>(&self, print: impl FnOnce() -> T) -> T {
        screen::between(print)
    }

    /// Removes the bar of work that has ended, and shows nothing more.
    #[allow(clippy::unused_self)]
    pub(crate) fn clear(&self) {
        screen::clear();
    }

    /// The end of a run by an error: one that says that the run was asked to stop is a note and an exit status.
    pub(crate) fn end(&self, stop: &Stop, error: anyhow::Error) -> anyhow::Result<ExitCode> {
        self.clear();
        let stopped = error.downcast::<Stopped>()?;
        note(&stopped.to_string());
        Ok(ExitCode::from(stop.code()))
    }
}

impl Observer for Terminal {
    fn note(&self, text: &str) {
        note(text);
    }

    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> candle_core::Result<()> {
        screen::step(steps, done, all);
        Ok(())
    }

    fn figures(&self, text: &str) {
        screen::figures(text);
    }

    fn timing(&self, text: &str) {
        self.note(text);
    }

    fn is_asked_to_stop(&self) -> bool {
        signals::is_asked_to_stop()
    }

    fn waiting(&self, wait: &mut dyn FnMut()) {
        signals::waiting(wait);
    }

    fn downloads(&self) -> Option<Progress> {
        (!is_quiet()).then(downloads)
    }
}
