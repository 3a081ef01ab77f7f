//! The interface of a GPU's attention kernel.

use candle_core::{Result, Tensor};

/// A kernel made for one set of q (B, H, T, D), k and v (B, H, S, D).
pub(super) trait GpuKernel {
    /// The context (B, T, H, D) of the tensors that the kernel was made for.
    fn forward(self: Box<Self>, qkv: [&Tensor; 3]) -> Result<Tensor>;
}
