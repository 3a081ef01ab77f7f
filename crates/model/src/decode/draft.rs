//! Drafts: cheap guesses at the next tokens, which [`Generation`](crate::Generation) checks in one pass of the model
//! (speculative decoding, Leviathan et al. 2023, arXiv:2211.17192).
//!
//! Unlike there, no guess is accepted at random: the model's own logits choose each token, with the random numbers of its place,
//! and a guess counts only if it is that token. A good draft makes the text faster, and no draft changes it.

use super::sampling::Sampler;
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::attention::cache::KvCache;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use candle_core::{DType, Device, Result, Tensor};
use std::fmt;

/// Guesses what comes next.
pub trait Draft: fmt::Debug {
    /// Up to `count` tokens that may follow `text`, in order. `sampler` chooses with the random numbers of the generation: a
    /// draft that has logits gets closest to the model by using it.
    ///
    /// # Errors
    /// When the draft cannot compute its guess.
    fn propose(&mut self, text: &[u32], count: usize, sampler: &Sampler) -> Result<Vec<u32>>;
}

impl Draft for Box<dyn Draft + '_> {
    fn propose(&mut self, text: &[u32], count: usize, sampler: &Sampler) -> Result<Vec<u32>> {
        (**self).propose(text, count, sampler)
    }
}

/// Guesses that the text goes on as it did where its last tokens occurred before (prompt lookup decoding, Saxena 2023).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookupDraft {
    /// The most tokens to look for; if they did not occur, fewer are tried.
    pub longest: usize,
}

impl Default for LookupDraft {
    fn default() -> Self {
        Self { longest: 3 }
    }
}

impl Draft for LookupDraft {
    fn propose(&mut self, text: &[u32], count: usize, _: &Sampler) -> Result<Vec<u32>> {
        let before = text.len().saturating_sub(1);
        for length in (1..=self.longest.min(before)).rev() {
            let last = &text[text.len() - length..];
            if let Some(found) = text[..before].windows(length).rposition(|tokens| tokens == last) {
                return Ok(text[found + length..].iter().copied().take(count).collect());
            }
        }
        Ok(vec![])
    }
}

/// Another model of the same vocabulary: a smaller one, or the same weights quantized.
#[derive(Debug)]
pub struct ModelDraft {
    model: Gpt2LMHeadModel,
    cache: KvCache,
    /// The tokens whose keys and values the cache holds.
    read: Vec<u32>,
}

impl ModelDraft {
    /// # Errors
    /// When the device cannot allocate the cache.
    pub fn new(model: Gpt2LMHeadModel) -> Result<Self> {
        let dtype = model.dtype();
        let device = model.device();
        let cache = KvCache::new(model.config(), 1, model.config().n_positions, dtype, device)?;
        Ok(Self { model, cache, read: vec![] })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Gpt2LMHeadModel {
        &self.model
    }
}

impl Draft for ModelDraft {
    fn propose(&mut self, text: &[u32], count: usize, sampler: &Sampler) -> Result<Vec<u32>> {
        let held = self.read.iter().zip(text).take_while(|(a, b)| a == b).count();
        self.read.truncate(held.min(text.len().saturating_sub(1)));
        self.cache.truncate(self.read.len());
        let mut guess = text.to_vec();
        while guess.len() - text.len() < count && guess.len() <= self.cache.capacity() {
            let input = Tensor::new(&guess[self.read.len()..], &Device::Cpu)?;
            let args = ForwardArgs {
                cache: Some(&mut self.cache),
                last_logits_only: true,
                ..ForwardArgs::default()
            };
            let logits = self.model.forward(&input.unsqueeze(0)?, args)?.logits; // (1, 1, V)
            self.read.clone_from(&guess);
            let mut logits = logits.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
            guess.push(sampler.choose(&mut logits, &guess)?);
        }
        Ok(guess.split_off(text.len()))
    }
}

/// Statistics of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drafted {
    /// The passes of the model after the one over the prompt.
    pub passes: usize,
    /// The tokens that the draft proposed.
    pub proposed: usize,
    /// The proposed tokens that became part of the text.
    pub accepted: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Generation, Sampling, init};
    use candle_core::Device;

    #[test]
    fn a_lookup_goes_on_as_after_the_latest_of_the_longest_matches() -> Result<()> {
        let sampler = Sampler::new(Sampling::greedy(), 1);
        for (longest, text, count, expected) in [
            (3, &[1, 2, 3, 9, 8, 1, 2, 3][..], 5, &[9, 8, 1, 2, 3][..]),
            (3, &[1, 2, 3, 9, 8, 1, 2, 3], 2, &[9, 8]),
            // The longest match comes before a later, shorter one.
            (3, &[1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1, &[9]),
            (2, &[1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1, &[8]),
            (1, &[4, 3, 9, 3, 8, 3], 1, &[8]),
            // No two last tokens occurred before, but the last one did.
            (3, &[5, 7, 6, 7], 3, &[6, 7]),
            // A match may reach into the last tokens themselves.
            (3, &[7, 7], 3, &[7]),
            (3, &[1, 2, 3], 3, &[]),
            (3, &[1], 3, &[]),
            (3, &[], 3, &[]),
            (0, &[7, 7], 3, &[]),
        ] {
            let found = LookupDraft { longest }.propose(text, count, &sampler)?;
            assert_eq!(found, expected, "{longest} of {text:?}");
        }
        assert_eq!(LookupDraft::default().longest, 3);
        Ok(())
    }

    #[test]
    fn a_model_guesses_what_it_would_generate_up_to_its_last_position() -> Result<()> {
        let config = Config {
            vocab_size: 37,
            n_positions: 12,
            n_embd: 16,
            n_layer: 2,
            n_head: 2,
            initializer_range: 0.3,
            ..Config::gpt2()
        };
        let model = Gpt2LMHeadModel::load(init::seeded(7, DType::F32, &Device::Cpu), &config)?;
        let prompt = vec![3, 1, 4];
        let mut generation = Generation::new(&model, std::slice::from_ref(&prompt), Sampling::greedy(), 10)?;
        generation.by_ref().try_for_each(|step| step.map(drop))?;
        let text = generation.texts()[0].clone(); // 13 tokens, of which the model reads 12
        let mut draft = ModelDraft::new(model.clone())?;
        let sampler = Sampler::new(Sampling::greedy(), 3);
        // The same text twice, a shorter one, and texts that end where the positions do.
        for (length, count, guesses) in
            [(5, 3, 3), (5, 3, 3), (9, 2, 2), (3, 4, 4), (11, 3, 2), (12, 3, 1), (13, 3, 0), (4, 1, 1)]
        {
            let guess = draft.propose(&text[..length], count, &sampler)?;
            assert_eq!(guess, text[length..length + guesses], "{count} after {length}");
        }
        assert_eq!(draft.propose(&[9, 9, 9, 9], 2, &sampler)?.len(), 2, "another text");
        assert_eq!(draft.propose(&text[..5], 3, &sampler)?, text[5..8]);
        Ok(())
    }
}
