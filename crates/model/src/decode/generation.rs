//! Generation: the decode loop over a cache.

use super::draft::{Draft, Drafted};
pub use super::passes::Paused;
use super::passes::{HookedModel, Row};
use super::sampling::{Sampler, Sampling};
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::attention::cache::KvCache;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::Hooks;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::Implementation;
use candle_fused::attention::FEW_QUERIES;
use candle_fused::cache::CacheDType;
use std::collections::VecDeque;

/// Generates one token per row in each step: an iterator over `Vec<Option<u32>>`, with `None` for a
/// row that has ended or waits. It ends when every row has ended.
///
/// Prompts of different lengths are padded on the left and masked, and each row has its own positions,
/// so each row gets the same text as it would alone. This also holds for sampling: every row draws from
/// the same random numbers, so a text depends only on its prompt and the seed, not on the rest of the
/// batch. On a GPU, and on the CPU with weights that are not packed, products of up to 8 rows and of more round
/// differently, so that of two tokens of nearly the same logit the other one may come. Rows that have ended leave the passes, and
/// [`replace`](Self::replace) gives their place to another prompt; [`add`](Self::add) makes a place. Without hooks, prompts of like length are read together.
#[derive(Debug)]
pub struct Generation<'a> {
    model: &'a Gpt2LMHeadModel,
    hooks: Option<&'a dyn Hooks>,
    checks: Option<Checks<'a>>,
    at: Paused,
}

/// The number of positions that a prompt of `width` tokens and `new` tokens after it need.
pub(crate) fn room_for(model: &Gpt2LMHeadModel, width: usize, new: usize) -> Result<usize> {
    if width == 0 {
        candle_core::bail!("a prompt needs at least one token")
    }
    let n = model.config().n_positions;
    // The last new token is returned but never fed back to the model.
    let positions = width.saturating_add(new.saturating_sub(1));
    if positions > n {
        candle_core::bail!(
            "a prompt of {width} tokens and {new} new ones do not fit the model's n_positions = {n}; at most {} new tokens do",
            (n + 1).saturating_sub(width)
        )
    }
    Ok(positions)
}

/// A draft, and the tokens that the last pass found to follow the text.
#[derive(Debug)]
struct Checks<'a> {
    draft: Box<dyn Draft + 'a>,
    found: VecDeque<u32>,
    drafted: Drafted,
}

impl<'a> Generation<'a> {
    /// Prepares to generate up to `max_new_tokens` tokens after each of `prompts`.
    ///
    /// # Errors
    /// When a prompt is empty, the sampling values are meaningless, or the longest prompt and the new
    /// tokens together exceed the model's positions.
    pub fn new(
        model: &'a Gpt2LMHeadModel,
        prompts: &[Vec<u32>],
        sampling: Sampling,
        max_new_tokens: usize,
    ) -> Result<Self> {
        sampling.validate()?;
        let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
        if lengths.contains(&0) {
            candle_core::bail!("a prompt needs at least one token")
        }
        let width = lengths.iter().copied().max().unwrap_or(0);
        let capacity = room_for(model, width, max_new_tokens)?;
        let at = Paused {
            texts: prompts.to_vec(),
            limits: lengths.iter().map(|length| length.saturating_add(max_new_tokens)).collect(),
            ended: vec![max_new_tokens == 0; prompts.len()],
            sampling: sampling.clone(),
            samplers: lengths.iter().map(|&length| Sampler::new(sampling.clone(), length)).collect(),
            waiting: if max_new_tokens == 0 { vec![] } else { (0..prompts.len()).collect() },
            rows: vec![],
            cache: KvCache::new(model.config(), prompts.len(), capacity, model.dtype(), model.device())?,
            with_graph: false,
            captured: None,
            failed: false,
        };
        Ok(Self::resume(model, at))
    }

