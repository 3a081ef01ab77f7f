//! Simple self-attention, with no weights to train: `softmax(x·xᵀ)·x`.
//!
//! Each word asks how similar it is to each other word (a dot product, the score), turns the answers into
//! shares of 1 (the weights), and becomes the sum of all words, each times its share (the context).
//! "Coding Attention Mechanisms" and "Implementing GPT-Style Attention" start with this step.

use candle_core::{D, Result, Tensor};

/// The similarity of each pair of rows, `x·xᵀ`: the dot product of every query with every key, where the rows
/// themselves are both.
///
/// # Shapes
/// `x` (.., T, d) -> (.., T, T), symmetric
///
/// # Errors
/// When `x` is not of rank 2 or more.
pub fn scores(x: &Tensor) -> Result<Tensor> {
    x.matmul(&x.transpose(D::Minus2, D::Minus1)?)
}

/// Each row divided by its sum, `x_j / Σ x`: the simplest way to turn scores into shares.
///
/// A negative score gives a negative share, and a sum near 0 gives unbounded shares, so attention needs
/// something better.
///
/// # Shapes
/// `scores` (.., S) -> (.., S)
///
/// # Errors
/// When the device fails.
pub fn normalize_by_sum(scores: &Tensor) -> Result<Tensor> {
    scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?)
}

/// Softmax by its formula, `exp(x_j) / Σ exp(x)`.
///
/// All shares are positive and sum to 1. In f32 this only works while every `exp` is in range: a score above 88.7
/// gives infinity over infinity, NaN, and a row of scores below -104 gives 0 over 0, also NaN. [`softmax`]
/// is the same function without these limits.
///
/// # Shapes
/// `scores` (.., S) -> (.., S)
///
/// # Errors
/// When the device fails.
pub fn softmax_naive(scores: &Tensor) -> Result<Tensor> {
    normalize_by_sum(&scores.exp()?)
}

/// Softmax as it is computed in practice, `exp(x_j - max) / Σ exp(x - max)`.
///
/// A factor `exp(-max)` in both numerator and denominator changes nothing, so this equals [`softmax_naive`]; but
/// the largest exponent is now 0, so no `exp` overflows and the sum is at least 1. A score of -inf gets a share of
/// exactly 0.
///
/// # Shapes
/// `scores` (.., S) -> (.., S)
///
/// # Errors
/// When there is no score, S = 0.
pub fn softmax(scores: &Tensor) -> Result<Tensor> {
    if scores.elem_count() == 0 {
        candle_core::bail!("softmax: no score, the shape is {:?}", scores.dims())
    }
    // The result does not depend on the number that is subtracted, so no gradient need flow through it.
    let max = scores.max_keepdim(D::Minus1)?.detach(); // (.., 1)
    softmax_naive(&scores.broadcast_sub(&max)?)
}

/// The rows of `x` summed by their weights, `weights·x`.
///
/// # Shapes
/// `weights` (.., T, S), `x` (.., S, d) -> (.., T, d)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn context(weights: &Tensor, x: &Tensor) -> Result<Tensor> {
    weights.matmul(x)
}

/// Scores, softmax and context in one: `softmax(x·xᵀ)·x`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gpt2_lessons::simple;
///
/// # fn main() -> candle_core::Result<()> {
/// let words = Tensor::new(&[[1f32, 0.], [0., 1.], [1., 1.]], &Device::Cpu)?; // (T, d)
/// assert_eq!(simple::self_attention(&words)?.dims(), [3, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `x` (.., T, d) -> (.., T, d)
///
/// # Errors
/// When `x` is not of rank 2 or more, or holds nothing.
pub fn self_attention(x: &Tensor) -> Result<Tensor> {
    context(&softmax(&scores(x)?)?, x)
}
