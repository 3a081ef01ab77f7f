//! One head that cannot see the future: `dropout(softmax(mask(q·kᵀ)/√d))·v`, for batches.
//!
//! From `001_3b936f420483d060` and `004_a3b10401148b1338`: it makes the triangle once, for the longest text, and a
//! shorter text uses its corner.

use crate::causal_mask::{causal_mask, masked_weights};
use crate::projections::{load_qkv, project};
use crate::self_attention::{scale, scores};
use crate::simple::context;
use candle_core::{D, Result, Tensor};
use candle_fused::dropout::Dropout;
use candle_nn::{Linear, VarBuilder};

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
        self.attend(&q, &k)
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
        let weights = self.attend(&q, &k)?; // (B, T, T)
        let weights = match dropout {
            Some(dropout) => dropout.apply(&weights)?,
            None => weights,
        };
        context(&weights, &v)
    }

    fn qkv(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        if x.rank() != 3 {
            candle_core::bail!("CausalAttention: x must be (B, T, d_in), got {:?}", x.dims())
        }
        project("CausalAttention", x, [&self.w_query, &self.w_key, &self.w_value])
    }

    fn attend(&self, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        masked_weights(&scale(&scores(q, k)?, k.dim(D::Minus1)?)?, &self.mask)
    }
}
