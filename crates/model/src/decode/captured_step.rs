//! A decoding step as a CUDA graph: one launch for a token of each row.

use super::outcome::Outcome;
use crate::gpt2::args_and_outputs::{ForwardArgs, Start};
use crate::gpt2::attention::cache::KvCache;
use crate::gpt2::attention::mask::left_padding;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use candle_core::{DType, Result, Tensor, TensorId};
use candle_fused::{CudaGraph, TokenSearch};

/// The step of B rows over one cache: the launches of a pass are recorded once, and what differs from token to token lies in the GPU's
/// memory, from where the kernels read it.
#[derive(Debug)]
pub(super) struct CapturedStep {
    /// Its weights are where the graph reads them as long as it is here.
    model: Gpt2LMHeadModel,
    /// The memory of the cache.
    memory: Option<TensorId>,
    /// The tokens of padding before each row.
    padding: Vec<usize>,
    /// u8 (B, capacity), if a row is padded
    mask: Option<Tensor>,
    /// u32 (1 + 2·B + B·W): the number of positions in the cache, the id of each row, its position, and the W words of it that the
    /// search reads
    state: Tensor,
    /// f32 (B, V)
    logits: Tensor,
    /// The search of the GPU through the logits, and the memory for its results; `None` if all logits are needed.
    search: Option<(TokenSearch, Tensor)>,
    graph: Option<CudaGraph>,
}

impl CapturedStep {
    /// A step of rows with so much padding before them, over a cache with as many rows.
    pub(super) fn new(
        model: &Gpt2LMHeadModel,
        cache: &KvCache,
        padding: Vec<usize>,
        search: Option<TokenSearch>,
    ) -> Result<Self> {
        let device = model.device();
        let rows = padding.len();
        let lengths: Vec<usize> = padding.iter().map(|padding| cache.capacity() - padding).collect();
        let is_padded = padding.iter().any(|&padding| padding > 0);
        let mask = is_padded.then(|| left_padding(&lengths, cache.capacity(), device)).transpose()?;
        let vocabulary = model.config().vocab_size;
        let row_words = search.as_ref().map_or(0, |search| search.row_words(vocabulary));
        let with_found = |search: TokenSearch| {
            let found = Tensor::zeros((rows, search.words(vocabulary)), DType::U32, device)?;
            Ok::<_, candle_core::Error>((search, found))
        };
        Ok(Self {
            model: model.clone(),
            memory: cache.memory(),
            padding,
            mask,
            state: Tensor::zeros(1 + (2 + row_words) * rows, DType::U32, device)?,
            logits: Tensor::zeros((rows, vocabulary), DType::F32, device)?,
            search: search.map(with_found).transpose()?,
            graph: None,
        })
    }

    /// Whether it is for this cache and so much padding before its rows. The sampling of a generation never changes.
    pub(super) fn is_of(&self, cache: &KvCache, padding: &[usize]) -> bool {
        self.memory == cache.memory() && self.padding == padding
    }

    /// The outcome of one more token of each row; `words` are those of all rows that the search reads. The first call runs the
    /// step by itself, so that all its kernels are loaded, and records it.
    pub(super) fn outcome_after(
        &mut self,
        cache: &mut KvCache,
        ids: &[u32],
        words: &[u32],
    ) -> Result<Outcome> {
        cache.check_room(ids.len(), 1, self.model.config().n_layer)?;
        let past = cache.len();
        CudaGraph::overwrite(&self.state, &self.numbers(past, ids, words)?)?;
        if let Some(graph) = &self.graph {
            graph.launch()?;
        } else {
            let graph = self.record(cache);
            self.graph =
                Some(graph.map_err(|e| e.context("this step cannot be a CUDA graph; leave the graph out"))?);
        }
        cache.settle(past + 1);
        Ok(match &self.search {
            None => Outcome::All(self.logits.to_vec2()?),
            Some((search, found)) => {
                Outcome::Found { found: search.read(found)?, logits: self.logits.clone() }
            }
        })
    }

    /// Runs the step, and records it.
    fn record(&self, cache: &mut KvCache) -> Result<CudaGraph> {
        self.run(cache)?;
        let found = self.search.as_ref().map(|(_, found)| found);
        let kept = [Some(&self.state), Some(&self.logits), found, self.mask.as_ref()];
        let kept = kept.into_iter().flatten().cloned().collect();
        CudaGraph::record(self.model.device(), kept, || self.run(cache))
    }

    /// The numbers that a step reads in `state`.
    fn numbers(&self, past: usize, ids: &[u32], words: &[u32]) -> Result<Vec<u32>> {
        let number = |n: usize| u32::try_from(n).map_err(candle_core::Error::wrap);
        let mut numbers = vec![number(past)?];
        numbers.extend(ids);
        for padding in &self.padding {
            numbers.push(number(past - padding)?);
        }
        numbers.extend(words);
        Ok(numbers)
    }

    /// A pass over one token of each row whose id, position and place in the cache are in `state`; the logits go to their place.
    fn run(&self, cache: &mut KvCache) -> Result<()> {
        let rows = self.padding.len();
        let part = |first, count| self.state.narrow(0, first, count);
        let ids = part(1, rows)?.reshape((rows, 1))?;
        let positions = part(1 + rows, rows)?.reshape((rows, 1))?;
        let transformer = &self.model.transformer;
        let wpe = &transformer.wpe;
        let Some(stream) = transformer.wte.with_positions(&ids, wpe, 0, Some(&positions))? else {
            candle_core::bail!("no kernel adds the embeddings of tokens and positions of this model")
        }; // (B, 1, C)
        let held = cache.len();
        cache.follow(&part(0, 1)?);
        let args = ForwardArgs {
            start: Some(Start { layer: 0, stream: &stream }),
            position_ids: Some(&positions),
            attention_mask: self.mask.as_ref(),
            cache: Some(&mut *cache),
            last_logits_only: true,
            ..ForwardArgs::default()
        };
        let output = self.model.forward(&ids, args);
        cache.settle(held);
        let logits = output?.logits.squeeze(1)?.to_dtype(DType::F32)?; // (B, V)
        self.logits.slice_set(&logits, 0, 0)?;
        let Some((search, found)) = &self.search else { return Ok(()) };
        let words = search.row_words(self.logits.dim(1)?);
        let words =
            if words > 0 { Some(part(1 + 2 * rows, rows * words)?.reshape((rows, words))?) } else { None };
        search.find(&self.logits, words.as_ref(), found)
    }
}
