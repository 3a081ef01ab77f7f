//! [`Watched`]: tells an observer that ended the work from work that failed.

use crate::observer::Observer;
use gpt2_loader::hub::Progress;
use std::sync::atomic::{AtomicBool, Ordering};

/// An observer, and whether it has ended the work.
pub(super) struct Watched<'a> {
    observer: &'a dyn Observer,
    ended: AtomicBool,
}

impl<'a> Watched<'a> {
    pub(super) fn new(observer: &'a dyn Observer) -> Self {
        Self { observer, ended: AtomicBool::new(false) }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Observer for Watched<'_> {
    fn note(&self, text: &str) {
        self.observer.note(text);
    }

    fn found(&self, what: &str, name: &str) {
        self.observer.found(what, name);
    }

    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> candle_core::Result<()> {
        let heard = self.observer.step(steps, done, all);
        if heard.is_err() {
            self.ended.store(true, Ordering::Relaxed);
        }
        heard
    }

    fn figures(&self, text: &str) {
        self.observer.figures(text);
    }

    fn timing(&self, text: &str) {
        self.observer.timing(text);
    }

    fn is_asked_to_stop(&self) -> bool {
        self.observer.is_asked_to_stop()
    }

    fn waiting(&self, wait: &mut dyn FnMut()) {
        self.observer.waiting(wait);
    }

    fn downloads(&self) -> Option<Progress> {
        self.observer.downloads()
    }
}
