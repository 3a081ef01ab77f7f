//! The guard around every call into the libraries: it releases the interpreter meanwhile, refuses a forked process, and
//! returns Ctrl-C and exceptions of Python's code as they are.

use crate::error::Failed;
use gpt2_model::hooks::{self, Point};
use gpt2_model::interruptible;
use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Whether this process has started threads.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Whether it is a child that a process with threads forked.
static FORKED: AtomicBool = AtomicBool::new(false);

/// For `os.register_at_fork`: threads do not live on in a child.
#[pyfunction]
pub(crate) fn forked() {
    if STARTED.load(Ordering::SeqCst) {
        FORKED.store(true, Ordering::SeqCst);
    }
}

/// The hook points of a model with this number of layers: each with its shape and all its names, the first the one it is called by.
#[pyfunction]
pub(crate) fn point_names(layers: usize) -> Vec<(&'static str, Vec<String>)> {
    Point::of_model(layers).map(|point| (point.shape(), point.names())).collect()
}

thread_local! {
    /// The number of runs inside one another on this thread: hooks may run a model.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}
/// The most runs inside one another: each takes a part of the thread's stack.
const DEEPEST: usize = 16;

/// A run that is under way on this thread, even where it panics.
struct Deeper;

impl Deeper {
    fn new() -> PyResult<Self> {
        let depth = DEPTH.get();
        if depth >= DEEPEST {
            let text = format!("hooks run the model inside one another, {depth} deep");
            return Err(PyRecursionError::new_err(text));
        }
        DEPTH.set(depth + 1);
        Ok(Self)
    }
}

impl Drop for Deeper {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Runs work without the interpreter, on this thread, so that Python's functions are called where they would be without us.
pub(crate) fn compute<T: Send>(
    py: Python<'_>,
    raised: &Arc<Raised>,
    work: impl FnOnce() -> Result<T, Failed> + Send,
) -> PyResult<T> {
    if FORKED.load(Ordering::SeqCst) {
        return Err(Failed::Runtime(
            "this process was forked from one in which gpt2_candle had started its threads, which a fork does not copy; start \
             processes with multiprocessing's \"spawn\" or \"forkserver\", or load the first model after the fork"
                .to_owned(),
        )
        .into());
    }
    STARTED.store(true, Ordering::SeqCst);
    let _deeper = Deeper::new()?;
    let result = py.detach(|| interrupted_by(raised, work));
    if let Some(error) = raised.take() {
        return Err(error);
    }
    let result = result?;
    raised.warn(py)?;
    Ok(result)
}

/// Like [`compute`], for short work that calls no Python, on a thread of the kernels' pool: from outside, each product
/// would have to enter the pool.
pub(crate) fn compute_in_pool<T: Send>(
    py: Python<'_>,
    raised: &Arc<Raised>,
    work: impl FnOnce() -> Result<T, Failed> + Send,
) -> PyResult<T> {
    compute(py, raised, || in_pool(raised, work))
}

/// Does work whose passes end at an exception: blocks of the model look for one.
fn interrupted_by<T>(raised: &Arc<Raised>, work: impl FnOnce() -> T) -> T {
    let raised = Arc::clone(raised);
    interruptible(move || raised.check_signals(), work)
}

/// The interval at which to check for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// Runs work in the pool. This thread hears signals meanwhile, which Python tells its main thread alone.
fn in_pool<T: Send>(
    raised: &Arc<Raised>,
    work: impl FnOnce() -> Result<T, Failed> + Send,
) -> Result<T, Failed> {
    let (send, receive) = mpsc::channel();
    rayon::in_place_scope(|scope| {
        // A panic drops the sender, and the scope passes it on.
        scope.spawn(move |_| drop(send.send(interrupted_by(raised, work))));
        loop {
            match receive.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {
                    // What it raises ends the work at its next look.
                    #[allow(clippy::redundant_closure_for_method_calls)] // not general enough in its lifetime
                    let _ = raised.attached(|py| py.check_signals());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failed::Runtime("the work ended without a result".to_owned()));
                }
            }
        }
    })
}

/// Holds what a call tells Python: the exception that ended it, raised by a hook, a callback or a signal, and notes for its caller.
#[derive(Debug, Default)]
pub(crate) struct Raised {
    error: Mutex<Option<PyErr>>,
    notes: Mutex<Vec<String>>,
}

impl Raised {
    fn take(&self) -> Option<PyErr> {
        self.error.lock().ok()?.take()
    }

    /// Keeps notes until the work is done: only the caller's thread knows the line that called the package.
    pub(crate) fn note(&self, notes: Vec<String>) {
        if let Ok(mut all) = self.notes.lock() {
            all.extend(notes);
        }
    }

    /// Warns the caller of all notes.
    fn warn(&self, py: Python<'_>) -> PyResult<()> {
        let notes = self.notes.lock().map(|mut notes| std::mem::take(&mut *notes)).unwrap_or_default();
        if !notes.is_empty() {
            py.import("gpt2_candle._notes")?.call_method1("warn", (notes,))?;
        }
        Ok(())
    }

    /// Calls Python; its exception ends the work, and comes back from [`compute`].
    pub(crate) fn attached<T>(&self, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> candle_core::Result<T> {
        Python::attach(call).map_err(|error| {
            let text = error.to_string();
            if let Ok(mut raised) = self.error.lock() {
                raised.get_or_insert(error);
            }
            hooks::error(text)
        })
    }

    /// Ends the work after Ctrl-C. Python tells signals to its main thread; others learn of them through it.
    pub(crate) fn check_signals(&self) -> candle_core::Result<()> {
        if self.error.lock().is_ok_and(|raised| raised.is_some()) {
            return Err(hooks::error("interrupted"));
        }
        #[allow(clippy::redundant_closure_for_method_calls)] // not general enough in its lifetime
        self.attached(|py| py.check_signals())
    }
}
