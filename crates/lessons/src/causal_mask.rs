//! Two ways to hide the future, and why they are the same: `softmax ⊙ mask`, renormalized, or -inf before the
//! softmax.
//!
//! Renormalizing divides `exp(x_j)/Σ exp(x)` by the sum of the visible shares; the sum over all words
//! cancels, and the softmax of the visible scores alone is left. Setting hidden scores to -inf gives this
//! directly, since `exp(-inf) = 0`. Both are in `001_3b936f420483d060`, the second also in
//! `000_4b640e2881ba5b39`, `003_fa08c9926b7972e4` and `004_a3b10401148b1338`.
//!
//! On paper they are equal. In f32 the first computes every hidden share before throwing it away: if a hidden
//! score is some 100 above all visible ones, the visible shares round to 0 and the row becomes 0 over 0, NaN. This
//! cannot happen with the second, which [`CausalAttention`](crate::CausalAttention) and all later steps use.

use crate::simple::{normalize_by_sum, softmax};
use candle_core::{D, Device, Result, Tensor};
use gpt2_model::mask::causal_bias;

/// The lower triangle, 1 = visible: row i sees the words 0 to i.
///
/// The documents' buffer named `mask` is the opposite, an upper triangle that marks what is hidden.
///
/// # Shapes
/// -> u8 (N, N)
///
/// # Errors
/// When the device cannot hold it.
pub fn causal_mask(n: usize, device: &Device) -> Result<Tensor> {
    causal_bias(n, device)?.reshape((n, n))
}

/// First way: softmax over all words, zeros for the hidden ones, each row divided by its sum.
///
/// # Shapes
/// `scores` (.., T, T), `mask` u8 (N, N) with N >= T -> (.., T, T)
///
/// # Errors
/// When the shapes do not match, or T is above N.
pub fn renormalized_weights(scores: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let visible = corner(scores, mask)?.to_dtype(scores.dtype())?; // (T, T)
    normalize_by_sum(&softmax(scores)?.broadcast_mul(&visible)?)
}

/// Second way: softmax over scores with the hidden ones set to -inf.
///
/// # Shapes
/// `scores` (.., T, T), `mask` u8 (N, N) with N >= T -> (.., T, T)
///
/// # Errors
/// When the shapes do not match, or T is above N.
pub fn masked_weights(scores: &Tensor, mask: &Tensor) -> Result<Tensor> {
    softmax(&masked_scores(scores, mask)?)
}

/// The scores with -inf where the mask is 0.
///
/// # Shapes
/// `scores` (.., T, T), `mask` u8 (N, N) with N >= T -> (.., T, T)
///
/// # Errors
/// When the shapes do not match, or T is above N.
pub fn masked_scores(scores: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let visible = corner(scores, mask)?.broadcast_as(scores.shape())?;
    let hidden = Tensor::new(f32::NEG_INFINITY, scores.device())?.to_dtype(scores.dtype())?;
    visible.where_cond(scores, &hidden.broadcast_as(scores.shape())?)
}

/// The top left corner of the mask that T words need: (T, T).
fn corner(scores: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (n, m) = mask.dims2()?;
    if scores.rank() < 2 || scores.dim(D::Minus1)? != scores.dim(D::Minus2)? {
        candle_core::bail!("causal mask: scores must be (.., T, T), got {:?}", scores.dims())
    }
    let t = scores.dim(D::Minus1)?;
    if n != m || t > n {
        candle_core::bail!("causal mask: {t} words do not fit a triangle of {:?}", mask.dims())
    }
    mask.narrow(0, 0, t)?.narrow(1, 0, t)
}
