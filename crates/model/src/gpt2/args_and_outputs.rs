//! The arguments and results of a forward pass.

use super::attention::cache::KvCache;
use super::attention::pass::Encoder;
use super::block::BlockOutput;
use crate::hooks::Hooks;
use crate::learn::training::Training;
use candle_core::{Result, Tensor};
use candle_fused::attention::{Chosen, Summary};

/// The arguments of a forward pass besides the ids, including which intermediate results to return.
#[derive(Debug, Default)]
pub struct ForwardArgs<'a> {
    /// Positions (B, T) or (1, T), each below N. Default: `len..len + T`, where `len` is the length of the cache,
    /// as in transformers' `forward`. With padding before a token that default would be wrong, so you must pass
    /// them: see [`crate::mask::position_ids`].
    pub position_ids: Option<&'a Tensor>,
    /// Padding mask (B, S) over the cache and the new tokens: 1 = visible, 0 = padding. Any integer dtype.
    pub attention_mask: Option<&'a Tensor>,
    /// u32 (B, T), for rows of several documents: where the document of each position begins. A position attends to its own
    /// document only, and default positions count from its start. Cannot be combined with a cache. Summaries still call the row's first
    /// position the first.
    pub document_starts: Option<&'a Tensor>,
    /// The encoder's output that cross-attention attends to, in a model with `add_cross_attention`. Without it the
    /// model skips cross-attention, as transformers does.
    pub encoder: Option<Encoder<'a>>,
    /// The keys and values of earlier tokens; the pass appends the new ones.
    pub cache: Option<&'a mut KvCache>,
    /// Return the L + 1 hidden states: the embeddings, then the residual stream after each block, the
    /// last one after `ln_f`.
    pub output_hidden_states: bool,
    /// Return the attention weights of each layer, (B, H, T, S), and those of its cross-attention. Memory grows with
    /// L·H·T·S.
    pub output_attentions: bool,
    /// Return the exact attention weights of some layers, heads and queries. Only those take memory.
    pub weights: &'a [ChosenWeights],
    /// Return the exact weights of the cross-attention of some layers, heads and queries.
    pub cross_weights: &'a [ChosenWeights],
    /// Return a few statistics of the attention weights of every layer, head and query.
    pub output_summaries: bool,
    /// Return what each attention block adds to the residual stream, (B, T, C).
    pub output_attention_outputs: bool,
    /// Compute the logits of the last position only, (B, 1, V). The last block then processes only that position,
    /// except in attention if you ask for weights or summaries. It still processes all positions if hidden states,
    /// attention outputs or a hook need the others.
    pub last_logits_only: bool,
    /// Begin before a later block, with this stream in place of what the blocks below would make of the ids. Hidden states and other
    /// lists by layer are then those of the blocks that run.
    pub start: Option<Start<'a>>,
    /// Dropout at the config's rates. With `None` there is no dropout, whatever the config says.
    pub training: Option<Training>,
    /// Hooks that read and change values during the pass, see [`crate::hooks`].
    pub hooks: Option<&'a dyn Hooks>,
}

/// The residual stream before a block, with which a pass begins. Hooks of the blocks below are not called, and of the ids only the
/// shape counts. There is no cache, unless the pass begins before the first block, and there are no weights of lower layers.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The first block that runs; the number of blocks for `ln_f` alone.
    pub layer: usize,
    /// (B, T, C)
    pub stream: &'a Tensor,
}

impl Start<'_> {
    /// The stream, if it fits ids (B, T) and a model of this many layers with this table of positions.
    pub(crate) fn checked(&self, input_ids: &Tensor, wpe: &Tensor, layers: usize) -> Result<Tensor> {
        let (b, t) = input_ids.dims2()?;
        let expected = [b, t, wpe.dim(1)?];
        if self.stream.dims() != expected || self.stream.dtype() != wpe.dtype() {
            candle_core::bail!(
                "a stream {:?} {:?}: expected {:?} {expected:?}",
                self.stream.dtype(),
                self.stream.dims(),
                wpe.dtype()
            )
        }
        if self.layer > layers {
            candle_core::bail!("a stream before block {}: the model has {layers} blocks", self.layer)
        }
        Ok(self.stream.clone())
    }
}

/// Heads and queries of a layer whose attention weights you want.
///
/// ```
/// use candle_fused::attention::Chosen;
/// use gpt2_model::ChosenWeights;
///
/// let head_5_1 = ChosenWeights { layer: 5, of: Chosen { heads: Some(vec![1]), queries: None } };
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChosenWeights {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The heads, and which of the T new positions to take as queries.
    pub of: Chosen,
}

/// The output of the transformer. A list that you did not ask for is empty.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelOutput {
    /// After `ln_f`, (B, T, C), or (B, 1, C) for the last position only.
    pub last_hidden_state: Tensor,
    /// L + 1 tensors (B, T, C).
    pub hidden_states: Vec<Tensor>,
    /// L tensors (B, H, T, S), in f32 or wider.
    pub attentions: Vec<Tensor>,
    /// A tensor (B, heads, queries, S) for each entry of [`ForwardArgs::weights`], in order, in f32 or wider.
    pub weights: Vec<Tensor>,
    /// L tensors (B, H, T, S), S of the encoder.
    pub cross_attentions: Vec<Tensor>,
    /// A tensor (B, heads, queries, S) for each entry of [`ForwardArgs::cross_weights`].
    pub cross_weights: Vec<Tensor>,
    /// L summaries of attention weights.
    pub summaries: Vec<Summary>,
    /// L tensors (B, T, C), the attention blocks' outputs after `c_proj`.
    pub attention_outputs: Vec<Tensor>,
}

