//! A transformer block: attention, then the MLP, each on a normalised copy of the residual stream.

use crate::attention::{AttentionArgs, Queries};
use crate::cache::LayerCache;
use crate::hooks::{Hooks, Point, Run};
use crate::training::Training;
use crate::{CausalSelfAttention, Config, LayerNorm, Mlp};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use gpt2_kernels::attention::{Chosen, Summary, Wanted};

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
pub struct BlockArgs<'a> {
    /// Hand back the attention weights of these heads and queries; `Chosen::default()` is all of them.
    pub weights: &'a [Chosen],
    /// Hand back a few numbers on each query's weights.
    pub output_summary: bool,
    /// Hand back what attention adds to the residual stream.
    pub output_attention_outputs: bool,
    /// Hand back the last position only, computed from the keys and values of all; weights and summaries are
    /// those of all queries all the same. Not together with attention outputs and hooks, which are of all positions.
    pub last_position_only: bool,
    /// Dropout at the config's rates.
    pub training: Option<Training>,
    /// What reads and changes values on the way.
    pub hooks: Option<&'a dyn Hooks>,
}

/// What a block computes, and the parts of it that were asked for.
#[derive(Debug)]
pub struct BlockOutput {
    /// The residual stream after the block, (B, T, C), or (B, 1, C) for the last position only.
    pub hidden_state: Tensor,
    /// The attention block's output after `c_proj`, (B, T, C), where it was asked for.
    pub attention_output: Option<Tensor>,
    /// A tensor (B, heads, queries, S) for each of [`BlockArgs::weights`].
    pub weights: Vec<Tensor>,
    /// The summary of the attention weights, where it was asked for.
    pub summary: Option<Summary>,
}

impl Block {
    /// Loads the block of layer `layer_idx`, sharing the causal `bias` with the others.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config, layer_idx: usize, bias: &Tensor) -> Result<Self> {
        let norm = |name: &str| -> Result<LayerNorm> {
            let norm = LayerNorm::load(vb.pp(name), config.n_embd, config.layer_norm_epsilon)?;
            Ok(norm.with_implementation(config.attn_implementation))
        };
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
    /// When a shape does not fit, or a hook fails.
    pub fn forward(
        &self,
        x: &Tensor,
        padding_mask: Option<&Tensor>,
        cache: Option<&mut LayerCache>,
        args: BlockArgs,
    ) -> Result<BlockOutput> {
        let last = args.last_position_only;
        if last && (args.output_attention_outputs || args.hooks.is_some()) {
            candle_core::bail!("Block: the last position only, or attention outputs and hooks; not both")
        }
        if x.dim(1)? == 0 {
            candle_core::bail!("Block: no position, x is {:?}", x.dims())
        }
        let (layer, training, hooks) = (self.attn.layer_idx, args.training, args.hooks);
        let (past, cached) = cache.as_ref().map_or((0, false), |cache| (cache.len(), true));
        let run = Run { hooks, past, cached, padding: padding_mask };

        let x = run.pass(Point::ResidPre(layer), x.clone())?;
        let normed = self.ln_1.forward(&x)?; // (B, T, C)
        let wanted = Wanted { weights: args.weights, summary: args.output_summary };
        let alone = last && args.weights.is_empty() && !args.output_summary;
        let queries = if alone { Queries::Last } else { Queries::All };
        let attention_args = AttentionArgs { padding_mask, cache, training, hooks };
        let attended = self.attn.attend(&normed, attention_args, queries, wanted)?;
        let context = &attended.context; // (B, T, C), or (B, 1, C) for the last query
        let end = |x: &Tensor| if last { x.narrow(1, x.dim(1)? - 1, 1)?.contiguous() } else { Ok(x.clone()) };
        let (x, context) = (end(&x)?, &end(context)?);

        let mut attention_output =
            run.read(Point::AttnOut(layer), || self.attn.project(context, training))?;
        if attention_output.is_none() && args.output_attention_outputs {
            attention_output = Some(self.attn.project(context, training)?);
        }
        let x = match &attention_output {
            Some(output) => (&x + output)?,
            None => self.attn.project_onto(&x, context, training)?,
        };
        let x = run.pass(Point::ResidMid(layer), x)?;
        let normed = self.ln_2.forward(&x)?; // (B, T, C)
        let x = match run.read(Point::MlpOut(layer), || self.mlp.output(&normed, training))? {
            Some(output) => (&x + output)?,
            None => self.mlp.forward_onto(&x, &normed, training)?,
        };
        let hidden_state = run.pass(Point::ResidPost(layer), x)?;
        let attention_output = attention_output.filter(|_| args.output_attention_outputs);
        Ok(BlockOutput {
            hidden_state,
            attention_output,
            weights: attended.weights,
            summary: attended.summary,
        })
    }
}
