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

    /// `weights·v` where keys that no query sees have values of 0: theirs may be NaN, which a weight of 0 does not hide.
    ///
    /// `weights` (B, H, T, S), `v` (B, key heads, S, D) -> (B, T, H, D)
    pub(super) fn context(&self, weights: &Tensor, v: &Tensor, dtype: DType) -> Result<Tensor> {
        let v = values_of_heads(weights, v)?;
        let seen = self.visible.max(2)?.unsqueeze(3)?.broadcast_as(v.shape())?; // (B, H, S, D)
        of_values(weights, &seen.where_cond(&v, &v.zeros_like()?)?, dtype)
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

/// `exp(x - largest)` along a dimension: 0 for numbers that do not count.
struct Powers {
    numbers: Tensor,
    /// Their sum, 0 where no number counts. The dimension has the length 1.
    sums: Tensor,
    /// The largest number that counts, without gradient, in the shape of the sums.
    largest: Tensor,
}

impl Powers {
    /// Of the numbers of `x` where `visible`, in the same shape, is not 0; the others get no gradient.
    fn new(x: &Tensor, visible: &Tensor, dim: impl Dim) -> Result<Self> {
        let dim = dim.to_index(x.shape(), "softmax")?;
        let x = visible.where_cond(x, &full_like(f64::NEG_INFINITY, x)?)?;
        // Where nothing counts, -inf less -inf would be NaN. Numbers that count may all be as low as this one.
        let lowest = if x.dtype() == DType::F64 { f64::MIN } else { f64::from(f32::MIN) };
        let largest = x.max_keepdim(dim)?.detach().maximum(lowest)?;
        let numbers = x.broadcast_sub(&largest)?.exp()?;
        let sums = numbers.sum_keepdim(dim)?;
        Ok(Self { numbers, sums, largest })
    }

    /// The sums, and 1 where no number counts.
    fn divisors(&self) -> Result<Tensor> {
        self.sums.eq(0f64)?.where_cond(&self.sums.ones_like()?, &self.sums)
    }
}

/// The logarithm of the sum of `exp(x)` along a dimension, which stays with the length 1, over the numbers that count; -inf
/// where none does. Both have one shape; where `visible` is 0, there is no gradient.
pub(super) fn log_sums(x: &Tensor, visible: &Tensor, dim: impl Dim) -> Result<Tensor> {
    let powers = Powers::new(x, visible, dim)?;
    // The logarithm of 0 would have a gradient of NaN.
    let logs = (powers.divisors()?.log()? + &powers.largest)?;
    powers.sums.eq(0f64)?.where_cond(&full_like(f64::NEG_INFINITY, &logs)?, &logs)
}

/// The softmax of `scores` over the visible keys; zeros if no key is visible. Both have one shape.
pub(super) fn softmax(scores: &Tensor, visible: &Tensor) -> Result<Tensor> {
    if scores.elem_count() == 0 {
        return Ok(scores.clone());
    }
    let powers = Powers::new(scores, visible, D::Minus1)?;
    let weights = powers.numbers.broadcast_div(&powers.divisors()?)?;
    // A hidden key beside a score of NaN has a weight of 0, and a gradient of NaN ends here.
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

/// `v` (B, key heads, S, D) in the dtype of `weights` (B, H, T, S), once for each head: (B, H, S, D)
fn values_of_heads(weights: &Tensor, v: &Tensor) -> Result<Tensor> {
    let heads = weights.dim(1)?;
    let key_heads = v.dim(1)?;
    if !heads.is_multiple_of(key_heads) {
        candle_core::bail!("attention: weights {:?} do not fit values {:?}", weights.dims(), v.dims())
    }
    let places: Vec<usize> = (0..heads).map(|head| head * key_heads / heads).collect();
    select(v, 1, &places)?.to_dtype(weights.dtype())?.contiguous()
}

/// `weights·v`, with the head axis moved behind the positions.
///
/// `weights` (B, H, T, S), `v` (B, key heads, S, D) -> (B, T, H, D)
pub(super) fn context(weights: &Tensor, v: &Tensor, dtype: DType) -> Result<Tensor> {
    of_values(weights, &values_of_heads(weights, v)?, dtype)
}

fn of_values(weights: &Tensor, v: &Tensor, dtype: DType) -> Result<Tensor> {
    weights
        .matmul(v)? // (B, H, T, D)
        .to_dtype(dtype)?
        .transpose(1, 2)?
        .contiguous() // (B, T, H, D)
}
