//! Generation: the decode loop over a cache, and the choice of the next token.
//!
//! The steps run in the same order as in transformers' `generate`: repetition penalty, temperature,
//! top-k, top-p, draw.

use crate::hooks::Hooks;
use crate::mask::{left_padding, position_ids};
use crate::{ForwardArgs, Gpt2LMHeadModel, KvCache};
use candle_core::{D, DType, Result, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How to choose the next token from the logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always picks the most probable token (greedy decoding).
    pub temperature: f64,
    /// Keep only the k most probable tokens.
    pub top_k: Option<usize>,
    /// Keep the fewest tokens whose probabilities sum to p (nucleus sampling, Holtzman et al. 2020).
    pub top_p: Option<f64>,
    /// Makes every token that already occurs in the text less probable: it divides positive logits and
    /// multiplies negative ones (Keskar et al. 2019). 1 changes nothing.
    pub repetition_penalty: f64,
    /// The same seed gives the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: None, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Always picks the most probable token.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Rejects meaningless values.
    ///
    /// # Errors
    /// For a negative temperature, a `top_k` of 0, a `top_p` outside (0, 1] or a penalty that is not above 0.
    pub fn validate(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            candle_core::bail!("temperature is {}, expected a finite number of at least 0", self.temperature)
        }
        if self.top_k == Some(0) {
            candle_core::bail!("top_k is 0, expected at least 1")
        }
        if let Some(p) = self.top_p
            && !(p > 0.0 && p <= 1.0)
        {
            candle_core::bail!("top_p is {p}, expected above 0 and at most 1")
        }
        #[allow(clippy::cast_possible_truncation)] // logits are f32, so they are divided in f32
        let penalty = self.repetition_penalty as f32;
        if !(penalty >= f32::MIN_POSITIVE && penalty.is_finite()) {
            candle_core::bail!(
                "repetition_penalty is {}, expected a finite number above 0",
                self.repetition_penalty
            )
        }
        Ok(())
    }

    /// The next token after `text`, given the logits at its end.
    fn choose(&self, logits: &mut [f32], text: &[u32], rng: &mut ChaCha8Rng) -> Result<u32> {
        self.penalise(logits, text);
        if let Some(i) = logits.iter().position(|l| !l.is_finite()) {
            candle_core::bail!("the logit of token {i} is {}, so no token can be chosen", logits[i])
        }
        if self.temperature == 0.0 {
            let best =
                logits.iter().enumerate().fold(0, |best, (i, l)| if *l > logits[best] { i } else { best });
            return id(best);
        }
        let kept = self.keep(logits);
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        // One draw per step, however many tokens are kept, so that a step's random number does not
        // depend on the filters.
        let mut rest = rng.random::<f64>() * total;
        for (i, p) in &kept {
            rest -= p;
            if rest < 0.0 {
                return id(*i);
            }
        }
        id(kept.last().map_or(0, |(i, _)| *i))
    }

    fn penalise(&self, logits: &mut [f32], text: &[u32]) {
        #[allow(clippy::float_cmp)] // exactly 1 is the documented "off"
        if self.repetition_penalty == 1.0 {
            return;
        }
        #[allow(clippy::cast_possible_truncation)] // logits are f32
        let penalty = self.repetition_penalty as f32;
        let mut seen = text.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            if let Some(l) = logits.get_mut(id as usize) {
                *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
            }
        }
    }

    /// The tokens to draw from, with their probabilities (not normalised), most probable first.
    fn keep(&self, logits: &[f32]) -> Vec<(usize, f64)> {
        let descending = |a: &(usize, f64), b: &(usize, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let mut kept: Vec<(usize, f64)> = logits.iter().map(|&l| f64::from(l)).enumerate().collect();
        if let Some(k) = self.top_k.filter(|&k| k < kept.len()) {
            kept.select_nth_unstable_by(k, descending);
            kept.truncate(k);
        }
        kept.sort_unstable_by(descending);
        let highest = kept.first().map_or(0.0, |(_, l)| *l);
        for (_, l) in &mut kept {
            *l = ((*l - highest) / self.temperature).exp();
        }
        if let Some(top_p) = self.top_p {
            let mass = top_p * kept.iter().map(|(_, p)| p).sum::<f64>();
            let mut sum = 0.0;
            let enough = kept.iter().position(|(_, p)| {
                sum += p;
                sum >= mass
            });
            kept.truncate(enough.map_or(kept.len(), |i| i + 1));
        }
        kept
    }
}

fn id(index: usize) -> Result<u32> {
    u32::try_from(index).map_err(candle_core::Error::wrap)
}

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

    fn rng() -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(1)
    }

    #[test]
    fn top_k_and_top_p_keep_the_most_probable() {
        let logits = [0.0, 3.0, 1.0, 2.0].map(|x: f32| x);
        let ids = |s: Sampling| s.keep(&logits).into_iter().map(|(i, _)| i).collect::<Vec<_>>();
        assert_eq!(ids(Sampling { top_k: Some(2), ..Sampling::default() }), [1, 3]);
        // softmax: 0.644, 0.237, 0.087, 0.032
        assert_eq!(ids(Sampling { top_p: Some(0.64), ..Sampling::default() }), [1]);
        assert_eq!(ids(Sampling { top_p: Some(0.65), ..Sampling::default() }), [1, 3]);
        assert_eq!(ids(Sampling { top_p: Some(1.0), ..Sampling::default() }), [1, 3, 2, 0]);
    }

    #[test]
    fn draws_follow_the_probabilities() -> Result<()> {
        let sampling = Sampling::default();
        let mut rng = rng();
        let mut counts = [0usize; 2];
        for _ in 0..20_000 {
            let mut logits = [3f32.ln(), 0.0]; // 0.75, 0.25
            counts[sampling.choose(&mut logits, &[], &mut rng)? as usize] += 1;
        }
        // Five standard deviations of a binomial with n = 20000, p = 0.75.
        assert!((14_700..15_300).contains(&counts[0]), "{counts:?}");
        Ok(())
    }

    #[test]
    fn a_penalty_makes_what_was_said_less_probable_whatever_its_sign() -> Result<()> {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::greedy() };
        assert_eq!(sampling.choose(&mut [4.0, 3.0], &[0, 0], &mut rng())?, 1);
        assert_eq!(sampling.choose(&mut [-1.0, -1.5], &[0], &mut rng())?, 1);
        Ok(())
    }

    #[test]
    fn what_is_not_finite_is_an_error_and_not_a_token() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for sampling in [Sampling::greedy(), Sampling::default()] {
                assert!(sampling.choose(&mut [0.0, bad], &[], &mut rng()).is_err());
            }
        }
        assert!(Sampling { repetition_penalty: 1e-50, ..Sampling::default() }.validate().is_err());
        let least = Sampling { repetition_penalty: f32::MIN_POSITIVE.into(), ..Sampling::default() };
        assert!(least.validate().is_ok());
    }

    #[test]
    fn top_p_is_a_part_of_what_temperature_and_top_k_leave() {
        let logits = [3f32, 2., 1., 0.]; // 0.644, 0.237, 0.087, 0.032
        let kept = |s: Sampling| s.keep(&logits).len();
        // Of the two most probable tokens, the first has 0.731 and the second 0.269.
        assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.7), ..Sampling::default() }), 1);
        assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.75), ..Sampling::default() }), 2);
        // At temperature 0.5 the first token alone has 0.865.
        assert_eq!(kept(Sampling { temperature: 0.5, top_p: Some(0.8), ..Sampling::default() }), 1);
        assert_eq!(kept(Sampling { top_p: Some(0.8), ..Sampling::default() }), 2);
    }

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
