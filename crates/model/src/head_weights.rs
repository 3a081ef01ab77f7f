//! The weights of single heads, as matrices.

use crate::qkv_order::QkvOrder;
use crate::{CausalSelfAttention, LayerNorm};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::attention::HeadLayout;

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
    /// (D), zeros if `c_attn` has no bias; so the others.
    pub q_bias: Tensor,
    /// (D)
    pub k_bias: Tensor,
    /// (D)
    pub v_bias: Tensor,
}

impl CausalSelfAttention {
    /// The weights of every head; copies.
    ///
    /// # Errors
    /// When a layer cannot produce a dense weight.
    pub fn head_weights(&self) -> Result<Vec<HeadWeights>> {
        let HeadLayout { heads, key_heads, dim: d, .. } = self.heads();
        let (weight, output) = (self.c_attn.weight()?, self.c_proj.weight()?);
        let part = |part: usize, head: usize| -> Result<(Tensor, Tensor)> {
            let first = self.first_column(part, head);
            let bias = match self.c_attn.bias() {
                Some(bias) => bias.narrow(0, first, d)?,
                None => Tensor::zeros(d, weight.dtype(), weight.device())?,
            };
            Ok((weight.narrow(1, first, d)?.contiguous()?, bias))
        };
        let of_head = |head: usize| {
            let key_head = head * key_heads / heads;
            let ((q, q_bias), (k, k_bias), (v, v_bias)) =
                (part(0, head)?, part(1, key_head)?, part(2, key_head)?);
            let o = output.narrow(0, head * d, d)?.contiguous()?;
            Ok(HeadWeights { q, k, v, o, q_bias, k_bias, v_bias })
        };
        (0..heads).map(of_head).collect()
    }

    /// Where the query (part 0), key (1) or value (2) of a head begins in `c_attn`'s columns; keys and values count their own
    /// heads.
    pub(crate) fn first_column(&self, part: usize, head: usize) -> usize {
        let HeadLayout { key_heads, dim: d, .. } = self.heads();
        match self.qkv_order() {
            QkvOrder::SideBySide => {
                let queries = self.heads().query_width();
                [0, queries, queries + key_heads * d][part] + head * d
            }
            QkvOrder::HeadByHead => (3 * head + part) * d,
        }
    }

    /// The part of each head's z that does not depend on what it attends to, as its weights sum to 1: `b_v + β·W_v` with β of the
    /// layer norm before, (D) in f64 on the CPU.
    pub(crate) fn constant_values(&self, norm: &LayerNorm) -> Result<Vec<Tensor>> {
        let wide = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F64);
        let bias = wide(&norm.bias)?.unsqueeze(0)?; // (1, C)
        let of_head = |head: &HeadWeights| bias.matmul(&wide(&head.v)?)?.squeeze(0)? + wide(&head.v_bias)?;
        self.head_weights()?.iter().map(of_head).collect()
    }
}
