//! Fused causal attention on CUDA, forward: `kernels/attention.cu`, `attention_f32.cu` and `decode.cu` beside `build.rs`.
//!
//! q, k and v are read where they lie, as views of the packed `c_attn` output or of a cache. The backward pass takes the
//! eager path.

#[cfg(feature = "cuda")]
mod launch;
mod plan;

#[cfg(feature = "cuda")]
pub(super) use launch::kernel;

use super::{CausalAttention, CausalMask, Implementation};
use candle_core::{Result, Tensor, Var};

/// The gradients of q, k and v (B, H, positions, D) for `grad` (B, T, H, D), from the eager path: it holds (T, S) weights for
/// as long as this takes.
fn gradients(
    [q, k, v]: [&Tensor; 3],
    grad: &Tensor,
    scale: f64,
    padding: Option<&Tensor>,
) -> Result<[Option<Tensor>; 3]> {
    let (q, k, v) = (Var::from_tensor(q)?, Var::from_tensor(k)?, Var::from_tensor(v)?);
    let eager = CausalAttention::new(scale).with_implementation(Implementation::Eager);
    let context = eager.forward(&q, &k, &v, CausalMask { padding, ..Default::default() })?;
    let mut gradients = (context * grad)?.sum_all()?.backward()?;
    Ok([gradients.remove(&q), gradients.remove(&k), gradients.remove(&v)])
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
