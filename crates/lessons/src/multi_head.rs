//! Several heads: first a stack of single heads, run in turn, with their results side by side; then all in one layer.
//!
//! The stack is `Concat(head_1, .., head_H)`, as "Coding Attention Mechanisms" builds it. What one head computes for `d_out`
//! numbers, H heads compute for `H·d_out`; with `d_out` 1 each head says a single number (its exercise).
//!
//! The one layer projects once, splits the result into heads, attends, merges and projects again: `softmax(mask(q·kᵀ)/√D)·v` for
//! H heads of width `D = d_out / H` at a time, then `out_proj`. It has the matrices of the stack's heads side by side in one, as in
//! "Coding Attention Mechanisms" and "Implementing GPT-Style Attention". GPT-2's block takes the same step again and puts
//! `W_query`, `W_key` and `W_value` side by side in `c_attn`.

use crate::causal_attention::{CausalAttention, causal_mask, causal_weights};
use crate::self_attention::{load_linear, load_qkv, project};
use crate::simple::context;
use candle_core::{D, Module, Result, Tensor};
use candle_fused::dropout::Dropout;
use candle_nn::{Linear, VarBuilder};

/// A stack of single heads.
#[derive(Debug, Clone)]
pub struct MultiHeadAttentionWrapper {
    /// The heads, in the order of their results.
    pub heads: Vec<CausalAttention>,
}

impl MultiHeadAttentionWrapper {
    /// Loads `n_head` heads, `heads.0`, `heads.1`, .., each `d_in -> d_out`; they share one mask.
    ///
    /// # Errors
    /// When there is no head, or a tensor is missing or has another shape.
    pub fn load(
        vb: VarBuilder,
        d_in: usize,
        d_out: usize,
        context_length: usize,
        n_head: usize,
        qkv_bias: bool,
    ) -> Result<Self> {
        if n_head == 0 {
            candle_core::bail!("MultiHeadAttentionWrapper: needs a head at least")
        }
        let mask = causal_mask(context_length, vb.device())?;
        let load = |i| CausalAttention::load_head(vb.pp(format!("heads.{i}")), d_in, d_out, &mask, qkv_bias);
        Ok(Self { heads: (0..n_head).map(load).collect::<Result<_>>()? })
    }

    /// `Concat(head_1(x), .., head_H(x))`.
    ///
    /// # Shapes
    /// `x` (B, T, `d_in`) -> (B, T, H·`d_out`)
    ///
    /// # Errors
    /// When `x` does not fit the heads, or T is above the mask's N.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.concat(|_, head| head.forward(x))
    }

    /// Like [`forward`](Self::forward), with dropout on the weights, for training: head `i` uses `dropouts[i]`.
    ///
    /// # Shapes
    /// `x` (B, T, `d_in`) -> (B, T, H·`d_out`)
    ///
    /// # Errors
    /// When there is not one dropout for each head, `x` does not fit the heads, or T is above the mask's N.
    pub fn forward_with(&self, x: &Tensor, dropouts: &[Dropout]) -> Result<Tensor> {
        if dropouts.len() != self.heads.len() {
            candle_core::bail!(
                "MultiHeadAttentionWrapper: {} heads need as many dropouts, got {}",
                self.heads.len(),
                dropouts.len()
            )
        }
        self.concat(|i, head| head.forward_with(x, Some(&dropouts[i])))
    }

    fn concat(&self, run: impl Fn(usize, &CausalAttention) -> Result<Tensor>) -> Result<Tensor> {
        let heads =
            self.heads.iter().enumerate().map(|(i, head)| run(i, head)).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&heads, D::Minus1)
    }
}

/// Causal attention with H heads, split from one projection.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_lessons::MultiHeadAttention;
/// use gpt2_model::init;
///
/// # fn main() -> candle_core::Result<()> {
/// let vb = init::seeded(123, DType::F32, &Device::Cpu);
/// let attn = MultiHeadAttention::load(vb, 6, 6, 12, 3, false)?; // 3 heads of width 2
/// let x = Tensor::randn(0f32, 1., (4, 12, 6), &Device::Cpu)?; // (B, T, d_in)
/// assert_eq!(attn.weights(&x)?.dims(), [4, 3, 12, 12]);
/// assert_eq!(attn.forward(&x)?.dims(), [4, 12, 6]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    /// `d_in -> d_out`: what a word looks for, head by head.
    pub w_query: Linear,
    /// `d_in -> d_out`: what other words find it by.
    pub w_key: Linear,
    /// `d_in -> d_out`: what a word says.
    pub w_value: Linear,
    /// `d_out -> d_out`, on the merged heads.
    pub out_proj: Linear,
    /// The lower triangle, u8 (N, N), 1 = visible; N is the longest text. Not a parameter.
    pub mask: Tensor,
    n_head: usize,
}

