//! Hooks inside attention. If no hook wants a point, the step for that point returns its input unchanged.

use super::qkv::{Projection, Qkv, QkvLayout};
use crate::gpt2::layers::conv1d::Conv1D;
use crate::gpt2::layers::layer_norm::LayerNorm;
use crate::hooks::{PassHooks, Point};
use candle_core::{Module, Result, Tensor};
use candle_fused::attention::{Chosen, HeadLayout, Mask, Sdpa};

/// The normalized inputs of the queries, keys and values, (B, T, heads, C) each, where a hook has replaced what each head
/// reads: the split inputs of TransformerLens (`use_attn_in`, `use_split_qkv_input`).
#[derive(Debug, Default)]
pub(crate) struct HeadInputs {
    q: Option<Tensor>,
    k: Option<Tensor>,
    v: Option<Tensor>,
}

impl HeadInputs {
    /// Offers a copy of the stream `x` (B, T, C) for each head to the hooks, and normalizes those that they replace.
    pub(crate) fn new(
        x: &Tensor,
        norm: &LayerNorm,
        layout: HeadLayout,
        layer: usize,
        hooks: PassHooks,
    ) -> Result<Self> {
        let ((b, t, c), HeadLayout { heads, key_heads, .. }) = (x.dims3()?, layout);
        let copies = |heads| x.unsqueeze(2)?.broadcast_as((b, t, heads, c));
        let all = hooks.read(Point::AttnIn(layer), || copies(heads))?; // (B, T, H, C)
        if all.is_some() && key_heads != heads {
            candle_core::bail!(
                "hook at {}: {heads} heads share {key_heads} heads of keys and values, so their inputs cannot be replaced \
                 together; use {}, {} and {}",
                Point::AttnIn(layer),
                Point::QInput(layer),
                Point::KInput(layer),
                Point::VInput(layer)
            )
        }
        let normalized = |x: Tensor| norm.forward(&x.contiguous()?);
        let normalized_all = all.clone().map(normalized).transpose()?;
        let input = |point: Point, heads: usize| -> Result<Option<Tensor>> {
            let own = hooks.read(point, || all.clone().map_or_else(|| copies(heads), Ok))?;
            Ok(own.map(normalized).transpose()?.or_else(|| normalized_all.clone()))
        };
        Ok(Self {
            q: input(Point::QInput(layer), heads)?,
            k: input(Point::KInput(layer), key_heads)?,
            v: input(Point::VInput(layer), key_heads)?,
        })
    }

    /// Whether no head has an input of its own.
    pub(super) fn are_all_x(&self) -> bool {
        self.q.is_none() && self.k.is_none() && self.v.is_none()
    }

    /// The heads of a pass, with those that have inputs of their own computed from these.
    pub(super) fn replace(&self, qkv: Qkv, layout: &QkvLayout, c_attn: &Conv1D) -> Result<Qkv> {
        let Qkv { mut q, mut kv } = qkv;
        if let Some(inputs) = &self.q {
            // For all positions: under hooks, no pass computes the last query alone.
            q = layout.project_heads(c_attn, inputs, Projection::Query)?; // (B, T, H, D)
        }
        if self.k.is_some() || self.v.is_some() {
            let part = |inputs: &Option<Tensor>, part: Projection| match inputs {
                Some(inputs) => layout.project_heads(c_attn, inputs, part),
                None => keys_or_values(&kv, part),
            };
            kv = Tensor::cat(&[part(&self.k, Projection::Key)?, part(&self.v, Projection::Value)?], 2)?;
        }
        Ok(Qkv { q, kv })
    }
}

/// Queries, keys and values, or what hooks put in their place.
pub(super) fn hooked_qkv(qkv: Qkv, layer: usize, hooks: PassHooks) -> Result<Qkv> {
    let Qkv { q, kv } = qkv;
    let q = hooks.pass(Point::Q(layer), q)?;
    let k = hooks.read(Point::K(layer), || keys_or_values(&kv, Projection::Key))?;
    let v = hooks.read(Point::V(layer), || keys_or_values(&kv, Projection::Value))?;
    if k.is_none() && v.is_none() {
        return Ok(Qkv { q, kv });
    }
    let k = k.map_or_else(|| keys_or_values(&kv, Projection::Key), Ok)?;
    let v = v.map_or_else(|| keys_or_values(&kv, Projection::Value), Ok)?;
    Ok(Qkv { q, kv: Tensor::cat(&[k, v], 2)? })
}

/// (B, T, 2·key heads, D) -> (B, T, key heads, D)
fn keys_or_values(kv: &Tensor, part: Projection) -> Result<Tensor> {
    let heads = kv.dim(2)? / 2;
    kv.narrow(2, if matches!(part, Projection::Key) { 0 } else { heads }, heads)
}

/// The attention weights (B, H, T, S) that take the place of the kernel's, if a hook changes them or their scores.
pub(super) fn replaced_weights(
    sdpa: &Sdpa,
    q: &Tensor,
    k: &Tensor,
    mask: Mask,
    layer: usize,
    hooks: PassHooks,
) -> Result<Option<Tensor>> {
    let scores = hooks.read(Point::Scores(layer), || sdpa.scores(q, k, mask))?; // (B, H, T, S)
    let of_scores = scores.map(|scores| Sdpa::softmax(&scores)).transpose()?;
    let weights = || match &of_scores {
        Some(weights) => Ok(weights.clone()),
        None => sdpa.weights(q, k, mask, &Chosen::default()),
    };
    Ok(hooks.read(Point::Pattern(layer), weights)?.or_else(|| of_scores.clone()))
}

/// Each head's contribution to the residual stream, `z_h·W_O_h`, without `c_proj`'s bias: (B, T, C) -> (B, T, H, C)
pub(super) fn results(c_proj: &Conv1D, context: &Tensor, layout: HeadLayout) -> Result<Tensor> {
    let ((b, t, c), HeadLayout { heads, dim, .. }) = (context.dims3()?, layout);
    let z = context.reshape((b * t, heads, dim))?.transpose(0, 1)?.contiguous()?; // (H, B·T, D)
    let w_o = c_proj.weight()?.reshape((heads, dim, c))?;
    z.matmul(&w_o)?.transpose(0, 1)?.reshape((b, t, heads, c))
}

/// The output of `c_proj` as the sum of all heads' contributions and its bias: (B, T, H, C) -> (B, T, C)
pub(super) fn sum_of_results(c_proj: &Conv1D, results: &Tensor) -> Result<Tensor> {
    let sum = results.sum(2)?;
    c_proj.bias().map_or_else(|| Ok(sum.clone()), |bias| sum.broadcast_add(bias))
}
