//! Hooks that are Python functions.

use crate::array::Array;
use crate::guard::Raised;
use candle_core::{Result, Tensor};
use gpt2_model::hooks::{At, Hooks, Point};
use pyo3::prelude::*;
use std::sync::Arc;

/// Calls Python functions at points, in order.
#[derive(Debug)]
pub(crate) struct PyHooks<'a> {
    pub(crate) list: Vec<(Point, Py<PyAny>)>,
    pub(crate) raised: &'a Raised,
}

impl PyHooks<'_> {
    /// The value that the functions at a point make; `None` if they leave it as it is.
    pub(crate) fn changed(&self, at: Point, value: &Tensor) -> Result<Option<Tensor>> {
        let mut replaced: Option<Tensor> = None;
        for (_, function) in self.list.iter().filter(|(point, _)| *point == at) {
            let current = replaced.as_ref().unwrap_or(value);
            replaced = self.call(function, current)?.or(replaced);
        }
        Ok(replaced)
    }

    /// Calls a function with a value. Returns the replacement; `None` if the function leaves the value as it is.
    fn call(&self, function: &Py<PyAny>, value: &Tensor) -> Result<Option<Tensor>> {
        // The function may write to the array, return it, or keep it: it gets a copy of its own.
        let given = Array::copy_of(value)?;
        let before =
            value.to_device(given.tensor().device())?.to_dtype(given.tensor().dtype())?.contiguous()?;
        let before = Array::new(&before)?;
        let found = self.raised.attached(|py| {
            let given = Py::new(py, given)?;
            let returned = function.bind(py).call1((given.clone_ref(py),))?;
            let replacement = if returned.is_none() {
                let is_changed = !given.get().has_bits_of(&before).map_err(crate::error::Failed::from)?;
                is_changed.then_some(given.clone_ref(py))
            } else {
                Some(returned.cast_into::<Array>()?.unbind())
            };
            let Some(array) = replacement else { return Ok(None) };
            Ok(Some((array.get().tensor().clone(), array.get().alive())))
        })?;
        let Some((tensor, alive)) = found else { return Ok(None) };
        // An array that Python keeps may be written to later.
        let is_kept = Arc::strong_count(&alive) > 1;
        let tensor = if is_kept { tensor.copy()? } else { tensor };
        Ok(Some(tensor.to_device(value.device())?.to_dtype(value.dtype())?))
    }
}

impl Hooks for PyHooks<'_> {
    fn wants(&self, point: Point) -> bool {
        self.list.iter().any(|(at, _)| *at == point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        self.changed(at.point, value)
    }
}
