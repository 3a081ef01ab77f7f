//! The reference: attention in plain differentiable Candle operations, with one (T, S) tensor of weights per head.

use crate::attention::heads::{Query, WeightDropout};
use crate::attention::inputs::{ChosenIndices, select};
use crate::attention::mask::Mask;
use crate::attention::scores::scores_and_visible;
use crate::attention::sdpa::Sdpa;
use candle_core::shape::Dim;
use candle_core::{D, DType, Result, Tensor};

/// The scores of some rows, and which keys they see.
pub(super) struct Scores {
    /// (B, heads, queries, S) in f32 or wider
    numbers: Tensor,
    /// u8, the same shape
    visible: Tensor,
    /// (1, heads, 1, 1) in the dtype of the scores
    sinks: Option<Tensor>,
}

impl Scores {
    /// `q` (B, H, T, D), `k` (B, key heads, S, D)
    pub(super) fn new(sdpa: &Sdpa, q: &Tensor, k: &Tensor, mask: Mask, rows: &ChosenIndices) -> Result<Self> {
        let (scores, visible) = scores_and_visible(sdpa, q, k, mask, rows)?;
        let of_heads = |sinks: &Tensor| {
            select(&sinks.reshape((1, rows.all_heads, 1, 1))?, 1, &rows.heads)?.to_dtype(scores.dtype())
        };
        let sinks = sdpa.sinks.as_ref().map(of_heads).transpose()?;
        Ok(Self { numbers: scores, visible, sinks })
    }

    /// The scores and visible keys, with the sinks as the last key, which every query sees unless it is -inf.
    fn with_sinks(&self) -> Result<(Tensor, Tensor)> {
        let Self { numbers: scores, visible, sinks } = self;
        let Some(sinks) = sinks else { return Ok((scores.clone(), visible.clone())) };
        let (b, heads, queries, _) = scores.dims4()?;
        let column = (b, heads, queries, 1);
        let scores = Tensor::cat(&[scores, &sinks.broadcast_as(column)?], D::Minus1)?;
        let there = sinks.detach().ne(f64::NEG_INFINITY)?.to_dtype(visible.dtype())?.broadcast_as(column)?;
        Ok((scores, Tensor::cat(&[visible, &there], D::Minus1)?))
    }

    /// The softmax over the visible keys; zeros if no key is visible: (B, heads, queries, S)
    pub(super) fn softmax(&self) -> Result<Tensor> {
        let (scores, visible) = self.with_sinks()?;
        let weights = softmax(&scores, &visible)?;
        if self.sinks.is_some() {
            weights.narrow(D::Minus1, 0, self.numbers.dim(3)?)?.contiguous()
        } else {
            Ok(weights)
        }
    }

    /// The logarithm of `Σ exp(score)` over the visible keys; -inf if no key is visible: (B, heads, queries)
    pub(super) fn log_sums(&self) -> Result<Tensor> {
        let (scores, visible) = self.with_sinks()?;
        log_sums(&scores, &visible, D::Minus1)?.squeeze(D::Minus1)
    }

    /// The scores, with -inf where a key is not visible: (B, heads, queries, S)
    pub(super) fn masked(&self) -> Result<Tensor> {
        let hidden = full_like(f64::NEG_INFINITY, &self.numbers)?;
        self.visible.where_cond(&self.numbers, &hidden)
    }
}

/// `x` everywhere, with the shape and dtype of another tensor.
fn full_like(x: f64, like: &Tensor) -> Result<Tensor> {
    let x = match like.dtype() {
        DType::F64 => Tensor::full(x, (), like.device())?,
        #[allow(clippy::cast_possible_truncation)] // callers pass what f32 holds
        _ => Tensor::full(x as f32, (), like.device())?,
    };
    x.broadcast_as(like.shape())
}

/// The scores, with the lowest finite value where a key is not visible. With -inf, a row that sees no key would get NaN; in
/// every other row a hidden key still gets a weight of exactly 0.
fn lowest_where_hidden(scores: &Tensor, visible: &Tensor) -> Result<Tensor> {
    let lowest = if scores.dtype() == DType::F64 { f64::MIN } else { f64::from(f32::MIN) };
    visible.where_cond(scores, &full_like(lowest, scores)?)
}

/// The logarithm of the sum of `exp(x)` along a dimension, which stays with the length 1, over the numbers that count; -inf
/// where none does. Both have one shape; where `visible` is 0, there is no gradient.
pub(super) fn log_sums(x: &Tensor, visible: &Tensor, dim: impl Dim) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), "log-sum")?;
    let x = lowest_where_hidden(x, visible)?;
    let max = x.max_keepdim(dim)?.detach();
    let powers = x.broadcast_sub(&max)?.exp()?;
    let sums = visible.where_cond(&powers, &powers.zeros_like()?)?.sum_keepdim(dim)?;
    // The logarithm of 0 would have a gradient of NaN.
    let any = visible.max_keepdim(dim)?;
    let logs = (any.where_cond(&sums, &sums.ones_like()?)?.log()? + max)?;
    any.where_cond(&logs, &full_like(f64::NEG_INFINITY, &logs)?)
}

/// The softmax of `scores` over the visible keys; zeros if no key is visible. Both have one shape.
pub(super) fn softmax(scores: &Tensor, visible: &Tensor) -> Result<Tensor> {
    if scores.elem_count() == 0 {
        return Ok(scores.clone());
    }
    let scores = lowest_where_hidden(scores, visible)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    // If a row sees no key, or only scores of -inf, its weight is spread over hidden keys.
    visible.where_cond(&weights, &weights.zeros_like()?)
}

/// `weights` after dropout, with the same mask as when all heads and queries are computed.
pub(super) fn dropped(weights: &Tensor, dropout: &WeightDropout, rows: &ChosenIndices) -> Result<Tensor> {
    let (batch, _, _, s) = weights.dims4()?;
    let mut factors = vec![1f32; weights.elem_count()];
    let mut rest = factors.chunks_exact_mut(s.max(1));
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
    let heads = weights.dim(1)?;
    let key_heads = v.dim(1)?;
    if !heads.is_multiple_of(key_heads) {
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
