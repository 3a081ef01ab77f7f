//! Everything that goes to stderr while the command works: notes, one bar, signs of life.

use super::bars::is_quiet;
use super::pulse::{BEAT, Pulse, StepsShown};
use gpt2_view::visible_text;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

struct ScreenState {
    /// The steps that are counted.
    shown: Option<StepsShown>,
    /// Of a command at work.
    pulse: Option<Pulse>,
}

static STATE: Mutex<ScreenState> = Mutex::new(ScreenState { shown: None, pulse: None });

fn state() -> MutexGuard<'static, ScreenState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn note(text: &str) {
    if !is_quiet() {
        tell(text);
    }
}

/// Writes to stderr, above the bar. Text from files and prompts never gets through as control codes. It is not an error if the
/// terminal has gone away.
pub(super) fn tell(text: &str) {
    let lines: String = text.lines().map(|line| visible_text(line) + "\n").collect();
    let write = || {
        let _ = std::io::stderr().write_all(lines.as_bytes());
    };
    let mut state = state();
    if let Some(pulse) = &mut state.pulse {
        pulse.told(Instant::now());
    }
    match &state.shown {
        Some(steps) => steps.bar.suspend(write),
        None => write(),
    }
}

/// The command has read what it was given, and works from now on: it shows that it lives.
pub(super) fn works() {
    let mut state = state();
    if is_quiet() || state.pulse.is_some() {
        return;
    }
    state.pulse = Some(Pulse::new(Instant::now()));
    // Without this thread the command works all the same.
    let _ = std::thread::Builder::new().name("pulse".into()).spawn(beat);
}

/// Shows signs of life until the work ends.
fn beat() {
    loop {
        std::thread::sleep(BEAT);
        let mut state = state();
        let ScreenState { shown, pulse } = &mut *state;
        let Some(pulse) = pulse else { return };
        let line = pulse.beat(shown.as_ref(), Instant::now());
        drop(state);
        if let Some(line) = line {
            note(&line);
        }
    }
}

/// Another bar begins, or ends.
pub(super) fn has_other_bar(has: bool) {
    if let Some(pulse) = &mut state().pulse {
        pulse.has_other_bar = has;
        pulse.clear();
    }
}

/// Makes room for results on stdout.
pub(super) fn prints() {
    if let Some(pulse) = &mut state().pulse {
        pulse.prints();
    }
}

/// Takes the bar away while `print` writes a part of the results, and puts it back.
pub(super) fn between<T>(print: impl FnOnce() -> T) -> T {
    let Some(steps) = state().shown.take() else { return print() };
    // Without the lock: what is printed may come with notes.
    let printed = steps.bar.suspend(print);
    state().shown = Some(steps);
    printed
}

/// Shows how many steps are done.
pub(super) fn step(steps: &str, done: u64, all: Option<u64>) {
    let mut state = state();
    if let Some(pulse) = &mut state.pulse {
        pulse.clear();
    }
    let shown = &mut state.shown;
    if let Some(other) = shown.take_if(|other| other.name != steps) {
        other.bar.finish_and_clear();
    }
    shown.get_or_insert_with(|| StepsShown::new(steps, done, all)).reach(done, all);
    if all == Some(done)
        && let Some(steps) = shown.take()
    {
        steps.bar.finish_and_clear();
    }
}

/// Shows figures beside the bar.
pub(super) fn figures(text: &str) {
    if let Some(steps) = &mut state().shown {
        steps.set_figures(text);
    }
}

/// Removes the bar of work that has ended, and shows nothing more.
pub(super) fn clear() {
    let mut state = state();
    if let Some(steps) = state.shown.take() {
        steps.bar.finish_and_clear();
    }
    if let Some(mut pulse) = state.pulse.take() {
        pulse.clear();
    }
}
