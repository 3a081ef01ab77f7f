//! The reference: attention in plain differentiable Candle operations, one (T, S) tensor of weights a head.

use super::{CausalMask, causal_bias};
use crate::accumulator;
use candle_core::{D, DType, Device, Result, Tensor};

/// `softmax(q·kᵀ·scale)` over the visible keys, in f32 at least; zeros where no key is visible.
///
/// `q` (B, H, T, D), `k` (B, H, S, D) -> (B, H, T, S)
pub(super) fn weights(q: &Tensor, k: &Tensor, scale: f64, mask: CausalMask) -> Result<Tensor> {
    let scores = scores(q, k, scale)?;
    let visible = visible(mask, q.dim(2)?, k.dim(2)?, q.device())?.broadcast_as(scores.shape())?;
    // The lowest finite value rather than -inf: a row that sees nothing stays free of NaN, and every
    // hidden key of a row that sees something still gets a weight of exactly 0.
    let scores = visible.where_cond(&scores, &lowest_like(&scores)?)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    // A row that sees no key, or only scores of -inf, has spread its weight over hidden keys.
    visible.where_cond(&weights, &weights.zeros_like()?)
}

/// `q·kᵀ·scale`, in f32 at least.
///
/// `q` (B, H, T, D), `k` (B, H, S, D) -> (B, H, T, S)
pub(super) fn scores(q: &Tensor, k: &Tensor, scale: f64) -> Result<Tensor> {
    let wide = accumulator(q.dtype());
    let q = (q.to_dtype(wide)?.contiguous()? * scale)?;
    let k = k.to_dtype(wide)?.contiguous()?;
    q.matmul(&k.transpose(2, 3)?)
}

/// `weights·v` with the heads moved behind the positions.
///
/// `weights` (B, H, T, S), `v` (B, H, S, D) -> (B, T, H, D)
pub(super) fn context(weights: &Tensor, v: &Tensor, dtype: DType) -> Result<Tensor> {
    let v = v.to_dtype(weights.dtype())?.contiguous()?;
    weights
        .matmul(&v)? // (B, H, T, D)
        .to_dtype(dtype)?
        .transpose(1, 2)?
        .contiguous() // (B, T, H, D)
}

/// The part of the triangle that T queries see of S keys, without the padding: u8 (1 or B, 1, T, S).
fn visible(mask: CausalMask, t: usize, s: usize, device: &Device) -> Result<Tensor> {
    let causal = match mask.tril {
        Some(tril) => tril.narrow(2, s - t, t)?.narrow(3, 0, s)?, // (1, 1, T, S)
        None => causal_bias(s, device)?.narrow(2, s - t, t)?,     // (1, 1, T, S)
    };
    match mask.padding {
        None => Ok(causal),
        Some(padding) => causal.broadcast_mul(&padding.unsqueeze(1)?.unsqueeze(1)?), // (B, 1, T, S)
    }
}

/// The lowest finite value of the dtype of `scores`, in its shape.
fn lowest_like(scores: &Tensor) -> Result<Tensor> {
    let lowest = match scores.dtype() {
        DType::F64 => Tensor::full(f64::MIN, (), scores.device())?,
        _ => Tensor::full(f32::MIN, (), scores.device())?,
    };
    lowest.broadcast_as(scores.shape())
}