impl MultiHeadAttention {
    /// Loads `W_query`, `W_key`, `W_value` and `out_proj`, weights (out, in), for texts of up to
    /// `context_length` words. `out_proj` always has a bias, the others only if `qkv_bias` is true.
    ///
    /// # Errors
    /// When `d_out` is not divisible by `n_head`, or a tensor is missing or has another shape.
    pub fn load(
        vb: VarBuilder,
        d_in: usize,
        d_out: usize,
        context_length: usize,
        n_head: usize,
        qkv_bias: bool,
    ) -> Result<Self> {
        check_heads(d_out, n_head)?; // before creating anything
        let qkv = load_qkv(&vb, d_in, d_out, qkv_bias)?;
        let out_proj = load_linear(vb.pp("out_proj"), d_out, d_out, true)?;
        Self::from_layers(qkv, out_proj, causal_mask(context_length, vb.device())?, n_head)
    }

    /// Builds the layer from existing layers, for the conversions.
    pub(crate) fn from_layers(
        qkv: [Linear; 3],
        out_proj: Linear,
        mask: Tensor,
        n_head: usize,
    ) -> Result<Self> {
        let (d_out, d_in) = qkv[0].weight().dims2()?;
        check_heads(d_out, n_head)?;
        for (name, layer, shape) in [
            ("W_key", &qkv[1], [d_out, d_in]),
            ("W_value", &qkv[2], [d_out, d_in]),
            ("out_proj", &out_proj, [d_out, d_out]),
        ] {
            if layer.weight().dims() != shape {
                candle_core::bail!(
                    "MultiHeadAttention: W_query gives {d_out}, so {name} (out, in) must be {shape:?}, got {:?}",
                    layer.weight().dims()
                )
            }
        }
        let [w_query, w_key, w_value] = qkv;
        Ok(Self { w_query, w_key, w_value, out_proj, mask, n_head })
    }

    /// H, the number of heads.
    #[must_use]
    pub fn n_head(&self) -> usize {
        self.n_head
    }

    /// The attention weights, `softmax(mask(q·kᵀ)/√D)`.
    ///
    /// # Shapes
    /// `x` (B, T, `d_in`) -> (B, H, T, T)
    ///
    /// # Errors
    /// When `x` does not fit the layers, or T is above the mask's N.
    pub fn weights(&self, x: &Tensor) -> Result<Tensor> {
        let [q, k, _] = self.qkv(x)?;
        causal_weights(&q, &k, &self.mask, None)
    }

    /// `out_proj(merge(softmax(mask(q·kᵀ)/√D)·v))`.
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
        let [q, k, v] = self.qkv(x)?; // (B, H, T, D)
        let weights = causal_weights(&q, &k, &self.mask, dropout)?; // (B, H, T, T)
        let heads = context(&weights, &v)?; // (B, H, T, D)
        let merged = heads.transpose(1, 2)?.flatten_from(2)?; // (B, T, H·D)
        self.out_proj.forward(&merged)
    }

    /// Queries, keys and values, each split into heads.
    ///
    /// # Shapes
    /// `x` (B, T, `d_in`) -> each (B, H, T, D), contiguous
    ///
    /// # Errors
    /// When `x` does not fit the layers.
    pub fn qkv(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let Ok((b, t, _)) = x.dims3() else {
            candle_core::bail!("MultiHeadAttention: x must be (B, T, d_in), got {:?}", x.dims())
        };
        let [q, k, v] = project("MultiHeadAttention", x, [&self.w_query, &self.w_key, &self.w_value])?;
        let split = |x: Tensor| {
            x.reshape((b, t, self.n_head, ()))? // (B, T, H, D)
                .transpose(1, 2)? // (B, H, T, D)
                .contiguous()
        };
        Ok([split(q)?, split(k)?, split(v)?])
    }
}

fn check_heads(d_out: usize, n_head: usize) -> Result<()> {
    if n_head == 0 || !d_out.is_multiple_of(n_head) {
        candle_core::bail!("MultiHeadAttention: d_out {d_out} is not divisible by n_head {n_head}")
    }
    Ok(())
}
