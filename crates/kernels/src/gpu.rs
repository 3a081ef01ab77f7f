//! What a GPU does in its own way, where this build has it: the layers' kernels of CUDA, and its memory.

#[cfg(feature = "cuda")]
pub(crate) use crate::cuda::layers::{layer_norm, linear};
#[cfg(not(feature = "cuda"))]
pub(crate) use none::{layer_norm, linear};

use candle_core::{Device, Result, Tensor};

/// Has a device keep freed memory for the next tensor, where it would hand it back: for a process that has the device to itself.
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

/// What follows a matrix product and its bias.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tail<'a> {
    /// GELU in its tanh form.
    pub(crate) gelu: bool,
    /// What all of it is added to.
    pub(crate) residual: Option<&'a Tensor>,
}

#[cfg(not(feature = "cuda"))]
#[allow(clippy::unnecessary_wraps)] // as the others
mod none {
    use super::Tail;
    use crate::Implementation;
    use candle_core::{Result, Tensor};

    pub(crate) fn layer_norm(
        _: Implementation,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: f64,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn linear(
        _: Implementation,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        tail: Tail,
    ) -> Result<Option<Tensor>> {
        let _ = (tail.gelu, tail.residual);
        Ok(None)
    }
}
