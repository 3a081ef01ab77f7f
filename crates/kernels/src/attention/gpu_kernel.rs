//! What a GPU's attention kernel offers.

use candle_core::{Result, Tensor};

/// A kernel for certain q (B, H, T, D), k and v (B, H, S, D).
pub(super) trait GpuKernel {
    /// The context (B, T, H, D) of the tensors that the kernel was made for.
    fn forward(self: Box<Self>, qkv: [&Tensor; 3]) -> Result<Tensor>;
}
