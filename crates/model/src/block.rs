//! A transformer block: attention, then the MLP, each on a normalised copy of the residual stream.

use crate::cache::LayerCache;
use crate::{CausalSelfAttention, Config, LayerNorm, Mlp};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// `h.N`: `x + attn(ln_1(x))`, then `x + mlp(ln_2(x))`.
#[derive(Debug, Clone)]
pub struct Block {
    /// Before attention.
    pub ln_1: LayerNorm,
    /// Causal self-attention.
    pub attn: CausalSelfAttention,
    /// Before the MLP.
    pub ln_2: LayerNorm,
    /// The MLP.
    pub mlp: Mlp,
}

/// What a block computes, and the parts of it that were asked for.
#[derive(Debug)]
pub struct BlockOutput {
    /// The residual stream after the block, (B, T, C).
    pub hidden_state: Tensor,
    /// The attention block's output after `c_proj`, (B, T, C).
    pub attention_output: Tensor,
    /// The attention weights (B, H, T, S), where they were asked for.
    pub attention_weights: Option<Tensor>,
}

impl Block {
    /// Loads the block of layer `layer_idx`, sharing the causal `bias` with the others.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config, layer_idx: usize, bias: &Tensor) -> Result<Self> {
        let norm = |name: &str| LayerNorm::load(vb.pp(name), config.n_embd, config.layer_norm_epsilon);
        Ok(Self {
            ln_1: norm("ln_1")?,
            attn: CausalSelfAttention::load_layer(vb.pp("attn"), config, layer_idx, bias)?,
            ln_2: norm("ln_2")?,
            mlp: Mlp::load(vb.pp("mlp"), config)?,
        })
    }

    /// Runs the block.
    ///
    /// # Shapes
    /// `x` (B, T, C), `padding_mask` u8 (B, S) -> see [`BlockOutput`]
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward(
        &self,
        x: &Tensor,
        padding_mask: Option<&Tensor>,
        cache: Option<&mut LayerCache>,
        output_attentions: bool,
    ) -> Result<BlockOutput> {
        let normed = self.ln_1.forward(x)?;
        let (attention_output, attention_weights) = if output_attentions {
            let (output, weights) = self.attn.forward_with_weights(&normed, padding_mask, cache)?;
            (output, Some(weights))
        } else {
            (self.attn.forward(&normed, padding_mask, cache)?, None)
        };
        let x = (x + &attention_output)?;
        let hidden_state = (&x + self.mlp.forward(&self.ln_2.forward(&x)?)?)?;
        Ok(BlockOutput { hidden_state, attention_output, attention_weights })
    }
}
