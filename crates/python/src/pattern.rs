//! Attention patterns, computed when they are asked for.

use crate::array::Array;
use crate::guard::compute_in_pool;
use crate::loaded::Loaded;
use candle_core::Tensor;
use gpt2_model::attention::PatternOf;
use gpt2_model::hooks::KnockOut;
use pyo3::prelude::*;
use std::sync::Arc;

/// The scores or the weights of a layer's attention, computed from its queries and keys when they are asked for.
#[pyclass(frozen, name = "Pattern", module = "gpt2_candle._native")]
pub(crate) struct LazyPattern {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) layer: usize,
    pub(crate) kind: PatternOf,
    /// (B, T, H, D)
    pub(crate) q: Tensor,
    /// (B, T, key heads, D)
    pub(crate) k: Tensor,
    pub(crate) padding: Option<Tensor>,
    pub(crate) knocked_out: Vec<KnockOut>,
}

#[pymethods]
impl LazyPattern {
    fn array(&self, py: Python<'_>) -> PyResult<Array> {
        compute_in_pool(py, &Arc::default(), || {
            let Self { loaded, layer, kind, q, k, padding, knocked_out } = self;
            let attn = &loaded.model.transformer.h[*layer].attn;
            Ok(Array::new(&attn.pattern(q, k, padding.as_ref(), knocked_out, *kind)?)?)
        })
    }
}
