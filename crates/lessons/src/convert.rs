//! One mechanism in several layouts: each conversion gives a layer with the same outputs.
//!
//! | from | to | how |
//! |---|---|---|
//! | [`MultiHeadAttentionWrapper`] | [`MultiHeadAttention`] | the heads' matrices one below the other, `out_proj` the identity |
//! | [`PerHeadAttention`] | [`MultiHeadAttention`] | each `W_h` transposed, then the same; `out_proj` is `W_Oᵀ` |
//! | [`MultiHeadAttention`] | [`CausalSelfAttention`] | three matrices one below the other, transposed: `c_attn` (C, 3C) |
//! | [`CausalSelfAttention`] | [`MultiHeadAttention`] | and back |
//!
//! All conversions use differentiable operations, so gradients reach the original layer.

use crate::causal_attention::causal_mask;
use crate::{
    CausalAttention, MultiHeadAttention, MultiHeadAttentionWrapper, PerHeadAttention, PerHeadProjections,
};
use candle_core::{Result, Tensor};
use candle_nn::{Linear, VarBuilder};
use gpt2_model::{CausalSelfAttention, Config, Conv1D};
use std::collections::HashMap;

impl MultiHeadAttention {
    /// The stack of heads as one layer; `out_proj` is the identity, because the stack has none.
    ///
    /// # Errors
    /// When there is no head, the heads' shapes differ, or only some have a bias.
    pub fn from_wrapper(wrapper: &MultiHeadAttentionWrapper) -> Result<Self> {
        let layers = |h: &CausalAttention| [&h.w_query, &h.w_key, &h.w_value].map(Linear::clone);
        let shape = |h: &CausalAttention| {
            let shapes = layers(h).map(|l| (l.weight().dims().to_vec(), l.bias().is_some()));
            (shapes, h.mask.dims().to_vec())
        };
        let first = same_shapes(&wrapper.heads, shape)?;
        let below = |i: usize| below(wrapper.heads.iter().map(|h| layers(h)[i].clone()));
        Self::from_layers(
            [below(0)?, below(1)?, below(2)?],
            identity(wrapper.heads.len() * first.w_value.weight().dim(0)?, first.w_value.weight())?,
            first.mask.clone(),
            wrapper.heads.len(),
        )
    }

    /// The matrices of each head as one layer, for texts of up to `context_length` words; without `W_O`,
    /// `out_proj` is the identity.
    ///
    /// # Errors
    /// When the layer is not causal or has no head, or its shapes do not fit into one layer: the heads differ,
    /// `d_k` is not `d_v`, or `W_O` is not square.
    pub fn from_per_head(layer: &PerHeadAttention, context_length: usize) -> Result<Self> {
        if !layer.causal {
            candle_core::bail!("MultiHeadAttention is causal; this PerHeadAttention sees every word")
        }
        let matrices = |h: &PerHeadProjections| [&h.w_q, &h.w_k, &h.w_v].map(Tensor::clone);
        let first = same_shapes(&layer.heads, |h| matrices(h).map(|w| w.dims().to_vec()))?;
        let below = |i: usize| -> Result<Linear> {
            let transposed = layer.heads.iter().map(|h| Ok(Linear::new(matrices(h)[i].t()?, None)));
            below(transposed.collect::<Result<Vec<_>>>()?.into_iter())
        };
        let out_proj = match &layer.w_o {
            Some(w_o) => Linear::new(w_o.t()?.contiguous()?, Some(zeros(w_o.dim(1)?, w_o)?)),
            None => identity(layer.heads.len() * first.w_v.dim(1)?, &first.w_v)?,
        };
        let mask = causal_mask(context_length, first.w_q.device())?;
        Self::from_layers([below(0)?, below(1)?, below(2)?], out_proj, mask, layer.heads.len())
    }

