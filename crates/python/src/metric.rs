//! Metrics that are Python functions of logits.

use crate::array::Array;
use crate::guard::Raised;
use candle_core::Tensor;
use gpt2_model::analysis::{FunctionMetric, Metric, ValueAndGradient};
use gpt2_model::hooks;
use pyo3::prelude::*;
use std::sync::Arc;

/// A function that gets logits and returns their metric and its gradient.
pub(crate) struct GivenMetric {
    pub(crate) function: Py<PyAny>,
    pub(crate) raised: Arc<Raised>,
    /// The place of the pair that is measured, in a study of pairs.
    pub(crate) pair: Option<usize>,
}

impl GivenMetric {
    fn call(&self, logits: &Tensor) -> candle_core::Result<ValueAndGradient> {
        let given = Array::copy_of(logits)?;
        self.raised.attached(|py| {
            let found = self.function.bind(py).call1((Py::new(py, given)?, self.pair))?;
            let (value, gradient): (f64, Bound<'_, Array>) = found.extract()?;
            // The caller may keep the array and write to it.
            let gradient = gradient.get().tensor().copy().map_err(crate::error::Failed::from)?;
            Ok((value, gradient))
        })
    }

    /// The metric of each text by itself, or one of all texts together.
    pub(crate) fn metric(self, together: bool) -> Metric {
        let of = move |logits: &Tensor| {
            let (value, gradient) = self.call(logits)?;
            if value.is_nan() { Err(hooks::error("the metric is NaN")) } else { Ok((value, gradient)) }
        };
        let function = if together { FunctionMetric::of_all(of) } else { FunctionMetric::of_each(of) };
        Metric::OfText(Arc::new(function))
    }
}
