//! The report of a continued prompt, and the settings that its text depends on.

use super::args::GenerateArgs;
use super::draft;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::texts::Continuation;
use gpt2_engine::texts::Prompt;
use gpt2_loader::Tokenizer;
use gpt2_model::{Generation, Sampling};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Report {
    provenance: RunProvenance,
    sampling: SamplingSettings,
    model: String,
    prompt_ids: Vec<u32>,
    /// The generated ids, including the end token.
    ids: Vec<u32>,
    /// Their text without the end token, up to a stop string; `None` for a prompt of ids.
    text: Option<String>,
    stopped_at_eos: bool,
    /// The stop string that ended the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_at: Option<String>,
    /// `None` for one of many texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_second: Option<f64>,
    /// With `--draft`: the counts of its guesses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draft: Option<draft::Report>,
}

impl Report {
    pub(super) fn new(
        args: &GenerateArgs,
        opened: &Opened,
        provenance: RunProvenance,
        prompt: Prompt,
        found: Continuation<&Tokenizer>,
        max_new_tokens: usize,
    ) -> Self {
        let Sampling { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed } =
            sampling(args);
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
            model: opened.name.clone(),
            prompt_ids: prompt.ids,
            stopped_at_eos: found.is_at_end(),
            stopped_at: found.stopped_at().map(str::to_owned),
            text: prompt.text.map(|_| found.text),
            ids: found.ids,
            seconds: None,
            tokens_per_second: None,
            draft: None,
        }
    }
}

/// The other settings that the text depends on.
#[derive(Serialize)]
struct SamplingSettings {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    typical_p: Option<f64>,
    repetition_penalty: f64,
    seed: u64,
    max_new_tokens: usize,
}

pub(super) fn sampling(args: &GenerateArgs) -> Sampling {
    let base = if args.greedy {
        Sampling::greedy()
    } else {
        Sampling {
            temperature: args.temperature,
            top_k: (args.top_k > 0).then_some(args.top_k),
            top_p: args.top_p,
            min_p: args.min_p,
            typical_p: args.typical_p,
            ..Sampling::default()
        }
    };
    Sampling { repetition_penalty: args.repetition_penalty, seed: args.model.run.seed, ..base }
}

/// The most tokens to generate.
pub(super) fn new_tokens(args: &GenerateArgs, opened: &Opened, prompt: &Prompt) -> usize {
    gpt2_engine::texts::new_tokens(args.max_new_tokens, opened.model.config(), prompt.ids.len())
}

/// An empty continuation of a prompt: text, or ids after a prompt of ids.
pub(super) fn continuation<'a>(
    opened: &'a Opened,
    prompt: &Prompt,
    stops: &[String],
) -> anyhow::Result<Continuation<&'a Tokenizer>> {
    let tokenizer = prompt.text.as_ref().map(|_| opened.tokenizer()).transpose()?;
    Ok(Continuation::new(opened.model.config(), tokenizer, stops))
}

pub(super) fn generation<'a>(
    args: &GenerateArgs,
    opened: &'a Opened,
    prompts: &[Vec<u32>],
    max_new_tokens: usize,
) -> candle_core::Result<Generation<'a>> {
    let generation = Generation::new(&opened.model, prompts, sampling(args), max_new_tokens)?;
    match args.kv {
        Some(kv) => generation.with_cache_dtype(kv),
        None => Ok(generation),
    }
}
