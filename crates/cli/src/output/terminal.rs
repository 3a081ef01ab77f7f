//! The terminal as the observer of long work: notes on stderr, a bar for what is counted.

use super::note;
use super::progress::{bar, downloads};
use crate::process::signals::{self, Stop};
use gpt2_engine::{Observer, Stopped};
use gpt2_loader::hub::Progress;
use indicatif::ProgressBar;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// Hears for the person at the terminal.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    /// The count and the bar that shows it.
    shown: Mutex<Option<(String, ProgressBar)>>,
}

/// The one observer of a command.
pub(crate) static TERMINAL: Terminal = Terminal { shown: Mutex::new(None) };

impl Terminal {
    /// Removes the bar of work that has ended before its last step.
    pub(crate) fn clear(&self) {
        if let Some((_, bar)) = self.shown.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
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
        match &*self.shown.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((_, bar)) => bar.suspend(|| note(text)),
            None => note(text),
        }
    }

    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> candle_core::Result<()> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bar)) = shown.take_if(|(name, _)| name != steps) {
            bar.finish_and_clear();
        }
        let begin = || {
            let bar = bar(all, &template(steps, all)).with_position(done);
            // Steps of an earlier run took none of this one's time.
            bar.reset_eta();
            (steps.to_owned(), bar)
        };
        let (_, bar) = shown.get_or_insert_with(begin);
        if let Some(all) = all {
            bar.set_length(all);
        }
        bar.set_position(done);
        if all == Some(done) {
            bar.finish_and_clear();
            *shown = None;
        }
        Ok(())
    }

    fn figures(&self, text: &str) {
        if let Some((_, bar)) = &*self.shown.lock().unwrap_or_else(PoisonError::into_inner) {
            bar.set_message(format!(", {text}"));
        }
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
        (!super::is_quiet()).then(downloads)
    }
}

fn template(steps: &str, all: Option<u64>) -> String {
    match (steps, all) {
        ("bytes", Some(_)) => "{bar:30} {bytes} of {total_bytes}, {eta} left{msg}".to_owned(),
        ("bytes", None) => "{bytes} read, {elapsed}{msg}".to_owned(),
        (_, Some(_)) => format!("{{bar:30}} {{pos}}/{{len}} {steps}, {{eta}} left{{msg}}"),
        (_, None) => format!("{{pos}} {steps}, {{elapsed}}{{msg}}"),
    }
}
