//! Long work: shows how far it is.

use super::bars::styled;
use super::screen::{has_other_bar, note};
use crate::process::signals;
use gpt2_loader::hub::{Event, Progress};
use indicatif::{HumanBytes, ProgressBar};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

/// Files of at least this size get a progress bar.
const LARGE: u64 = 8_000_000;

/// A bar for each large file on a terminal, a line for each file elsewhere.
pub(crate) fn downloads() -> Progress {
    // The bar, and the error of the last failed try.
    let state: Mutex<(Option<ProgressBar>, String)> = Mutex::default();
    Arc::new(move |event| {
        let Ok(mut state) = state.lock() else { return ControlFlow::Continue(()) };
        let (bar, failure) = &mut *state;
        let say = |bar: &Option<ProgressBar>, text: String| match bar {
            Some(bar) => bar.suspend(|| note(&text)),
            None => note(&text),
        };
        let bytes = |n: u64| HumanBytes(n).to_string();
        match event {
            Event::Waiting { file } => {
                say(bar, format!("{file}: another process fetches it; waiting for that"));
            }
            Event::Fetching { file, size, have } => {
                signals::left_by_an_end("what was fetched stays, and the next run goes on from there");
                let large = size.is_none_or(|size| size >= LARGE);
                if large && std::io::stderr().is_terminal() {
                    has_other_bar(true);
                    *bar = Some(progress_bar(file, *size, *have));
                } else {
                    let of = size.map_or_else(String::new, |size| format!(", {}", bytes(size)));
                    let from = if *have > 0 { format!(", from {} on", bytes(*have)) } else { String::new() };
                    say(bar, format!("fetching {file}{of}{from}"));
                }
            }
            Event::Received { bytes, .. } => {
                if let Some(bar) = bar {
                    bar.set_position(*bytes);
                }
            }
            Event::Fetched { file } => {
                signals::left_by_an_end("");
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                    has_other_bar(false);
                    note(&format!("fetched {file}, {}", bytes(bar.position())));
                }
            }
            Event::Verifying { file, size } if *size >= LARGE => {
                say(bar, format!("verifying {file}, {}", bytes(*size)));
            }
            Event::Retrying { error, wait } => {
                // What to do is for the error after the last try.
                let again = format!("trying again in {:.1} s", wait.as_secs_f64());
                let error = error.to_string();
                let is_new = *failure != error;
                say(&bar.take(), if is_new { format!("{error}\n{again}") } else { again });
                *failure = error;
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })
}

fn progress_bar(file: &str, size: Option<u64>, have: u64) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => {
            (ProgressBar::new(size), "{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left")
        }
        None => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes}, {bytes_per_sec}"),
    };
    let bar = styled(bar, template).with_message(file.to_string()).with_position(have);
    // The rate counts only this transfer, not the part that was already there.
    bar.reset_eta();
    bar
}
