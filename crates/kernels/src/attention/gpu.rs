//! Chooses the GPU kernel for an attention among those in this build: CUDA's, Metal's or none.

use super::drop_weights::WeightDropout;
use super::gpu_kernel::GpuKernel;
use super::mask::Mask;
use candle_core::{Device, Result, Tensor};

/// The kernel for these tensors, or `None` if there is none.
#[cfg_attr(not(any(feature = "cuda", feature = "metal")), allow(unused_variables, clippy::unnecessary_wraps))]
pub(super) fn kernel(
    qkv: [&Tensor; 3],
    scale: f64,
    mask: Mask,
    dropout: Option<WeightDropout>,
) -> Result<Option<Box<dyn GpuKernel>>> {
    match qkv[0].device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => super::cuda::kernel(device, qkv, scale, mask, dropout),
        #[cfg(feature = "metal")]
        Device::Metal(_) if mask.hidden.is_empty() && dropout.is_none() => {
            super::metal::kernel(qkv, scale, mask.padding)
        }
        #[allow(unreachable_patterns)] // unreachable if a feature above is on
        Device::Cpu | Device::Cuda(_) | Device::Metal(_) => Ok(None),
    }
}
