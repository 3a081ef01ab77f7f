//! A transformer block: attention, then the MLP, each on a normalised copy of the residual stream.

use crate::attention::{AttentionArgs, Queries};
use crate::cache::LayerCache;
use crate::training::Training;
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

/// Which parts of a block's work are handed back, and for which positions it is done.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockArgs {
    /// Hand back the attention weights.
    pub output_attentions: bool,
    /// Hand back what attention adds to the residual stream.
    pub output_attention_outputs: bool,
    /// Compute the last position only, from the keys and values of all; not together with the two above.
    pub last_position_only: bool,
    /// Dropout at the config's rates.
    pub training: Option<Training>,
}

/// What a block computes, and the parts of it that were asked for.
#[derive(Debug)]
pub struct BlockOutput {
    /// The residual stream after the block, (B, T, C), or (B, 1, C) for the last position only.
    pub hidden_state: Tensor,
    /// The attention block's output after `c_proj`, (B, T, C), where it was asked for.
    pub attention_output: Option<Tensor>,
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
            mlp: Mlp::load_layer(vb.pp("mlp"), config, layer_idx)?,
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
        args: BlockArgs,
    ) -> Result<BlockOutput> {
        let (x, attention_output, attention_weights) = self.attend(x, padding_mask, cache, args)?;
        let hidden_state = self.mlp.forward_onto(&x, &self.ln_2.forward(&x)?, args.training)?;
        Ok(BlockOutput { hidden_state, attention_output, attention_weights })
    }

    /// `x + attn(ln_1(x))`, and the attention's output and weights where they were asked for.
    fn attend(
        &self,
        x: &Tensor,
        padding_mask: Option<&Tensor>,
        cache: Option<&mut LayerCache>,
        args: BlockArgs,
    ) -> Result<(Tensor, Option<Tensor>, Option<Tensor>)> {
        if args.last_position_only && (args.output_attentions || args.output_attention_outputs) {
            candle_core::bail!(
                "Block: the last position only, or all attention weights and outputs; not both"
            )
        }
        if x.dim(1)? == 0 {
            candle_core::bail!("Block: no position, x is {:?}", x.dims())
        }
        let training = args.training;
        let normed = self.ln_1.forward(x)?; // (B, T, C)
        let attention_args = AttentionArgs { padding_mask, cache, training };
        if args.last_position_only {
            let last = x.narrow(1, x.dim(1)? - 1, 1)?; // (B, 1, C)
            let context = self.attn.context(&normed, attention_args, Queries::Last)?;
            return Ok((self.attn.project_onto(&last, &context, training)?, None, None));
        }
        let (context, weights) = if args.output_attentions {
            let (context, weights) = self.attn.context_with_weights(&normed, attention_args)?;
            (context, Some(weights))
        } else {
            (self.attn.context(&normed, attention_args, Queries::All)?, None)
        };
        if args.output_attention_outputs {
            let output = self.attn.project(&context, training)?;
            return Ok(((x + &output)?, Some(output), weights));
        }
        Ok((self.attn.project_onto(x, &context, training)?, None, weights))
    }
}
