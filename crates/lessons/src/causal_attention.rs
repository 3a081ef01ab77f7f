//! One head that cannot see the future: `dropout(softmax(mask(q·kᵀ)/√d))·v`, for batches.
//!
//! First, two ways to hide the future, and why they are the same: `softmax ⊙ mask`, renormalized, or -inf before the softmax.
//! Renormalizing divides `exp(x_j)/Σ exp(x)` by the sum of the visible shares; the sum over all words
//! cancels, and the softmax of the visible scores alone is left. Setting hidden scores to -inf gives this
//! directly, since `exp(-inf) = 0`. Both are in "Coding Attention Mechanisms", the second also in the other texts with a mask.
//!
//! On paper they are equal. In f32 the first computes every hidden share before throwing it away: if a hidden
//! score is some 100 above all visible ones, the visible shares round to 0 and the row becomes 0 over 0, NaN. This
//! cannot happen with the second, which [`CausalAttention`] and all later steps use. It makes the triangle once, for the
//! longest text, and a shorter text uses its corner.

use crate::self_attention::{load_qkv, project, scale, scores};
use crate::simple::{context, normalize_by_sum, softmax};
use candle_core::{D, Device, Result, Tensor};
use candle_fused::dropout::Dropout;
use candle_nn::{Linear, VarBuilder};
use gpt2_model::mask::causal_bias;

/// The lower triangle, 1 = visible: row i sees the words 0 to i.
///
/// The texts' buffer named `mask` is the opposite, an upper triangle that marks what is hidden.
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

/// `softmax(mask(q·kᵀ)/√d)`, then dropout if there is any: `q` and `k` (.., T, d) -> (.., T, T)
pub(crate) fn causal_weights(
    q: &Tensor,
    k: &Tensor,
    mask: &Tensor,
    dropout: Option<&Dropout>,
) -> Result<Tensor> {
    let weights = masked_weights(&scale(&scores(q, k)?, k.dim(D::Minus1)?)?, mask)?;
    match dropout {
        Some(dropout) => dropout.apply(&weights),
        None => Ok(weights),
    }
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

/// One causal head.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_lessons::CausalAttention;
/// use gpt2_model::init;
///
/// # fn main() -> candle_core::Result<()> {
/// let vb = init::seeded(123, DType::F32, &Device::Cpu);
/// let attn = CausalAttention::load(vb, 3, 2, 6, false)?; // texts of up to 6 words
/// let x = Tensor::randn(0f32, 1., (2, 4, 3), &Device::Cpu)?; // (B, T, d_in)
/// assert_eq!(attn.forward(&x)?.dims(), [2, 4, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalAttention {
    /// `d_in -> d_out`: what a word looks for.
    pub w_query: Linear,
    /// `d_in -> d_out`: what other words find it by.
    pub w_key: Linear,
    /// `d_in -> d_out`: what a word says.
    pub w_value: Linear,
    /// The lower triangle, u8 (N, N), 1 = visible; N is the longest text. Not a parameter.
    pub mask: Tensor,
}

impl CausalAttention {
    /// Loads `W_query`, `W_key` and `W_value`, weights (`d_out`, `d_in`), for texts of up to
    /// `context_length` words.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(
        vb: VarBuilder,
        d_in: usize,
        d_out: usize,
        context_length: usize,
        qkv_bias: bool,
    ) -> Result<Self> {
        let mask = causal_mask(context_length, vb.device())?;
        Self::load_head(vb, d_in, d_out, &mask, qkv_bias)
    }

    /// Like [`load`](Self::load), sharing the mask of other heads.
    pub(crate) fn load_head(
        vb: VarBuilder,
        d_in: usize,
        d_out: usize,
        mask: &Tensor,
        qkv_bias: bool,
    ) -> Result<Self> {
        let [w_query, w_key, w_value] = load_qkv(&vb, d_in, d_out, qkv_bias)?;
        Ok(Self { w_query, w_key, w_value, mask: mask.clone() })
    }

    /// The attention weights, `softmax(mask(q·kᵀ)/√d)`.
    ///
    /// # Shapes
    /// `x` (B, T, `d_in`) -> (B, T, T)
    ///
    /// # Errors
    /// When `x` does not fit the layers, or T is above the mask's N.
    pub fn weights(&self, x: &Tensor) -> Result<Tensor> {
        let [q, k, _] = self.qkv(x)?;
        causal_weights(&q, &k, &self.mask, None)
    }

    /// `softmax(mask(q·kᵀ)/√d)·v`.
    ///
    /// # Shapes
    /// `x` (B, T, `d_in`) -> (B, T, `d_out`)
    ///
    /// # Errors
    /// When `x` does not fit the layers, or T is above the mask's N.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, None)
    }

    /// Like [`forward`](Self::forward), with dropout on the weights, for training.
    ///
    /// # Shapes
    /// `x` (B, T, `d_in`) -> (B, T, `d_out`)
    ///
    /// # Errors
    /// When `x` does not fit the layers, or T is above the mask's N.
    pub fn forward_with(&self, x: &Tensor, dropout: Option<&Dropout>) -> Result<Tensor> {
        let [q, k, v] = self.qkv(x)?; // (B, T, d_out)
        let weights = causal_weights(&q, &k, &self.mask, dropout)?; // (B, T, T)
        context(&weights, &v)
    }

    fn qkv(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        if x.rank() != 3 {
            candle_core::bail!("CausalAttention: x must be (B, T, d_in), got {:?}", x.dims())
        }
        project("CausalAttention", x, [&self.w_query, &self.w_key, &self.w_value])
    }
}
