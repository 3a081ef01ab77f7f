//! The reference: attention in plain differentiable Candle operations, with one (T, S) tensor of weights per head.

use super::heads::{Query, WeightDropout};
use super::mask::Mask;
use super::request::{Rows, select};
use super::scores::scores_and_visible;
use super::sdpa::Sdpa;
use candle_core::{D, DType, Result, Tensor};

/// The softmax of the scores over the visible keys, in f32 or wider; zeros if no key is visible.
///
/// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, heads, queries, S) for `rows`
pub(super) fn weights(sdpa: &Sdpa, q: &Tensor, k: &Tensor, mask: Mask, rows: &Rows) -> Result<Tensor> {
    let (scores, visible) = scores_and_visible(sdpa, q, k, mask, rows)?;
    softmax(&scores, &visible)
}

/// The scores, with -inf where a key is not visible; the shapes are those of [`weights`].
pub(super) fn masked_scores(sdpa: &Sdpa, q: &Tensor, k: &Tensor, mask: Mask, rows: &Rows) -> Result<Tensor> {
    let (scores, visible) = scores_and_visible(sdpa, q, k, mask, rows)?;
    let hidden = Tensor::full(f32::NEG_INFINITY, (), scores.device())?.to_dtype(scores.dtype())?;
    visible.where_cond(&scores, &hidden.broadcast_as(scores.shape())?)
}

/// The softmax of `scores` over the visible keys; zeros if no key is visible. Both have one shape.
pub(super) fn softmax(scores: &Tensor, visible: &Tensor) -> Result<Tensor> {
    // Hides keys with the lowest finite value rather than -inf: a row that sees no key stays free of
    // NaN, and in every other row a hidden key still gets a weight of exactly 0.
    let lowest = match scores.dtype() {
        DType::F64 => Tensor::full(f64::MIN, (), scores.device())?,
        _ => Tensor::full(f32::MIN, (), scores.device())?,
    };
    let scores = visible.where_cond(scores, &lowest.broadcast_as(scores.shape())?)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    // If a row sees no key, or only scores of -inf, its weight is spread over hidden keys.
    visible.where_cond(&weights, &weights.zeros_like()?)
}

/// `weights` after dropout, with the same mask as when all heads and queries are computed.
pub(super) fn dropped(weights: &Tensor, dropout: &WeightDropout, rows: &Rows) -> Result<Tensor> {
    let (batch, _, _, s) = weights.dims4()?;
    let mut factors = vec![1f32; weights.elem_count()];
    let mut rest = factors.chunks_exact_mut(s);
    for b in 0..batch {
        for &h in &rows.heads {
            for (&i, factors) in rows.queries.iter().zip(&mut rest) {
                dropout.scale_row(Query { b, h, i }, 0, factors);
            }
        }
    }
    let factors = Tensor::from_vec(factors, weights.shape(), weights.device())?;
    weights * factors.to_dtype(weights.dtype())?
}

/// `weights·v`, with the head axis moved behind the positions.
///
/// `weights` (B, H, T, S), `v` (B, key heads, S, D) -> (B, T, H, D)
pub(super) fn context(weights: &Tensor, v: &Tensor, dtype: DType) -> Result<Tensor> {
    let (heads, key_heads) = (weights.dim(1)?, v.dim(1)?);
    if key_heads == 0 || !heads.is_multiple_of(key_heads) {
        candle_core::bail!("attention: weights {:?} do not fit values {:?}", weights.dims(), v.dims())
    }
    let places: Vec<usize> = (0..heads).map(|head| head * key_heads / heads).collect();
    let v = select(v, 1, &places)?.to_dtype(weights.dtype())?.contiguous()?;
    weights
        .matmul(&v)? // (B, H, T, D)
        .to_dtype(dtype)?
        .transpose(1, 2)?
        .contiguous() // (B, T, H, D)
}