    /// Goes on with a generation that was paused, by the same model; its hooks are given anew.
    #[must_use]
    pub fn resume(model: &'a Gpt2LMHeadModel, at: Paused) -> Self {
        Self { model, hooks: None, checks: None, at }
    }

    /// Sets a generation aside between two steps, so that a caller can keep it without borrowing the model. A draft is let go:
    /// without it, the same tokens follow.
    #[must_use]
    pub fn pause(self) -> Paused {
        let Self { checks, mut at, .. } = self;
        if checks.is_some() && !at.cache.is_empty() {
            // The cache may hold tokens that the draft found and that no step has returned.
            at.cache.truncate(at.texts[0].len() - 1);
            at.waiting.clear();
            at.rows = vec![Row { text: Some(0), start: 0 }];
        }
        at
    }

    /// Keeps keys and values in `dtype`, and rounds them: f16 or bf16 under a model in f32 takes half the memory, and
    /// [`CacheDType::Q8_0`] about a quarter.
    ///
    /// # Errors
    /// When the device cannot allocate the cache or has none of this dtype, for [`CacheDType::Q8_0`] under a model that is not in
    /// f32, or when generation has begun.
    pub fn with_cache_dtype(self, dtype: impl Into<CacheDType>) -> Result<Self> {
        let dtype = dtype.into();
        if !self.at.cache.is_empty() {
            candle_core::bail!(
                "the cache holds keys and values already; choose its dtype before the first token"
            )
        }
        let model = self.model;
        let capacity = self.at.cache.capacity();
        let of_model = model.dtype();
        if dtype == CacheDType::Q8_0 && of_model != DType::F32 {
            candle_core::bail!("a cache in q8_0 is for a model in f32, got one in {}", of_model.as_str())
        }
        let rows = self.at.texts.len();
        let device = model.device();
        let cache = KvCache::new(model.config(), rows, capacity, dtype, device)?;
        Ok(Self { at: Paused { cache, ..self.at }, ..self })
    }

    /// Records the step for a token as one CUDA graph, and launches that for each further token: the same text, with one call of the
    /// driver for a token in place of one for each kernel. The second token is computed as without a graph, and the pass
    /// recorded after it; again when rows of a batch have left or joined. A batch whose rows often change records often, and may take longer.
    /// No other host thread may use the device while a step is recorded, nor wait for the whole GPU, see
    /// [`CudaGraph::record`](candle_fused::CudaGraph::record). Neither hooks nor a draft can be combined with it.
    ///
    /// # Errors
    /// Returns the errors of [`check_cuda_graph`](Self::check_cuda_graph). A step fails if a layer has no kernel that can be repeated.
    pub fn with_cuda_graph(mut self) -> Result<Self> {
        self.check_cuda_graph()?;
        self.at.with_graph = true;
        Ok(self)
    }

    /// Checks that steps can be CUDA graphs here.
    ///
    /// # Errors
    /// On another device than CUDA's, with eager attention, in f64, with a cache in another dtype than the model's, with hooks, and with
    /// a draft.
    pub fn check_cuda_graph(&self) -> Result<()> {
        if self.checks.is_some() {
            candle_core::bail!(
                "no step can be a CUDA graph here: a draft has passes of several tokens; leave it out"
            )
        }
        let by = HookedModel { model: self.model, hooks: self.hooks };
        by.check_cuda_graph(&self.at.cache)
    }

    /// Adds hooks to every pass: the first pass over the prompts, then one pass per new token. Give them before the first step: of a
    /// batch without hooks, rows that have ended may have left.
    #[must_use]
    pub fn with_hooks(self, hooks: &'a dyn Hooks) -> Self {
        Self { hooks: Some(hooks), ..self }
    }

    /// Lets `draft` guess the next tokens, and checks up to three guesses in each pass. The text stays the same to the last
    /// token: with so few positions in a pass, none of them changes the bits of another's logits. Hooks also see the guesses
    /// that turn out wrong, and a hook that replaces values may round otherwise than alone.
    ///
    /// # Errors
    /// Returns the errors of [`check_draft`](Self::check_draft).
    pub fn with_draft(self, draft: impl Draft + 'a) -> Result<Self> {
        self.check_draft()?;
        let checks = Checks { draft: Box::new(draft), found: VecDeque::new(), drafted: Drafted::default() };
        Ok(Self { checks: Some(checks), ..self })
    }

