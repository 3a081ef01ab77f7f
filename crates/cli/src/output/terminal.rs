//! The terminal as the observer of long work: notes on stderr, a bar for what is counted, the seconds where nothing is.

use super::note;
use super::progress::downloads;
use super::pulse::{BEAT, Pulse, Steps};
use crate::process::signals::{self, Stop};
use gpt2_engine::{Observer, Stopped};
use gpt2_loader::hub::Progress;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Hears for the person at the terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The steps that are counted.
    shown: Option<Steps>,
    /// Of a command at work.
    pulse: Option<Pulse>,
}

/// The one observer of a command.
pub(crate) static TERMINAL: Terminal = Terminal { state: Mutex::new(State { shown: None, pulse: None }) };

impl Terminal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command has read what it was given, and works from now on: it shows that it lives.
    pub(crate) fn works(&'static self) {
        let mut state = self.state();
        if super::is_quiet() || state.pulse.is_some() {
            return;
        }
        state.pulse = Some(Pulse::new(Instant::now()));
        // Without this thread the command works all the same.
        let _ = std::thread::Builder::new().name("pulse".into()).spawn(|| self.beat());
    }

    /// Shows signs of life until the work ends.
    fn beat(&self) {
        loop {
            std::thread::sleep(BEAT);
            let mut state = self.state();
            let State { shown, pulse } = &mut *state;
            let Some(pulse) = pulse else { return };
            let line = pulse.beat(shown.as_ref(), Instant::now());
            drop(state);
            if let Some(line) = line {
                note(&line);
            }
        }
    }

    /// Writes lines to stderr, above whatever is shown.
    pub(super) fn above(&self, write: impl FnOnce()) {
        let mut state = self.state();
        if let Some(pulse) = &mut state.pulse {
            pulse.told(Instant::now());
        }
        match &state.shown {
            Some(steps) => steps.bar.suspend(write),
            None => write(),
        }
    }

    /// Another bar begins, or ends.
    pub(super) fn has_other_bar(&self, has: bool) {
        if let Some(pulse) = &mut self.state().pulse {
            pulse.has_other_bar = has;
            pulse.clear();
        }
    }

    /// Makes room for results on stdout.
    pub(super) fn prints(&self) {
        if let Some(pulse) = &mut self.state().pulse {
            pulse.prints();
        }
    }

    /// Takes the bar away while `print` writes a part of the results, and puts it back.
    pub(crate) fn between<T>(&self, print: impl FnOnce() -> T) -> T {
        let Some(steps) = self.state().shown.take() else { return print() };
        // Without the lock: what is printed may come with notes.
        let printed = steps.bar.suspend(print);
        self.state().shown = Some(steps);
        printed
    }

    /// Removes the bar of work that has ended, and shows nothing more.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        if let Some(steps) = state.shown.take() {
            steps.bar.finish_and_clear();
        }
        if let Some(mut pulse) = state.pulse.take() {
            pulse.clear();
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
        note(text);
    }

    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> candle_core::Result<()> {
        let mut state = self.state();
        if let Some(pulse) = &mut state.pulse {
            pulse.clear();
        }
        let shown = &mut state.shown;
        if let Some(other) = shown.take_if(|other| other.name != steps) {
            other.bar.finish_and_clear();
        }
        shown.get_or_insert_with(|| Steps::new(steps, done, all)).reach(done, all);
        if all == Some(done)
            && let Some(steps) = shown.take()
        {
            steps.bar.finish_and_clear();
        }
        Ok(())
    }

    fn figures(&self, text: &str) {
        if let Some(steps) = &self.state().shown {
            steps.bar.set_message(format!(", {text}"));
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
