//! Which kernel of a GPU computes an attention, among those that this build has: none, CUDA's or Metal's.

use super::gpu_kernel::GpuKernel;
use candle_core::{Device, Result, Tensor};

/// The kernel for these tensors, or `None` where there is none.
#[cfg_attr(not(any(feature = "cuda", feature = "metal")), allow(unused_variables, clippy::unnecessary_wraps))]
pub(super) fn kernel(
    qkv: [&Tensor; 3],
    scale: f64,
    padding: Option<&Tensor>,
) -> Result<Option<Box<dyn GpuKernel>>> {
    match qkv[0].device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => super::cuda::kernel(device, qkv, scale, padding),
        #[cfg(feature = "metal")]
        Device::Metal(_) => super::metal::kernel(qkv, scale, padding),
        #[allow(unreachable_patterns)] // those of the features above
        Device::Cpu | Device::Cuda(_) | Device::Metal(_) => Ok(None),
    }
}
