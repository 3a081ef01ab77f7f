//! Beam search: the most probable texts that a search of bounded width finds, as transformers' `generate` with `num_beams`
//! and without sampling.

use super::generation::room_for;
use super::sampling::{check_penalty, penalize};
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::attention::cache::KvCache;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::Hooks;
use candle_core::{D, DType, Result, Tensor};
use std::borrow::Cow;

/// The options of beam search. The fields have transformers' names and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct BeamSearch {
    /// The number of texts that are continued in parallel.
    pub num_beams: usize,
    /// A text's score is its log-probability divided by `tokens ^ length_penalty`: above 0 prefers long texts.
    pub length_penalty: f64,
    /// Stop as soon as `num_beams` texts have ended, rather than when no running text seems able to surpass them.
    pub early_stopping: bool,
    /// The penalty of [`Sampling`](crate::Sampling), applied to log-probabilities: above 1, tokens that are already in
    /// the text become less probable.
    pub repetition_penalty: f64,
}

impl Default for BeamSearch {
    fn default() -> Self {
        Self { num_beams: 4, length_penalty: 1.0, early_stopping: false, repetition_penalty: 1.0 }
    }
}

/// A text that the search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// The new tokens, including the end token.
    pub ids: Vec<u32>,
    /// The log-probability in nats, divided by `tokens ^ length_penalty`.
    pub score: f64,
}

/// A running text: its new tokens, and their log-probability.
#[derive(Debug, Clone)]
struct Beam {
    ids: Vec<u32>,
    log_probability: f64,
}

/// A running text and a token after it.
struct Candidate {
    beam: usize,
    token: u32,
    log_probability: f64,
}

impl BeamSearch {
    /// Searches for continuations of `prompt` of up to `max_new_tokens` tokens: the best first, at most `num_beams`.
    ///
    /// # Errors
    /// For an empty prompt, settings without a meaning, tokens that do not fit the model's positions, and logits that are not
    /// finite.
    pub fn run(
        &self,
        model: &Gpt2LMHeadModel,
        prompt: &[u32],
        max_new_tokens: usize,
    ) -> Result<Vec<Hypothesis>> {
        self.run_with(model, prompt, max_new_tokens, None, &mut |_, _| Ok(()))
    }

    /// Like [`run`](Self::run), with hooks in every pass: the first one over the prompt, then one over the last token of each running
    /// text. A hook's value has a row for each of them. Calls `progress` after each pass, with the number of new tokens and
    /// `max_new_tokens`.
    ///
    /// # Errors
    /// In the cases of [`run`](Self::run), and for errors from hooks and from `progress`.
    pub fn run_with(
        &self,
        model: &Gpt2LMHeadModel,
        prompt: &[u32],
        max_new_tokens: usize,
        hooks: Option<&dyn Hooks>,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Vec<Hypothesis>> {
        self.validate()?;
        let capacity = room_for(model, prompt.len(), max_new_tokens)?;
        if max_new_tokens == 0 {
            return Ok(vec![]);
        }
        let config = model.config();
        let ends = config.eos_token_id.as_ref().map_or(0, |ids| ids.as_slice().len());
        // Enough to go on even if the most probable ones end.
        let considered = self.num_beams.saturating_mul((1 + ends).max(2));
        let dtype = model.dtype();
        let device = model.device();

        let mut cache = KvCache::new(config, 1, capacity, dtype, device)?;
        let mut input = model.ids(prompt)?; // (beams, T)
        let mut beams = vec![Beam { ids: vec![], log_probability: 0.0 }];
        let mut found: Vec<Hypothesis> = vec![];
        for length in 1..=max_new_tokens {
            let args = ForwardArgs {
                cache: Some(&mut cache),
                last_logits_only: true,
                hooks,
                ..ForwardArgs::default()
            };
            let logits = model.forward(&input, args)?.logits.squeeze(1)?; // (beams, V)
            progress(length, max_new_tokens)?;
            let candidates = self.candidates(&beams, &log_softmax(&logits)?, prompt, considered)?;

            let per_token = (length as f64).powf(self.length_penalty);
            let ends = |candidate: &Candidate| config.is_eos(candidate.token) || length == max_new_tokens;
            let after = |candidate: &Candidate| [&beams[candidate.beam].ids[..], &[candidate.token]].concat();
            for candidate in candidates.iter().take(self.num_beams).filter(|candidate| ends(candidate)) {
                let score = candidate.log_probability / per_token;
                found.push(Hypothesis { ids: after(candidate), score });
            }
            found.sort_by(|a, b| b.score.total_cmp(&a.score));
            found.truncate(self.num_beams);

            let running: Vec<&Candidate> =
                candidates.iter().filter(|candidate| !ends(candidate)).take(self.num_beams).collect();
            let Some(best) = running.first() else { break };
            if found.len() == self.num_beams {
                let hopeless = best.log_probability / per_token <= found[found.len() - 1].score;
                if self.early_stopping || hopeless {
                    break;
                }
            }
            let rows: Vec<u32> = running.iter().filter_map(|c| u32::try_from(c.beam).ok()).collect();
            let tokens: Vec<u32> = running.iter().map(|c| c.token).collect();
            cache = cache.with_rows(&rows)?;
            input = Tensor::new(tokens, device)?.unsqueeze(1)?;
            beams =
                running.iter().map(|c| Beam { ids: after(c), log_probability: c.log_probability }).collect();
        }
        Ok(found)
    }

    fn validate(&self) -> Result<()> {
        if self.num_beams == 0 {
            candle_core::bail!("num_beams is 0, expected at least 1")
        }
        if !self.length_penalty.is_finite() {
            candle_core::bail!("length_penalty is {}, expected a finite number", self.length_penalty)
        }
        check_penalty(self.repetition_penalty)
    }

    /// The `count` most probable candidates, the best first; of equal ones, the lower beam and token first.
    fn candidates(
        &self,
        beams: &[Beam],
        log_probabilities: &[Vec<f32>],
        prompt: &[u32],
        count: usize,
    ) -> Result<Vec<Candidate>> {
        let mut best: Vec<Candidate> = vec![];
        for (beam, (Beam { ids, log_probability: before }, row)) in
            beams.iter().zip(log_probabilities).enumerate()
        {
            if let Some(token) = row.iter().position(|x| !x.is_finite()) {
                candle_core::bail!(
                    "the log-probability of token {token} is {}, so no text can be chosen",
                    row[token]
                )
            }
            let mut row = Cow::Borrowed(row);
            #[allow(clippy::float_cmp)] // exactly 1 is the documented "off"
            let penalizes = self.repetition_penalty != 1.0;
            if penalizes {
                penalize(row.to_mut(), &[prompt, ids].concat(), self.repetition_penalty);
            }
            for (token, &x) in (0u32..).zip(row.iter()) {
                let log_probability = before + f64::from(x);
                let full = best.len() == count;
                if full && best[count - 1].log_probability >= log_probability {
                    continue;
                }
                let place = best.partition_point(|other| other.log_probability >= log_probability);
                best.truncate(count - usize::from(full));
                best.insert(place, Candidate { beam, token, log_probability });
            }
        }
        Ok(best)
    }
}

/// The log-probabilities of `logits` (rows, V), in f32.
fn log_softmax(logits: &Tensor) -> Result<Vec<Vec<f32>>> {
    candle_nn::ops::log_softmax(&logits.to_dtype(DType::F32)?, D::Minus1)?.to_vec2()
}
