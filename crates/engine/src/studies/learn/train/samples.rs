//! Texts that a model in training writes, and its loss by bytes.

use super::Options;
use crate::spelling::Spelling;
use anyhow::bail;
use gpt2_loader::Tokenizer;
use gpt2_model::{Generation, Sampling};
use gpt2_train::{Dataset, Trainer};

/// Draws among so many of the most probable tokens.
const TOP_K: usize = 40;
/// The tokens of the validation data that begin a sample where no prompt is given.
const BEGINNING: usize = 8;

/// Writes texts with a model in training.
#[derive(Debug)]
pub struct Samples<'a> {
    tokenizer: Option<&'a Tokenizer>,
    prompt: Vec<u32>,
    number: usize,
    tokens: usize,
    seed: u64,
}

impl<'a> Samples<'a> {
    /// The samples that the options ask for. Without a tokenizer, they are ids.
    ///
    /// # Errors
    /// When the prompt is empty, needs a tokenizer, or is too long for the model.
    pub fn new(
        options: &Options,
        tokenizer: Option<&'a Tokenizer>,
        data: &Dataset,
        n_positions: usize,
        seed: u64,
        spelling: Spelling,
    ) -> anyhow::Result<Self> {
        let option = spelling.option("sample-prompt");
        let prompt = match (&options.sample_prompt, tokenizer) {
            (Some(_), None) => bail!("{option}: is a text, and there is no tokenizer"),
            (Some(text), Some(tokenizer)) => tokenizer.encode(text)?,
            (None, _) => data.validation().iter().take(BEGINNING.min(n_positions / 2)).copied().collect(),
        };
        if options.num_samples > 0 && !(1..n_positions).contains(&prompt.len()) {
            bail!("{option}: has {} tokens, expected 1 to {}", prompt.len(), n_positions - 1);
        }
        let tokens = options.sample_tokens.min((n_positions + 1).saturating_sub(prompt.len()));
        Ok(Self { tokenizer, prompt, number: options.num_samples, tokens, seed })
    }

    /// The texts, prompts included, that the model writes now. They depend on the seed and the weights alone, and training does not
    /// depend on them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write(&self, trainer: &Trainer) -> anyhow::Result<Vec<String>> {
        if self.number == 0 {
            return Ok(vec![]);
        }
        let model = trainer.frozen()?;
        let text = |number: usize| {
            let seed = self.seed.wrapping_add(number as u64);
            let sampling = Sampling { top_k: Some(TOP_K), seed, ..Sampling::default() };
            let prompts = std::slice::from_ref(&self.prompt);
            let mut generation = Generation::new(&model, prompts, sampling, self.tokens)?;
            generation.by_ref().try_for_each(|step| step.map(drop))?;
            let ids = generation.texts()[0].clone();
            Ok(self.tokenizer.map_or_else(|| format!("{ids:?}"), |tokenizer| tokenizer.decode(&ids)))
        };
        (0..self.number).map(text).collect()
    }
}

/// The bytes of text that a validation token has on average; none without a tokenizer.
#[must_use]
pub fn bytes_per_token(tokenizer: Option<&Tokenizer>, data: &Dataset) -> Option<f64> {
    let ids = data.validation();
    let text = tokenizer.filter(|_| !ids.is_empty())?.decode(ids);
    Some(text.len() as f64 / ids.len() as f64)
}

/// A loss in nats a token as bits a byte, which does not depend on how the text is split into tokens.
#[must_use]
pub fn bits_per_byte(loss: f64, bytes_per_token: f64) -> f64 {
    loss / std::f64::consts::LN_2 / bytes_per_token
}
