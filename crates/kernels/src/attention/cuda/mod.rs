//! The forward pass of fused causal attention on CUDA. The kernels are in `cuda/attention.cu`, `cuda/attention_f32.cu`
//! and `cuda/decode.cu`.
//!
//! The kernels read q, k and v in place, as views of the packed `c_attn` output or of a cache. The backward pass takes
//! the eager path.

mod gradients;
#[cfg(feature = "cuda")]
mod launch;
mod plan;

#[cfg(feature = "cuda")]
pub(super) use launch::kernel;

#[cfg(all(test, target_os = "linux"))]
mod tests;
