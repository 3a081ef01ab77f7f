//! The signals that end a run. A run that can save what it has asks [`Stop`]; any other ends at once, and leaves no file half
//! written.

use crate::output::note;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A signal this soon after the first is another copy of it: a launcher passes on what the terminal has sent already.
const COPY: Duration = Duration::from_secs(2);

/// The first signal, and when it came.
static FIRST: OnceLock<(i32, Instant)> = OnceLock::new();
/// Whether the run stops by itself once a signal has come.
static LISTENS: AtomicBool = AtomicBool::new(false);
/// Whether the run waits for another program, and has nothing to finish first.
static WAITS: AtomicBool = AtomicBool::new(false);
/// Tells what a run leaves when it ends at once; empty if it leaves nothing.
static LEFT: Mutex<&str> = Mutex::new("");

/// SIGINT, as Ctrl-C sends it.
const INT: i32 = 2;

/// Handles signals from now on. SIGINT, SIGTERM and SIGHUP end the run, or ask it to stop; a file that may not grow any further is
/// an error of the write instead of a signal.
#[cfg(unix)]
pub(crate) fn handle() -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default())?;
    let mut ending = vec![SIGINT, SIGTERM];
    if !hangups_are_ignored() {
        ending.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(&ending)?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            received(signal);
        }
    })?;
    Ok(())
}

/// Handles Ctrl-C from now on: it ends the run, or asks it to stop.
#[cfg(not(unix))]
pub(crate) fn handle() -> anyhow::Result<()> {
    Ok(ctrlc::set_handler(|| received(INT))?)
}

/// Whether the program was started by nohup, so that it goes on when its terminal is closed. Only Linux tells; elsewhere it is
/// taken to be so, which leaves SIGHUP as it was.
#[cfg(unix)]
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is signal 1, the lowest bit.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask & 1 == 1)
}

fn received(signal: i32) {
    let first = FIRST.get_or_init(|| (signal, Instant::now())).1;
    let stops = LISTENS.load(Ordering::SeqCst) && !WAITS.load(Ordering::SeqCst);
    if !stops || first.elapsed() > COPY {
        end(signal);
    }
}

/// Ends the process, and removes what would be left half written.
fn end(signal: i32) -> ! {
    let unwritten = gpt2_files::unfinished::end();
    // A reader of stderr that reads no more must not keep the process alive.
    let told = std::thread::Builder::new().spawn(move || note(&last_words(signal, &unwritten)));
    if let Ok(told) = told {
        let started = Instant::now();
        while !told.is_finished() && started.elapsed() < COPY {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    #[cfg(unix)]
    signal_hook::low_level::exit(128 + signal);
    #[cfg(not(unix))]
    std::process::exit(128 + signal);
}

fn last_words(signal: i32, unwritten: &[PathBuf]) -> String {
    let state = |path: &PathBuf| {
        let state = if path.exists() { "is as it was before" } else { "is not written" };
        format!("{} {state}", path.display())
    };
    let left = *LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut words = vec![format!("stopped by {}", name(signal))];
    words.extend(unwritten.iter().map(state));
    words.extend((!left.is_empty()).then(|| left.to_owned()));
    words.join("; ")
}

fn name(signal: i32) -> String {
    match signal {
        1 => "SIGHUP".into(),
        INT => "Ctrl-C (SIGINT)".into(),
        15 => "SIGTERM".into(),
        other => format!("signal {other}"),
    }
}

/// Sets what a run that ends at once says it leaves; nothing for "".
pub(crate) fn left_by_an_end(words: &'static str) {
    *LEFT.lock().unwrap_or_else(PoisonError::into_inner) = words;
}

/// Waits for another program, in `wait`. A signal meanwhile ends the process at once, even if it [listens](Stop::listen).
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    WAITS.store(true, Ordering::SeqCst);
    // One that came just before.
    if let Some(signal) = asked() {
        end(signal);
    }
    let result = wait();
    WAITS.store(false, Ordering::SeqCst);
    result
}

/// The signal that asked a run that listens to stop.
fn asked() -> Option<i32> {
    FIRST.get().map(|(signal, _)| *signal)
}

/// Whether a run that [listens](Stop::listen) was asked to stop.
pub(crate) fn is_asked_to_stop() -> bool {
    LISTENS.load(Ordering::SeqCst) && asked().is_some()
}

/// Tells whether this run was asked to stop.
#[derive(Debug)]
pub(crate) struct Stop(());

impl Stop {
    /// Listens from now on, instead of ending at once. A second signal, later than [`COPY`], still ends the process.
    pub(crate) fn listen() -> Self {
        LISTENS.store(true, Ordering::SeqCst);
        Self(())
    }

    pub(crate) fn is_asked(&self) -> bool {
        let Self(()) = self;
        asked().is_some()
    }

    /// The exit status of a run that stopped because it was asked to: 128 and the signal's number.
    pub(crate) fn code(&self) -> u8 {
        let Self(()) = self;
        128 + asked().and_then(|signal| u8::try_from(signal).ok()).unwrap_or(2)
    }
}
