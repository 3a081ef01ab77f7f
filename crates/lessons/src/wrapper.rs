//! Several heads, the simple way: each is a separate [`CausalAttention`]; they run in turn, with their results side by
//! side.
//!
//! `Concat(head_1, .., head_H)`, as `001_3b936f420483d060` stacks them. What one head computes for `d_out`
//! numbers, H heads compute for `H·d_out`; with `d_out` 1 each head says a single number (its exercise).

use crate::CausalAttention;
use crate::causal_mask::causal_mask;
use candle_core::{D, Result, Tensor};
use candle_fused::dropout::Dropout;
use candle_nn::VarBuilder;

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
