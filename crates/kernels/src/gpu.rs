//! GPU-specific code, if the build includes it: CUDA's layer kernels and its memory pool.

#[cfg(feature = "cuda")]
pub(crate) use crate::cuda::layers::{layer_norm, linear};
#[cfg(not(feature = "cuda"))]
pub(crate) use none::{layer_norm, linear};

use candle_core::{Device, Result};

/// Makes a device keep freed memory for the next tensor instead of releasing it. Use it if the process has the device
/// to itself.
///
/// # Errors
/// When the device does not answer.
pub fn keep_freed_memory(device: &Device) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return crate::cuda::keep_freed_memory(device);
    }
    let _ = device;
    Ok(())
}

#[cfg(not(feature = "cuda"))]
#[allow(clippy::unnecessary_wraps)] // same signatures as the CUDA versions
mod none {
    use crate::dispatch::Dispatch;
    use crate::epilogue::Epilogue;
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
}
