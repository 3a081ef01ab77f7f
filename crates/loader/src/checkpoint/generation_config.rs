//! [`GenerationConfig`]: what `generation_config.json` says, of which the end tokens are used.

use crate::error::LoadError;
use crate::files::Files;
use crate::formats::json;
use gpt2_model::Config;
use gpt2_model::config::TokenIds;
use serde_json::{Map, Value};

/// Fields that say how to sample, search or stop. The rest of the file changes no text: ids of other tokens, caches,
/// outputs, and who wrote it.
const CHANGES_TEXT: &[&str] = &[
    "assistant_early_exit",
    "bad_words_ids",
    "begin_suppress_tokens",
    "constraints",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dola_layers",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "penalty_alpha",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "temperature",
    "token_healing",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
    "watermarking_config",
];

/// The content of `generation_config.json`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// The tokens that end a text: `eos_token_id`. None if the file names none, whatever config.json says.
    pub ends: Vec<u32>,
    /// The settings that would change a text and are not used, by name.
    pub unused: Map<String, Value>,
}

impl GenerationConfig {
    /// Reads a model's `generation_config.json`; `None` if it has none.
    ///
    /// # Errors
    /// When the file is no JSON object, or `eos_token_id` is not a token id, a list of them or null.
    pub fn open(files: &Files) -> Result<Option<Self>, LoadError> {
        let Some((path, bytes)) = &files.settings.generation_config else { return Ok(None) };
        let expected = "generation config";
        let fields: Map<String, Value> = json::read(path, bytes, expected)?;
        let ends = ends(fields.get("eos_token_id")).map_err(LoadError::json(path, expected))?;
        let is_unused =
            |(name, value): &(String, Value)| CHANGES_TEXT.contains(&name.as_str()) && !value.is_null();
        Ok(Some(Self { ends, unused: fields.into_iter().filter(is_unused).collect() }))
    }

    /// A line about the settings that are not used; `None` if the file has none.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let settings: Vec<String> =
            self.unused.iter().map(|(name, value)| format!("{name} {value}")).collect();
        (!settings.is_empty()).then(|| {
            format!("generation_config.json: only its end tokens are used, not {}", settings.join(", "))
        })
    }
}

/// The end tokens; those that no vocabulary has, such as -1, end nothing.
fn ends(value: Option<&Value>) -> Result<Vec<u32>, String> {
    let id = |value: &Value| match value.as_i64() {
        Some(id) => Ok(u32::try_from(id).ok()),
        None => Err(format!("eos_token_id is {value}, expected a token id, a list of them, or null")),
    };
    match value {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::Array(ids)) => {
            Ok(ids.iter().map(id).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
        Some(one) => Ok(id(one)?.into_iter().collect()),
    }
}

/// The config with the end tokens of `generation_config.json`, which ranks above it.
pub(crate) fn with_ends(config: Config, files: &Files) -> Result<Config, LoadError> {
    let Some(found) = GenerationConfig::open(files)? else { return Ok(config) };
    let eos_token_id = match found.ends.as_slice() {
        [] => None,
        [one] => Some(TokenIds::One(*one)),
        _ => Some(TokenIds::Many(found.ends)),
    };
    Ok(Config { eos_token_id, ..config })
}