    /// GPT-2's block with its single projection split into three.
    ///
    /// # Errors
    /// When the block does not scale by `1/√D` (`scale_attn_weights` false, or a layer above the first under
    /// `scale_attn_by_inverse_layer_idx`).
    pub fn from_gpt2(block: &CausalSelfAttention) -> Result<Self> {
        let ((c, _), n_head, scale) = (block.c_attn.shape(), block.n_head(), block.scale());
        let weight = block.c_attn.weight()?;
        let bias = bias_of(&block.c_attn)?;
        let expected = 1. / ((c / n_head) as f64).sqrt();
        if (scale - expected).abs() > 1e-9 * expected {
            candle_core::bail!("MultiHeadAttention scales scores by {expected}; this block scales by {scale}")
        }
        let part = |i: usize| -> Result<Linear> {
            let part = weight.narrow(1, i * c, c)?.t()?.contiguous()?; // (out, in)
            Ok(Linear::new(part, Some(bias.narrow(0, i * c, c)?)))
        };
        let qkv = [part(0)?, part(1)?, part(2)?];
        let out_proj = Linear::new(block.c_proj.weight()?.t()?.contiguous()?, Some(bias_of(&block.c_proj)?));
        let mask = block.bias.tensor()?.squeeze(0)?.squeeze(0)?; // (N, N)
        Self::from_layers(qkv, out_proj, mask, n_head)
    }

    /// The separate projections as GPT-2's single `c_attn`; a missing bias becomes zeros.
    ///
    /// # Errors
    /// When `d_in` is not `d_out`: GPT-2 has only one width.
    pub fn to_gpt2(&self) -> Result<CausalSelfAttention> {
        let qkv = [&self.w_query, &self.w_key, &self.w_value];
        let (d_out, d_in) = self.w_query.weight().dims2()?;
        let or_zeros = |l: &Linear| l.bias().map_or_else(|| zeros(d_out, l.weight()), |b| Ok(b.clone()));
        if d_in != d_out {
            candle_core::bail!(
                "CausalSelfAttention has one width n_embd; this layer takes {d_in} and gives {d_out}"
            )
        }
        let biases = qkv.iter().map(|l| or_zeros(l)).collect::<Result<Vec<_>>>()?;
        let out = &self.out_proj;
        let tensors = [
            ("c_attn.weight", Tensor::cat(&qkv.map(Linear::weight), 0)?.t()?.contiguous()?), // (C, 3C)
            ("c_attn.bias", Tensor::cat(&biases, 0)?),
            ("c_proj.weight", out.weight().t()?.contiguous()?),
            ("c_proj.bias", or_zeros(out)?),
        ];
        let tensors: HashMap<_, _> = tensors.into_iter().map(|(name, t)| (name.to_string(), t)).collect();
        let dtype = out.weight().dtype();
        let device = out.weight().device();
        let config = Config {
            n_embd: d_out,
            n_head: self.n_head(),
            n_positions: self.mask.dim(0)?,
            attn_pdrop: 0.,
            resid_pdrop: 0.,
            ..Config::gpt2()
        };
        CausalSelfAttention::load(VarBuilder::from_tensors(tensors, dtype, device), &config, 0)
    }
}

/// The bias of a projection; zeros if it has none.
fn bias_of(layer: &Conv1D) -> Result<Tensor> {
    layer.bias().map_or_else(|| zeros(layer.shape().1, &layer.weight()?), |bias| Ok(bias.clone()))
}

/// The first head, after checking that all heads have its shape.
fn same_shapes<H, S: PartialEq + std::fmt::Debug>(heads: &[H], shape: impl Fn(&H) -> S) -> Result<&H> {
    let Some(first) = heads.first() else {
        candle_core::bail!("MultiHeadAttention: a layer without heads has no shape")
    };
    if let Some(i) = heads.iter().position(|head| shape(head) != shape(first)) {
        candle_core::bail!(
            "MultiHeadAttention: heads must have one shape, but head 0 has {:?} and head {i} {:?}",
            shape(first),
            shape(&heads[i])
        )
    }
    Ok(first)
}

/// One layer with the outputs of all these layers, in order.
fn below(layers: impl Iterator<Item = Linear>) -> Result<Linear> {
    let layers: Vec<_> = layers.collect();
    let weights: Vec<_> = layers.iter().map(Linear::weight).collect();
    let biases: Vec<_> = layers.iter().filter_map(Linear::bias).collect();
    let bias = if biases.is_empty() { None } else { Some(Tensor::cat(&biases, 0)?) };
    Ok(Linear::new(Tensor::cat(&weights, 0)?, bias))
}

fn identity(n: usize, like: &Tensor) -> Result<Linear> {
    Ok(Linear::new(Tensor::eye(n, like.dtype(), like.device())?, Some(zeros(n, like)?)))
}

fn zeros(n: usize, like: &Tensor) -> Result<Tensor> {
    Tensor::zeros(n, like.dtype(), like.device())
}
