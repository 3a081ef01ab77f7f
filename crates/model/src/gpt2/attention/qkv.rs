//! The heads in `c_attn`: queries, keys and values of a pass, and the weights of single heads.

use super::cache::LayerCache;
use super::pass::Pass;
use crate::config::QkvOrder;
use crate::gpt2::layers::conv1d::Conv1D;
use crate::gpt2::layers::linear::Epilogue;
use candle_core::{Result, Tensor};
use candle_fused::attention::HeadLayout;
use std::ops::Range;

/// A projection of a head's input.
#[derive(Debug, Clone, Copy)]
pub(super) enum Projection {
    Query,
    Key,
    Value,
}

/// The heads of a pass: strided views of the output of `c_attn`.
pub(super) struct Qkv {
    /// (B, T, H, D)
    pub(super) q: Tensor,
    /// Keys, then values, (B, T, 2·key heads, D).
    pub(super) kv: Tensor,
}

/// The layout of the heads in the columns of `c_attn`.
#[derive(Debug, Clone, Copy)]
pub(super) struct QkvLayout {
    pub(super) heads: HeadLayout,
    pub(super) order: QkvOrder,
}

impl QkvLayout {
    /// The output of `c_attn` as heads: (B, T, (H + 2·key heads)·D) -> q (B, T, H, D), kv (B, T, 2·key heads, D)
    fn split(&self, qkv: &Tensor) -> Result<Qkv> {
        let (b, t, _) = qkv.dims3()?;
        let HeadLayout { heads: h, key_heads, dim: d, .. } = self.heads;
        let qkv = match self.order {
            QkvOrder::SideBySide => qkv.clone(),
            QkvOrder::HeadByHead => qkv.reshape((b, t, h, 3, d))?.transpose(2, 3)?.contiguous()?,
        };
        let qkv = qkv.reshape((b, t, h + 2 * key_heads, d))?;
        Ok(Qkv { q: qkv.narrow(2, 0, h)?, kv: qkv.narrow(2, h, 2 * key_heads)? })
    }

    /// The heads of `x` (B, T, C): q (B, T, H, D), or (B, 1, H, D) if `pass` needs the last query only, and kv (B, T, 2·key heads,
    /// D)
    pub(super) fn project(&self, c_attn: &Conv1D, x: &Tensor, pass: &Pass) -> Result<Qkv> {
        let last_query_only = pass.needs_last_query_only();
        if last_query_only && x.dim(1)? > 1 && self.order == QkvOrder::SideBySide {
            let (b, t, _) = x.dims3()?;
            let HeadLayout { heads: h, key_heads, dim: d, .. } = self.heads;
            let queries = self.heads.query_width();
            let all = self.heads.packed_width();
            let q = c_attn.forward_columns(&last_position(x)?, 0..queries)?;
            let kv = c_attn.forward_columns(x, queries..all)?;
            return Ok(Qkv { q: q.reshape((b, 1, h, d))?, kv: kv.reshape((b, t, 2 * key_heads, d))? });
        }
        let Qkv { q, kv } = self.split(&c_attn.run(x, Epilogue::None, pass.training)?)?;
        let q = if last_query_only { q.narrow(1, q.dim(1)? - 1, 1)? } else { q };
        Ok(Qkv { q, kv })
    }

    /// The cache of a pass, if the output of `c_attn` for all of `x` (B, T, C) can go there as it is: queries of all positions, then keys
    /// and values side by side.
    pub(super) fn cache_to_append_to<'a>(
        &self,
        pass: &'a mut Pass,
        x: &Tensor,
    ) -> Option<&'a mut LayerCache> {
        let drops_queries = pass.needs_last_query_only() && x.dims().get(1).is_some_and(|&t| t > 1);
        pass.cache.as_deref_mut().filter(|_| self.order == QkvOrder::SideBySide && !drops_queries)
    }

    /// A part of every head, each from an input of its own: (B, T, heads, C) -> (B, T, heads, D)
    pub(super) fn project_heads(&self, c_attn: &Conv1D, inputs: &Tensor, part: Projection) -> Result<Tensor> {
        let of_head = |head| {
            let input = inputs.narrow(2, head, 1)?.squeeze(2)?.contiguous()?; // (B, T, C)
            let first = self.first_column(part, head);
            c_attn.forward_columns(&input, first..first + self.heads.dim) // (B, T, D)
        };
        Tensor::stack(&(0..inputs.dim(2)?).map(of_head).collect::<Result<Vec<_>>>()?, 2)
    }

    /// The first column of a head's part in `c_attn`. For keys and values, `head` counts key heads.
    fn first_column(&self, part: Projection, head: usize) -> usize {
        let HeadLayout { key_heads, dim: d, .. } = self.heads;
        match (self.order, part) {
            (QkvOrder::HeadByHead, _) => (3 * head + part as usize) * d,
            (QkvOrder::SideBySide, Projection::Query) => head * d,
            (QkvOrder::SideBySide, Projection::Key) => self.heads.query_width() + head * d,
            (QkvOrder::SideBySide, Projection::Value) => self.heads.query_width() + (key_heads + head) * d,
        }
    }

    /// The columns of `c_attn` that compute a head's query, key and value.
    pub(super) fn columns(&self, head: usize) -> [Range<usize>; 3] {
        let HeadLayout { heads, key_heads, dim, .. } = self.heads;
        let key_head = head * key_heads / heads;
        [(Projection::Query, head), (Projection::Key, key_head), (Projection::Value, key_head)].map(
            |(part, head)| {
                let first = self.first_column(part, head);
                first..first + dim
            },
        )
    }

    /// The weights of every head; copies.
    pub(super) fn head_weights(&self, c_attn: &Conv1D, c_proj: &Conv1D) -> Result<Vec<HeadWeights>> {
        let HeadLayout { heads, key_heads, dim: d, .. } = self.heads;
        let (weight, output) = (c_attn.weight()?, c_proj.weight()?);
        let part = |part: Projection, head: usize| -> Result<(Tensor, Tensor)> {
            let first = self.first_column(part, head);
            let bias = match c_attn.bias() {
                Some(bias) => bias.narrow(0, first, d)?,
                None => Tensor::zeros(d, weight.dtype(), weight.device())?,
            };
            Ok((weight.narrow(1, first, d)?.contiguous()?, bias))
        };
        let of_head = |head: usize| {
            let key_head = head * key_heads / heads;
            let (q, q_bias) = part(Projection::Query, head)?;
            let (k, k_bias) = part(Projection::Key, key_head)?;
            let (v, v_bias) = part(Projection::Value, key_head)?;
            let o = output.narrow(0, head * d, d)?.contiguous()?;
            Ok(HeadWeights { q, k, v, o, q_bias, k_bias, v_bias })
        };
        (0..heads).map(of_head).collect()
    }
}

/// One head's part of `c_attn` and `c_proj`. Vectors are rows: the head computes its query as `x·q + q_bias`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HeadWeights {
    /// (C, D)
    pub q: Tensor,
    /// (C, D); the same for all heads that share keys.
    pub k: Tensor,
    /// (C, D); the same for all heads that share values.
    pub v: Tensor,
    /// (D, C)
    pub o: Tensor,
    /// (D), zeros if `c_attn` has no bias, as are the other biases.
    pub q_bias: Tensor,
    /// (D)
    pub k_bias: Tensor,
    /// (D)
    pub v_bias: Tensor,
}

/// (B, T, C) -> (B, 1, C)
pub(crate) fn last_position(x: &Tensor) -> Result<Tensor> {
    x.narrow(1, x.dim(1)? - 1, 1)?.contiguous()
}
