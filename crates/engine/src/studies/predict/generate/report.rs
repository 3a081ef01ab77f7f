//! The reports of continued prompts.

use super::draft::DraftCounts;
use super::options::Options;
use super::ready::Ready;
use crate::open::Opened;
use crate::provenance::RunProvenance;
use crate::texts::{Continuation, Prompt};
use gpt2_loader::Tokenizer;
use gpt2_model::Sampling;
use gpt2_model::beams::{BeamSearch, Hypothesis};
use serde::Serialize;

/// A continued prompt.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Text that was drawn.
    Drawn(Box<Drawn>),
    /// The most probable texts that a search found.
    Searched(Box<Searched>),
}

/// A text that was drawn, token by token.
#[derive(Debug, Serialize)]
pub struct Drawn {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The settings that it depends on.
    pub sampling: SamplingSettings,
    /// The model's name.
    pub model: String,
    /// The prompt's ids.
    pub prompt_ids: Vec<u32>,
    /// The generated ids, including the end token.
    pub ids: Vec<u32>,
    /// Their text without the end token, up to a stop string; `None` for a prompt of ids.
    pub text: Option<String>,
    /// The text, or after a prompt of ids the ids without the end token, with commas between them.
    #[serde(skip)]
    pub shown: String,
    /// Whether the text ended by itself.
    pub stopped_at_eos: bool,
    /// The stop string that ended the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<String>,
    /// The time that it took; `None` for one of many texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The pace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// The counts of a draft's guesses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftCounts>,
}

/// The settings of a drawn text, besides the model's.
#[derive(Debug, Serialize)]
pub struct SamplingSettings {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    typical_p: Option<f64>,
    repetition_penalty: f64,
    seed: u64,
    max_new_tokens: usize,
}

/// The most probable texts that a search found.
#[derive(Debug, Serialize)]
pub struct Searched {
    /// The facts that they depend on.
    pub provenance: RunProvenance,
    /// The model's name.
    pub model: String,
    /// The number of texts that were continued in parallel.
    pub num_beams: usize,
    /// The power of the length by which scores are divided.
    pub length_penalty: f64,
    /// Whether the search ended with the first `num_beams` texts.
    pub early_stopping: bool,
    /// The penalty on tokens of the text.
    pub repetition_penalty: f64,
    /// The most new tokens.
    pub max_new_tokens: usize,
    /// The prompt's ids.
    pub prompt_ids: Vec<u32>,
    /// The best first.
    pub hypotheses: Vec<BeamText>,
    /// The time that the search took.
    pub seconds: f64,
}

/// A text that a search found.
#[derive(Debug, Serialize)]
pub struct BeamText {
    /// The generated ids, including the end token.
    pub ids: Vec<u32>,
    /// Their text without the end token; `None` for a prompt of ids.
    pub text: Option<String>,
    /// The text, or after a prompt of ids the ids without the end token, with commas between them.
    #[serde(skip)]
    pub shown: String,
    /// The log-probability in nats, divided by `tokens ^ length_penalty`.
    pub score: f64,
}

impl Drawn {
    pub(super) fn new(options: &Options, seed: u64, ready: Ready, found: Continuation<&Tokenizer>) -> Self {
        let Ready { model, provenance, prompt, most: max_new_tokens, .. } = ready;
        let Sampling { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed } =
            options.sampling(seed);
        Self {
            provenance,
            sampling: SamplingSettings {
                temperature,
                top_k,
                top_p,
                min_p,
                typical_p,
                repetition_penalty,
                seed,
                max_new_tokens,
            },
            model,
            prompt_ids: prompt.ids,
            stopped_at_eos: found.is_at_end(),
            stopped_at: found.stopped_at().map(str::to_owned),
            text: prompt.text.map(|_| found.text.clone()),
            shown: found.text,
            ids: found.ids,
            seconds: None,
            tokens_per_second: None,
            draft: None,
        }
    }
}

impl Searched {
    pub(super) fn new(
        opened: &Opened,
        search: BeamSearch,
        ready: Ready,
        found: Vec<Hypothesis>,
        seconds: f64,
    ) -> anyhow::Result<Self> {
        let Ready { model, provenance, prompt, most: max_new_tokens, .. } = ready;
        let BeamSearch { num_beams, length_penalty, early_stopping, repetition_penalty } = search;
        let text = |Hypothesis { ids, score }| beam_text(opened, &prompt, ids, score);
        Ok(Self {
            provenance,
            model,
            num_beams,
            length_penalty,
            early_stopping,
            repetition_penalty,
            max_new_tokens,
            hypotheses: found.into_iter().map(text).collect::<anyhow::Result<_>>()?,
            prompt_ids: prompt.ids,
            seconds,
        })
    }
}

fn beam_text(opened: &Opened, prompt: &Prompt, ids: Vec<u32>, score: f64) -> anyhow::Result<BeamText> {
    let ends = ids.last().is_some_and(|id| opened.model.config().is_eos(*id));
    let said = &ids[..ids.len() - usize::from(ends)];
    let text = prompt.text.is_some().then(|| opened.tokenizer().map(|t| t.decode(said))).transpose()?;
    let numbers = || said.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let shown = text.clone().unwrap_or_else(numbers);
    Ok(BeamText { ids, text, shown, score })
}
