//! The arguments that go with the activations through a block and its attention.

use super::cache::LayerCache;
use super::mask::visible_keys;
use crate::hooks::{Hooks, PassHooks};
use crate::learn::training::Training;
use candle_core::{Result, Tensor};
use candle_fused::attention::{Chosen, Hidden, Mask, Wanted};

/// An encoder's output, for cross-attention. A cache keeps the keys and values computed from it, so pass the same
/// tensor with every further token.
#[derive(Debug, Clone, Copy)]
pub struct Encoder<'a> {
    /// The encoder's last hidden states, (B, S, C): S is independent of the length of the text.
    pub hidden_states: &'a Tensor,
    /// (B, S), 1 = visible, 0 = padding. Any integer dtype.
    pub attention_mask: Option<&'a Tensor>,
}

/// The arguments of a block and its attention besides their input. The model makes one for each of its
/// blocks from [`ForwardArgs`](crate::ForwardArgs).
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_model::{Block, Config, Pass, init};
/// use gpt2_model::attention::Chosen;
///
/// # fn main() -> candle_core::Result<()> {
/// let config = Config { n_embd: 8, n_head: 2, n_layer: 1, n_positions: 16, ..Config::gpt2() };
/// let block = Block::load(init::seeded(1, DType::F32, &Device::Cpu), &config, 0)?;
/// let x = Tensor::randn(0f32, 1., (1, 5, 8), &Device::Cpu)?; // (B, T, C)
/// let last_query = [Chosen { heads: None, queries: Some(vec![4]) }];
/// let output = block.forward_with(&x, Pass { weights: &last_query, ..Pass::default() })?;
/// assert_eq!(output.weights[0].dims(), [1, 2, 1, 5]); // (B, heads, queries, S)
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Pass<'a> {
    /// (B, S), 1 = visible, 0 = padding, S = the cache's length + T. Any integer dtype.
    pub padding_mask: Option<&'a Tensor>,
    /// u32 (B, T): the first position that each position attends to, in rows of several documents.
    pub document_starts: Option<&'a Tensor>,
    /// The encoder's output that cross-attention attends to. Without it a block skips its cross-attention, as in
    /// transformers.
    pub encoder: Option<Encoder<'a>>,
    /// The keys and values of earlier tokens; the pass appends the new ones.
    pub cache: Option<&'a mut LayerCache>,
    /// Dropout at the config's rates; without it, there is none.
    pub training: Option<Training>,
    /// Hooks that read and change values during the pass.
    pub hooks: Option<&'a dyn Hooks>,
    /// Makes a block return the attention weights of these heads and queries; `Chosen::default()` means all of them.
    pub weights: &'a [Chosen],
    /// Makes a block return the weights of its cross-attention, of these heads and queries.
    pub cross_weights: &'a [Chosen],
    /// Makes a block return a few statistics of each query's weights.
    pub output_summary: bool,
    /// Makes a block return what attention adds to the residual stream.
    pub output_attention_outputs: bool,
    /// Computes the last position only, from the keys and values of all positions; weights and summaries still cover
    /// all queries. Cannot be combined with attention outputs, weights of cross-attention and hooks, which cover all
    /// positions.
    pub last_position_only: bool,
}

impl<'a> Pass<'a> {
    /// Fails if the arguments cannot be combined.
    pub(crate) fn check(&self) -> Result<()> {
        let all_positions =
            self.output_attention_outputs || self.hooks.is_some() || !self.cross_weights.is_empty();
        if self.last_position_only && all_positions {
            candle_core::bail!(
                "last_position_only cannot be combined with attention outputs, weights of cross-attention or hooks"
            )
        }
        Ok(())
    }

    /// The padding mask in u8, as attention and hooks read it.
    pub(crate) fn padding(&self) -> Result<Option<Tensor>> {
        self.padding_mask.map(visible_keys).transpose()
    }

    /// Whether the last position's query is all that attention needs; weights and summaries cover all queries.
    pub(crate) fn needs_last_query_only(&self) -> bool {
        self.last_position_only && self.weights.is_empty() && !self.output_summary && self.training.is_none()
    }

    /// The mask in addition to the causal one: padding, other documents, and `hidden` keys.
    pub(crate) fn mask<'b>(&self, hidden: &'b [Hidden]) -> Mask<'b>
    where
        'a: 'b,
    {
        Mask { padding: self.padding_mask, first: self.document_starts, hidden, ..Mask::default() }
    }

    /// The outputs that the kernels return besides the context.
    pub(crate) fn wanted(&self) -> Wanted<'a> {
        Wanted { weights: self.weights, summary: self.output_summary, ..Wanted::default() }
    }

    /// The hooks, and what they learn about the pass. This includes the number of cached positions, so call
    /// it before the cache grows.
    pub(crate) fn hooks(&self) -> PassHooks<'a> {
        let (past, cached) = self.cache.as_ref().map_or((0, false), |cache| (cache.len(), true));
        PassHooks { hooks: self.hooks, past, cached, padding: self.padding_mask }
    }
}
