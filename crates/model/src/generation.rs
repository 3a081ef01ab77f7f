//! Generation: the decode loop over a cache.

use crate::hooks::Hooks;
use crate::mask::{left_padding, position_ids};
use crate::sampling::Sampling;
use crate::{ForwardArgs, Gpt2LMHeadModel, KvCache};
use candle_core::{D, DType, Result, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Generates one token per row in each step: an iterator over `Vec<Option<u32>>`, with `None` for a
/// row that has ended. It ends when every row has ended, or after `max_new_tokens` steps.
///
/// Prompts of different lengths are padded on the left and masked, and each row has its own positions,
/// so each row gets the same text as it would alone. This also holds for sampling: every row draws from
/// the same random numbers, so a text depends only on its prompt and the seed, not on the rest of the
/// batch.
#[derive(Debug)]
pub struct Generation<'a> {
    model: &'a Gpt2LMHeadModel,
    sampling: Sampling,
    texts: Vec<Vec<u32>>,
    ended: Vec<bool>,
    lengths: Vec<usize>,
    width: usize,
    steps_left: usize,
    rngs: Vec<ChaCha8Rng>,
    cache: KvCache,
    next_input: Tensor,
    hooks: Option<&'a dyn Hooks>,
    failed: bool,
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
        if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
            candle_core::bail!("a prompt needs at least one token")
        }
        let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
        let width = lengths.iter().copied().max().unwrap_or(0);
        let n = model.config().n_positions;
        // The last new token is returned but never fed back to the model.
        let capacity = width.saturating_add(max_new_tokens.saturating_sub(1));
        if capacity > n {
            candle_core::bail!(
                "a prompt of {width} tokens and {max_new_tokens} new ones do not fit the model's \
                 n_positions = {n}; at most {} new tokens do",
                (n + 1).saturating_sub(width)
            )
        }
        let (device, dtype) = (model.transformer.wte.device(), model.transformer.dtype());
        let padded: Vec<u32> = prompts
            .iter()
            .flat_map(|p| std::iter::repeat_n(0, width - p.len()).chain(p.iter().copied()))
            .collect();
        Ok(Self {
            model,
            texts: prompts.to_vec(),
            ended: vec![max_new_tokens == 0; prompts.len()],
            width,
            steps_left: max_new_tokens,
            rngs: vec![ChaCha8Rng::seed_from_u64(sampling.seed); prompts.len()],
            cache: KvCache::new(model.config(), prompts.len(), capacity, dtype, device)?,
            next_input: Tensor::from_vec(padded, (prompts.len(), width), device)?,
            lengths,
            sampling,
            hooks: None,
            failed: false,
        })
    }

    /// Keeps keys and values in `dtype`: f16 or bf16 under a model in f32 takes half the memory, and is rounded.
    ///
    /// # Errors
    /// When the device cannot allocate the cache, or generation has begun.
    pub fn with_cache_dtype(self, dtype: DType) -> Result<Self> {
        if !self.cache.is_empty() {
            candle_core::bail!(
                "the cache holds keys and values already; choose its dtype before the first token"
            )
        }
        let (model, capacity) = (self.model, self.cache.capacity());
        let (rows, device) = (self.texts.len(), model.transformer.wte.device());
        Ok(Self { cache: KvCache::new(model.config(), rows, capacity, dtype, device)?, ..self })
    }

    /// Adds hooks to every pass: the first pass over the prompts, then one pass per new token.
    #[must_use]
    pub fn with_hooks(self, hooks: &'a dyn Hooks) -> Self {
        Self { hooks: Some(hooks), ..self }
    }

    /// Each row's text so far: the prompt and the generated tokens.
    #[must_use]
    pub fn texts(&self) -> &[Vec<u32>] {
        &self.texts
    }

    fn step(&mut self) -> Result<Vec<Option<u32>>> {
        let t = self.next_input.dim(1)?;
        let s = self.cache.len() + t;
        // Rows grow with each step, but the padding stays the same.
        let grown: Vec<usize> = self.lengths.iter().map(|l| l + s - self.width).collect();
        let padded = self.lengths.iter().any(|&l| l != self.width);
        let mask = if padded { Some(left_padding(&grown, s, self.next_input.device())?) } else { None };
        let positions =
            mask.as_ref().map(|m| position_ids(m)?.narrow(1, s - t, t)?.contiguous()).transpose()?;
        let args = ForwardArgs {
            position_ids: positions.as_ref(),
            attention_mask: mask.as_ref(),
            cache: Some(&mut self.cache),
            last_logits_only: true,
            hooks: self.hooks,
            ..ForwardArgs::default()
        };
        let logits = self.model.forward(&self.next_input, args)?.logits; // (B, 1, V)
        let mut rows = logits.squeeze(1)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;

        let mut chosen = Vec::with_capacity(rows.len());
        for (i, logits) in rows.iter_mut().enumerate() {
            if self.ended[i] {
                chosen.push(None);
                continue;
            }
            let token = self.sampling.choose(logits, &self.texts[i], &mut self.rngs[i])?;
            self.texts[i].push(token);
            self.ended[i] = self.model.config().is_eos(token);
            chosen.push(Some(token));
        }
        let input: Vec<u32> = chosen.iter().map(|c| c.unwrap_or(0)).collect();
        self.next_input = Tensor::new(input, self.next_input.device())?.unsqueeze(D::Minus1)?;
        self.steps_left -= 1;
        Ok(chosen)
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Vec<Option<u32>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.steps_left == 0 || self.ended.iter().all(|&ended| ended) {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::init::seeded;
    use candle_core::Device;

    #[test]
    fn a_penalty_falls_on_the_prompt_and_on_what_was_generated() -> Result<()> {
        let config = Config {
            vocab_size: 11,
            n_positions: 8,
            n_embd: 8,
            n_layer: 1,
            n_head: 2,
            initializer_range: 0.3,
            eos_token_id: None,
            ..Config::gpt2()
        };
        let model = Gpt2LMHeadModel::load(seeded(7, DType::F32, &Device::Cpu), &config)?;
        let text = |repetition_penalty, prompt: u32| -> Result<Vec<u32>> {
            let sampling = Sampling { repetition_penalty, ..Sampling::greedy() };
            let mut generation = Generation::new(&model, &[vec![prompt]], sampling, 4)?;
            generation.by_ref().try_for_each(|step| step.map(drop))?;
            Ok(generation.texts()[0].clone())
        };
        let repeats = |text: &[u32]| (1..text.len()).any(|i| text[..i].contains(&text[i]));
        let mut echoes = 0;
        for prompt in 0..11 {
            echoes += usize::from(text(1.0, prompt)?[1] == prompt);
            let text = text(1e9, prompt)?;
            assert!(!repeats(&text), "{text:?}");
        }
        assert!(echoes > 0, "without a penalty no prompt is repeated: this shows nothing");
        Ok(())
    }
}