/// The output of the language model.
#[derive(Debug)]
#[non_exhaustive]
pub struct CausalLMOutput {
    /// (B, T, V), or (B, 1, V) for the last position only.
    pub logits: Tensor,
    /// The output of the transformer.
    pub transformer: ModelOutput,
}

/// Collects what the blocks of a pass return, layer by layer.
pub(crate) struct Collected<'a> {
    pub(crate) weights: WeightsByLayer<'a>,
    pub(crate) cross_weights: WeightsByLayer<'a>,
    hidden_states: Option<Vec<Tensor>>,
    attention_outputs: Option<Vec<Tensor>>,
    summaries: Vec<Summary>,
    last_only: bool,
}

impl<'a> Collected<'a> {
    /// An empty collection for the outputs that `args` request from a model with this number of layers.
    pub(crate) fn new(args: &ForwardArgs<'a>, layers: usize) -> Result<Self> {
        let all_cross = args.output_attentions && args.encoder.is_some();
        Ok(Self {
            weights: WeightsByLayer::new(args.weights, args.output_attentions, layers)?,
            cross_weights: WeightsByLayer::new(args.cross_weights, all_cross, layers)?,
            hidden_states: args.output_hidden_states.then(Vec::new),
            attention_outputs: args.output_attention_outputs.then(Vec::new),
            summaries: vec![],
            last_only: args.last_logits_only,
        })
    }

    /// Whether any output besides the weights of self-attention covers all positions after this layer.
    pub(crate) fn cover_all_positions(&self, layer: usize) -> bool {
        self.hidden_states.is_some()
            || self.attention_outputs.is_some()
            || !self.cross_weights.of_layer(layer).is_empty()
    }

    /// Takes what a layer has made of the stream `before` it, and returns the stream after it.
    pub(crate) fn take(&mut self, layer: usize, before: Tensor, output: BlockOutput) -> Tensor {
        if let Some(states) = &mut self.hidden_states {
            states.push(before);
        }
        if let Some(outputs) = &mut self.attention_outputs {
            outputs.extend(output.attention_output);
        }
        self.weights.take(layer, output.weights);
        self.cross_weights.take(layer, output.cross_weights);
        self.summaries.extend(output.summary);
        output.hidden_state
    }

    /// The results, with the output of `ln_f`.
    pub(crate) fn finish(self, normed: Tensor) -> Result<ModelOutput> {
        let mut hidden_states = self.hidden_states;
        if let Some(states) = &mut hidden_states {
            states.push(normed.clone());
        }
        let rows = normed.dim(1)?;
        let last_hidden_state = if self.last_only { normed.narrow(1, rows - 1, 1)? } else { normed };
        Ok(ModelOutput {
            last_hidden_state,
            hidden_states: hidden_states.unwrap_or_default(),
            attentions: self.weights.of_all,
            weights: self.weights.found.into_iter().flatten().collect(),
            cross_attentions: self.cross_weights.of_all,
            cross_weights: self.cross_weights.found.into_iter().flatten().collect(),
            summaries: self.summaries,
            attention_outputs: self.attention_outputs.unwrap_or_default(),
        })
    }
}

/// The weights that a pass returns, collected layer by layer.
pub(crate) struct WeightsByLayer<'a> {
    asked: &'a [ChosenWeights],
    /// Whether all weights of each layer are asked for besides.
    all: bool,
    found: Vec<Option<Tensor>>,
    of_all: Vec<Tensor>,
}

impl<'a> WeightsByLayer<'a> {
    fn new(asked: &'a [ChosenWeights], all: bool, layers: usize) -> Result<Self> {
        if let Some(beyond) = asked.iter().find(|chosen| chosen.layer >= layers) {
            candle_core::bail!("weights of layer {}: the model has layers 0 to {}", beyond.layer, layers - 1)
        }
        Ok(Self { asked, all, found: vec![None; asked.len()], of_all: vec![] })
    }

    fn places(&self, layer: usize) -> impl Iterator<Item = usize> {
        (0..self.asked.len()).filter(move |&n| self.asked[n].layer == layer)
    }

    /// The weights to request from a layer.
    pub(crate) fn of_layer(&self, layer: usize) -> Vec<Chosen> {
        let chosen = self.places(layer).map(|n| self.asked[n].of.clone());
        chosen.chain(self.all.then(Chosen::default)).collect()
    }

    /// Stores the weights that a layer returned.
    fn take(&mut self, layer: usize, mut weights: Vec<Tensor>) {
        let places: Vec<usize> = self.places(layer).collect();
        self.of_all.extend(weights.drain(places.len().min(weights.len())..));
        places.into_iter().zip(weights).for_each(|(n, found)| self.found[n] = Some(found));
    }
}
