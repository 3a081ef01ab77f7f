//! The place of new rows in a cache.

use candle_core::Tensor;

/// The place of new rows in a cache: behind `past` positions, or behind as many as the GPU reads in `on_gpu`, u32 (1), when the kernel
/// runs.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // no kernel reads it
pub(crate) struct AppendAt<'a> {
    pub(crate) past: usize,
    pub(crate) on_gpu: Option<&'a Tensor>,
}