    /// Checks that a draft can be used here. Call it before you load one.
    ///
    /// # Errors
    /// For several prompts, and where a position's bits depend on the others of its pass: on a GPU, with eager attention, in
    /// f64, and in builds with `mkl` or `accelerate`.
    pub fn check_draft(&self) -> Result<()> {
        let rows = self.at.texts.len();
        let device = self.model.device();
        let cause = if rows != 1 {
            format!("it guesses for one prompt, got {rows}")
        } else if !device.is_cpu() {
            "on a GPU the text could change; use the CPU".to_owned()
        } else if self.model.config().attn_implementation.on(device) != Implementation::Fused {
            "with eager attention the text could change; use fused attention".to_owned()
        } else if self.model.dtype() == DType::F64 {
            "in f64 the text could change; use f32, f16 or bf16".to_owned()
        } else if cfg!(any(feature = "mkl", feature = "accelerate")) {
            "with MKL or Accelerate the text could change; build without them".to_owned()
        } else {
            return Ok(());
        };
        candle_core::bail!("no draft can guess here: {cause}")
    }

    /// Statistics of the draft so far, if there is one.
    #[must_use]
    pub fn drafted(&self) -> Option<Drafted> {
        self.checks.as_ref().map(|checks| checks.drafted)
    }

    /// Ends a row, which gets no more tokens: at a stop string, for example.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn end(&mut self, row: usize) {
        self.at.ended[row] = true;
        self.at.waiting.retain(|&waits| waits != row);
    }

    /// Each row's text so far: the prompt and the generated tokens.
    #[must_use]
    pub fn texts(&self) -> &[Vec<u32>] {
        &self.at.texts
    }

    /// Gives the place of a row that has ended to another prompt, whose text begins anew, with the same sampling. It is read once
    /// such prompts are a quarter of the rows, or nothing else runs.
    ///
    /// # Errors
    /// When the row has not ended, the prompt is empty or has no room, or there are hooks, which see all rows from the beginning, or a
    /// draft.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn replace(&mut self, row: usize, prompt: &[u32], max_new_tokens: usize) -> Result<()> {
        if !self.at.ended[row] {
            candle_core::bail!("row {row} has not ended; its place is not free")
        }
        self.check_prompt(prompt, max_new_tokens)?;
        let at = &mut self.at;
        // The text that goes may still have a row, which leaves later.
        at.rows.iter_mut().filter(|of| of.text == Some(row)).for_each(|of| of.text = None);
        at.samplers[row] = Sampler::new(at.sampling.clone(), prompt.len());
        at.texts[row] = prompt.to_vec();
        at.limits[row] = prompt.len() + max_new_tokens;
        at.ended[row] = max_new_tokens == 0;
        if max_new_tokens > 0 {
            at.waiting.push(row);
        }
        Ok(())
    }

    /// Adds a row for another prompt, which waits until it is read as by [`replace`](Self::replace). Returns its index.
    ///
    /// # Errors
    /// When the prompt is empty or has no room, or there are hooks or a draft.
    pub fn add(&mut self, prompt: &[u32], max_new_tokens: usize) -> Result<usize> {
        self.check_prompt(prompt, max_new_tokens)?;
        let at = &mut self.at;
        let row = at.texts.len();
        at.samplers.push(Sampler::new(at.sampling.clone(), 0));
        at.texts.push(vec![]);
        at.limits.push(0);
        at.ended.push(true);
        self.replace(row, prompt, max_new_tokens)?;
        Ok(row)
    }

    /// Refuses a prompt that has no room, and any beside hooks or a draft.
    fn check_prompt(&self, prompt: &[u32], max_new_tokens: usize) -> Result<()> {
        if self.hooks.is_some() || self.checks.is_some() {
            candle_core::bail!("with hooks or a draft, no prompt joins those from the beginning")
        }
        room_for(self.model, prompt.len(), max_new_tokens).map(drop)
    }

    /// The next token of the only row, if a draft guesses: from the last pass, or from another one.
    fn checked(&mut self, checks: &mut Checks) -> Result<u32> {
        if checks.found.is_empty() {
            self.check(checks)?;
        }
        let Some(token) = checks.found.pop_front() else {
            candle_core::bail!("a pass gives at least one token")
        };
        self.at.push(self.model.config(), 0, token);
        Ok(token)
    }

    /// The logits after what the cache lacks of `text` and after each token of `guess`: (1 or T, V)
    fn logits_after(&mut self, text: &[u32], guess: &[u32]) -> Result<Tensor> {
        let input = [&text[self.at.cache.len()..], guess].concat();
        let input = Tensor::new(input, &Device::Cpu)?.unsqueeze(0)?; // (1, T)
        let args = ForwardArgs {
            cache: Some(&mut self.at.cache),
            last_logits_only: guess.is_empty(),
            hooks: self.hooks,
            ..ForwardArgs::default()
        };
        self.model.forward(&input, args)?.logits.squeeze(0)
    }

    /// One pass over the tokens that the cache lacks and what the draft guesses comes after them.
    fn check(&mut self, checks: &mut Checks) -> Result<()> {
        let mut text = self.at.texts[0].clone();
        let vocabulary = self.model.config().vocab_size;
        // A pass over the prompt takes other kernels than one over a few tokens: it is the same with a draft as without.
        let most = if self.at.cache.is_empty() {
            0
        } else {
            (self.at.limits[0] - text.len() - 1).min(FEW_QUERIES - 1)
        };
        let guess = if most == 0 {
            vec![]
        } else {
            checks.draft.propose(&text, most, &self.at.samplers[0]).map_err(|e| e.context("the draft"))?
        };
        let known = |&token: &u32| (token as usize) < vocabulary;
        let guess: Vec<u32> = guess.into_iter().take(most).take_while(known).collect();
        if !self.at.cache.is_empty() {
            checks.drafted.passes += 1;
            checks.drafted.proposed += guess.len();
        }
        let logits = match self.logits_after(&text, &guess) {
            // A cache in 8 bits refuses numbers that are not finite, which a wrong guess may have.
            Err(_) if !guess.is_empty() => self.logits_after(&text, &[])?,
            logits => logits?,
        };
        let sampler = &self.at.samplers[0];
        for (i, mut logits) in logits.to_dtype(DType::F32)?.to_vec2::<f32>()?.into_iter().enumerate() {
            let token = match sampler.choose(&mut logits, &text) {
                Ok(token) => token,
                // What was found comes first: the next pass begins here and fails alike.
                Err(_) if i > 0 => break,
                Err(error) => return Err(error),
            };
            text.push(token);
            checks.found.push_back(token);
            let right = guess.get(i) == Some(&token);
            checks.drafted.accepted += usize::from(right);
            if !right || self.model.config().is_eos(token) {
                break;
            }
        }
        // The model has not read the last token, and what it read of wrong guesses goes.
        self.at.cache.truncate(text.len() - 1);
        Ok(())
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Vec<Option<u32>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at.failed || self.at.ended.iter().all(|&ended| ended) {
            return None;
        }
        let step = match self.checks.take() {
            None => self.at.step(HookedModel { model: self.model, hooks: self.hooks }),
            Some(mut checks) => {
                let token = self.checked(&mut checks);
                self.checks = Some(checks);
                token.map(|token| vec![Some(token)])
            }
        };
        self.at.failed = step.is_err();
        Some(step)
    }
}

#[cfg(test)]
#[path = "generation_tests.rs"]
mod tests;
