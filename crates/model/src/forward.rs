//! What a forward pass takes, and what it hands back.

use crate::KvCache;
use crate::hooks::Hooks;
use crate::training::Training;
use candle_core::Tensor;
use gpt2_kernels::attention::{Chosen, Summary};

/// What a forward pass takes beside the ids, and which parts of it are handed back.
#[derive(Debug, Default)]
pub struct ForwardArgs<'a> {
    /// Positions (B, T) or (1, T), each below N. Default: `len..len + T` after the cache's `len`, as transformers'
    /// `forward` has it. With padding before a token that default would be wrong, and they must be given: see
    /// [`crate::mask::position_ids`].
    pub position_ids: Option<&'a Tensor>,
    /// Padding mask (B, S) over the cache and the new tokens: 1 = visible, 0 = padding. Any integer dtype.
    pub attention_mask: Option<&'a Tensor>,
    /// What was read before; the new keys and values are added to it.
    pub cache: Option<&'a mut KvCache>,
    /// Hand back the L + 1 hidden states: the embeddings, then the residual stream after each block, the
    /// last one after `ln_f`.
    pub output_hidden_states: bool,
    /// Hand back the attention weights of each layer, (B, H, T, S): memory grows with L·H·T·S.
    pub output_attentions: bool,
    /// Hand back the exact attention weights of some layers, heads and queries: memory for those alone.
    pub weights: &'a [ChosenWeights],
    /// Hand back a few numbers on the attention weights of every layer, head and query.
    pub output_summaries: bool,
    /// Hand back what each attention block adds to the residual stream, (B, T, C).
    pub output_attention_outputs: bool,
    /// Compute the logits of the last position only, (B, 1, V). The last block then works for that position alone,
    /// but for attention where weights or summaries are asked for; not where hidden states, attention outputs or a
    /// hook need the others.
    pub last_logits_only: bool,
    /// Dropout at the config's rates. Without it nothing is dropped, whatever the config says.
    pub training: Option<Training>,
    /// What reads and changes values on the way, see [`crate::hooks`].
    pub hooks: Option<&'a dyn Hooks>,
}

/// Heads and queries of a layer whose attention weights are wanted.
///
/// ```
/// use gpt2_kernels::attention::Chosen;
/// use gpt2_model::ChosenWeights;
///
/// let head_5_1 = ChosenWeights { layer: 5, of: Chosen { heads: Some(vec![1]), queries: None } };
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChosenWeights {
    /// The layer, counted from 0.
    pub layer: usize,
    /// Its heads, and which of the T new positions as queries.
    pub of: Chosen,
}

/// What the transformer computed. Lists are empty where they were not asked for.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelOutput {
    /// After `ln_f`, (B, T, C), or (B, 1, C) for the last position only.
    pub last_hidden_state: Tensor,
    /// L + 1 tensors (B, T, C).
    pub hidden_states: Vec<Tensor>,
    /// L tensors (B, H, T, S), f32 at least.
    pub attentions: Vec<Tensor>,
    /// A tensor (B, heads, queries, S) for each of [`ForwardArgs::weights`], in their order, f32 at least.
    pub weights: Vec<Tensor>,
    /// L summaries of attention weights.
    pub summaries: Vec<Summary>,
    /// L tensors (B, T, C), the attention blocks' outputs after `c_proj`.
    pub attention_outputs: Vec<Tensor>,
}

/// What the language model computed.
#[derive(Debug)]
#[non_exhaustive]
pub struct CausalLMOutput {
    /// (B, T, V), or (B, 1, V) for the last position only.
    pub logits: Tensor,
    /// What the transformer below computed.
    pub transformer: ModelOutput,
}
