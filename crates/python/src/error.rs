//! Errors of the libraries as exceptions of Python's own kinds.

use gpt2_loader::{HubError, LoadError};
use pyo3::PyErr;
use pyo3::exceptions::{
    PyConnectionError, PyFileExistsError, PyFileNotFoundError, PyMemoryError, PyOSError, PyPermissionError,
    PyRuntimeError, PyTimeoutError, PyValueError,
};
use serde::de::DeserializeOwned;
use std::io::ErrorKind;

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// An exception that Python code raised, as it is.
    Raised(PyErr),
    Value(String),
    Runtime(String),
    Library(anyhow::Error),
}

impl Failed {
    pub(crate) fn value(text: impl Into<String>) -> Self {
        Self::Value(text.into())
    }
}

/// Reads JSON that the Python half wrote. Its errors name the option instead of the place in that text, which the caller never sees.
pub(crate) fn from_json<T: DeserializeOwned>(json: &str) -> anyhow::Result<T> {
    gpt2_engine::studies::named(serde_json::from_str(json)?)
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self::Library(error)
    }
}

impl From<candle_core::Error> for Failed {
    fn from(error: candle_core::Error) -> Self {
        Self::Library(error.into())
    }
}

impl From<LoadError> for Failed {
    fn from(error: LoadError) -> Self {
        Self::Library(error.into())
    }
}

impl From<Failed> for PyErr {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Raised(error) => error,
            Failed::Value(text) => PyValueError::new_err(text),
            Failed::Runtime(text) => PyRuntimeError::new_err(text),
            Failed::Library(error) => of_library(&error),
        }
    }
}

/// The kind of a library's error, with all its causes as the message.
fn of_library(error: &anyhow::Error) -> PyErr {
    let text = message(error);
    let causes = || error.chain();
    if let Some(error) = causes().find_map(|cause| cause.downcast_ref::<HubError>()) {
        return of_hub(error, text);
    }
    if let Some(error) = causes().find_map(|cause| cause.downcast_ref::<LoadError>()) {
        match error {
            LoadError::NotFound { .. } | LoadError::NoConfig { .. } | LoadError::NoWeights { .. } => {
                return PyFileNotFoundError::new_err(text);
            }
            LoadError::Hub(error) => return of_hub(error, text),
            _ => {}
        }
    }
    match causes().find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind) {
        Some(ErrorKind::NotFound) => PyFileNotFoundError::new_err(text),
        Some(ErrorKind::AlreadyExists) => PyFileExistsError::new_err(text),
        Some(ErrorKind::PermissionDenied) => PyPermissionError::new_err(text),
        Some(ErrorKind::OutOfMemory) => PyMemoryError::new_err(text),
        Some(_) => PyOSError::new_err(text),
        None => PyValueError::new_err(text),
    }
}

fn of_hub(error: &HubError, text: String) -> PyErr {
    match error {
        HubError::Timeout { .. } => PyTimeoutError::new_err(text),
        HubError::NoNetwork { .. }
        | HubError::Server { .. }
        | HubError::Interrupted { .. }
        | HubError::RateLimited { .. } => PyConnectionError::new_err(text),
        HubError::ModelNotFound { .. }
        | HubError::RevisionNotFound { .. }
        | HubError::FileNotFound { .. }
        | HubError::NotCached { .. } => PyFileNotFoundError::new_err(text),
        HubError::Gated { .. } | HubError::TokenRefused { .. } | HubError::CacheNotWritable { .. } => {
            PyPermissionError::new_err(text)
        }
        _ => PyOSError::new_err(text),
    }
}

/// An error and its causes in a line each, without the backtraces that Candle makes part of its text.
fn message(error: &anyhow::Error) -> String {
    let mut lines: Vec<String> = vec![];
    for cause in error.chain() {
        let text = match cause.downcast_ref::<candle_core::Error>() {
            Some(error) => plain(error),
            None => cause.to_string(),
        };
        // Errors that hold one of Candle's have its backtrace in their text.
        let text = text.split("\n   0: ").next().unwrap_or_default().trim_end().to_owned();
        // Some errors pass on the text of their cause.
        if !lines.iter().any(|line| line.contains(&text)) {
            lines.push(text);
        }
    }
    lines.join(": ")
}

fn plain(error: &candle_core::Error) -> String {
    use candle_core::Error;
    match error {
        Error::WithBacktrace { inner, .. } => plain(inner),
        Error::Context { inner, context } => format!("{context}: {}", plain(inner)),
        other => other.to_string(),
    }
}
