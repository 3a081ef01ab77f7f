//! Bars on a terminal, unless the user wants it quiet.

use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicBool, Ordering};

static QUIET: AtomicBool = AtomicBool::new(false);

/// `--quiet`: from now on, there are no notes and no bars.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// A bar with indicatif's `template` after it; hidden with `--quiet`. `None` is work of unknown length.
pub(super) fn new_bar(length: Option<u64>, template: &str) -> ProgressBar {
    if is_quiet() {
        return ProgressBar::hidden();
    }
    styled(length.map_or_else(ProgressBar::no_length, ProgressBar::new), template)
}

pub(super) fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}
