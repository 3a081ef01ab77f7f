//! Fused causal attention on CUDA. The kernels are in `cuda/attention*.cu`, `cuda/delta.cu` and `cuda/decode.cu`.
//!
//! They read q, k and v in place, as views of the packed `c_attn` output or of a cache.

#[cfg(feature = "cuda")]
pub(super) mod launch;
mod plan;
#[cfg(test)]
mod tests;
