//! GPU-specific code, if the build includes it: CUDA's kernels around attention, and its memory pool.
//!
//! It loads and launches the kernels in `cuda/*.cu`. Launches are planned as numbers alone, which tests can check in any build.

pub(crate) mod append_at;
#[cfg(feature = "cuda")]
mod blas_lt;
#[cfg(feature = "cuda")]
mod cross_entropy;
#[cfg(feature = "cuda")]
pub(crate) mod device;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // launches are planned, and not made
pub(crate) mod embed;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // launches are planned, and not made
pub(crate) mod few_rows;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // launches are planned, and not made
pub(crate) mod finish_append;
#[cfg(feature = "cuda")]
mod finish_norm;
pub(crate) mod graph;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // launches are planned, and not made
pub(crate) mod launch_plan;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // launches are planned, and not made
pub(crate) mod layers;
pub(crate) mod token_search;

#[cfg(feature = "cuda")]
pub(crate) use cross_entropy::{has_cross_entropy, losses_to_gradients};
#[cfg(feature = "cuda")]
pub(crate) use embed::embed;
#[cfg(feature = "cuda")]
pub(crate) use few_rows::{few_rows, few_rows_append, few_rows_fit};
#[cfg(feature = "cuda")]
pub(crate) use finish_append::linear_append;
#[cfg(feature = "cuda")]
pub(crate) use finish_norm::linear_norm;
#[cfg(feature = "cuda")]
pub(crate) use layers::{layer_norm, linear};
#[cfg(not(feature = "cuda"))]
pub(crate) use none::{
    embed, few_rows, few_rows_append, few_rows_fit, has_cross_entropy, layer_norm, linear, linear_append,
    linear_norm, losses_to_gradients,
};

use candle_core::{Device, Result};

/// A CUDA device with one stream for all host threads, so that they may share tensors and models: Candle's
/// `Device::new_cuda` has another stream in each thread, and nothing orders them. Freed memory stays with the device, see
/// [`keep_freed_memory`].
///
/// Every call with a number returns the same device, whose seed is thus shared, too. A device that Candle opens on the same GPU
/// has another stream, and nothing orders the two: move tensors between them through the CPU.
///
/// # Errors
/// When the device does not answer, or the build has no CUDA.
pub fn open_cuda(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    let device = device::open(ordinal)?;
    #[cfg(not(feature = "cuda"))]
    let device = Device::new_cuda_with_stream(ordinal)?;
    keep_freed_memory(&device)?;
    Ok(device)
}

/// Makes a device keep freed memory for the next tensor instead of releasing it. Use it if the process has the device
/// to itself.
///
/// # Errors
/// When the device does not answer.
pub fn keep_freed_memory(device: &Device) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return device::keep_freed_memory(device);
    }
    let _ = device;
    Ok(())
}

#[cfg(not(feature = "cuda"))]
#[allow(clippy::unnecessary_wraps)] // same signatures as the CUDA versions
mod none {
    use super::append_at::AppendAt;
    use crate::cpu::dispatch::Dispatch;
    use crate::pointwise::epilogue::Epilogue;
    use crate::pointwise::norm::input::InputNorm;
    use candle_core::{Result, Tensor};

    pub(crate) fn layer_norm(
        _: Dispatch,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: f64,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn linear(
        _: Dispatch,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: Epilogue,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn few_rows(
        _: Dispatch,
        _: [&Tensor; 3],
        _: Option<InputNorm>,
        _: Epilogue,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn few_rows_append(
        _: Dispatch,
        _: [&Tensor; 3],
        _: Option<InputNorm>,
        _: &Tensor,
        _: AppendAt,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn few_rows_fit(_: Dispatch, _: [&Tensor; 3], _: &Tensor) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn linear_norm(
        _: Dispatch,
        _: [&Tensor; 4],
        _: [&Tensor; 2],
        _: f64,
    ) -> Result<Option<(Tensor, Tensor)>> {
        Ok(None)
    }

    pub(crate) fn linear_append(
        _: Dispatch,
        _: [&Tensor; 3],
        _: &Tensor,
        _: AppendAt,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn embed(
        _: Dispatch,
        _: &Tensor,
        _: [&Tensor; 2],
        _: usize,
        _: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn has_cross_entropy(_: Dispatch, _: &Tensor, _: &Tensor) -> Result<bool> {
        Ok(false)
    }

    pub(crate) fn losses_to_gradients(_: &Tensor, _: &Tensor, _: bool) -> Result<Tensor> {
        candle_core::bail!("cross-entropy: this build has no kernel for GPUs")
    }
}
