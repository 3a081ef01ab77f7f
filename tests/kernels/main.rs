//! The fused kernels against the eager operations, which define them.

#[path = "../common/mod.rs"]
mod common;
mod features;
mod fused;
mod fused_backward;
mod signatures;
mod weights;

use candle_core::Tensor;

/// q (B, H, T, D), k and v (B, H, S, D) as strided views of one packed projection (B, S, 3, H, D), as `c_attn` returns it; q
/// cut to the last T positions.
fn packed_views(packed: &Tensor, t: usize) -> candle_core::Result<[Tensor; 3]> {
    let part = |i| packed.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
    let q = part(0)?;
    Ok([q.narrow(2, q.dim(2)? - t, t)?, part(1)?, part(2)?])
}
