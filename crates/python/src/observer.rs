//! The Python caller as the observer of long work: it collects notes, calls back, and ends the work at an exception.

use crate::guard::Raised;
use gpt2_engine::Observer;
use gpt2_loader::hub::{Event, Progress};
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// Hears for a Python caller.
#[derive(Debug)]
pub(crate) struct PyObserver {
    raised: Arc<Raised>,
    /// Called with the steps' name, how many are done, and how many there are.
    progress: Option<Py<PyAny>>,
    /// Called with the kind of an event of the Hub, a file and two numbers.
    downloads: Option<Py<PyAny>>,
    notes: Mutex<Vec<String>>,
}

impl PyObserver {
    pub(crate) fn new(raised: &Arc<Raised>, progress: Option<Py<PyAny>>) -> Self {
        Self { raised: Arc::clone(raised), progress, downloads: None, notes: Mutex::default() }
    }

    /// This observer, with a listener for downloads.
    pub(crate) fn with_downloads(self, downloads: Option<Py<PyAny>>) -> Self {
        Self { downloads, ..self }
    }

    /// The notes that were heard.
    pub(crate) fn into_notes(self) -> Vec<String> {
        self.notes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for PyObserver {
    fn note(&self, text: &str) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
    }

    fn step(&self, steps: &str, done: u64, all: Option<u64>) -> candle_core::Result<()> {
        self.raised.check_signals()?;
        match &self.progress {
            Some(progress) => self.raised.attached(|py| progress.call1(py, (steps, done, all)).map(drop)),
            None => Ok(()),
        }
    }

    fn is_asked_to_stop(&self) -> bool {
        self.raised.check_signals().is_err()
    }

    fn downloads(&self) -> Option<Progress> {
        let downloads = self.downloads.as_ref().map(|call| Python::attach(|py| call.clone_ref(py)));
        let raised = Arc::clone(&self.raised);
        Some(Arc::new(move |event| {
            let told = match event {
                Event::Waiting { file } => Some(("waiting", *file, 0, None)),
                Event::Fetching { file, size, have } => Some(("fetching", *file, *have, *size)),
                Event::Received { file, bytes } => Some(("received", *file, *bytes, None)),
                Event::Fetched { file } => Some(("fetched", *file, 0, None)),
                Event::Verifying { file, size } => Some(("verifying", *file, *size, None)),
                _ => None,
            };
            let heard = raised.check_signals().and_then(|()| match downloads.as_ref().zip(told) {
                Some((call, told)) => raised.attached(|py| call.call1(py, told).map(drop)),
                None => Ok(()),
            });
            // The exception comes up when the model is loaded.
            if heard.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }))
    }
}
