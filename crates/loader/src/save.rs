//! Saving a model so that transformers loads it, and so does this crate.

use crate::{LoadError, Tokenizer, atomic};
use candle_core::{DType, Tensor};
use gpt2_model::parameters::LM_HEAD;
use gpt2_model::{Config, Gpt2LMHeadModel};
use std::collections::HashMap;
use std::path::Path;

/// What is saved, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct SaveOptions {
    /// The dtype in the file; the model's own where it is `None`.
    pub dtype: Option<DType>,
    /// Save the causal triangle of each layer, too, as `attn.bias`, u8 (1, 1, N, N), for readers that
    /// want GPT-2's first layout. transformers reads past it.
    pub buffers: bool,
}

/// Writes `model.safetensors`, `config.json` and, where it is given, `tokenizer.json` into `dir`, which is
/// made if it is not there. Each file is written under a temporary name, then renamed.
///
/// Names bear the prefix `transformer.`, as transformers' `GPT2LMHeadModel.save_pretrained` writes them; a
/// head that is tied to the embedding is left out.
///
/// # Errors
/// When the folder cannot be made or written to.
pub fn save(
    dir: &Path,
    model: &Gpt2LMHeadModel,
    tokenizer: Option<&Tokenizer>,
    options: SaveOptions,
) -> Result<(), LoadError> {
    // What can be refused is refused before the first file is replaced.
    let tokenizer = tokenizer.map(Tokenizer::to_json).transpose()?;
    let failed = |source| LoadError::Tensor { name: dir.display().to_string(), source };
    let config = config_json(model).map_err(candle_core::Error::wrap).map_err(failed)?;
    let tensors = tensors(model, options).map_err(failed)?;

    std::fs::create_dir_all(dir).map_err(LoadError::io(dir))?;
    // transformers refuses a file that does not say which framework's layout it holds.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    atomic::write(&dir.join("model.safetensors"), |temporary| {
        safetensors::serialize_to_file(tensors.iter().map(|(n, t)| (n, t)), Some(metadata), temporary)
    })?;
    if let Some(json) = tokenizer {
        atomic::write_bytes(&dir.join("tokenizer.json"), json.as_bytes())?;
    }
    atomic::write_bytes(&dir.join("config.json"), config.as_bytes())
}

fn tensors(model: &Gpt2LMHeadModel, options: SaveOptions) -> candle_core::Result<Vec<(String, Tensor)>> {
    let mut tensors = vec![];
    for (name, tensor) in model.named_parameters() {
        let tensor = tensor.to_dtype(options.dtype.unwrap_or(tensor.dtype()))?.contiguous()?;
        let name = if name == LM_HEAD { name } else { format!("transformer.{name}") };
        tensors.push((name, tensor));
    }
    if options.buffers {
        for (i, block) in model.transformer.h.iter().enumerate() {
            tensors.push((format!("transformer.h.{i}.attn.bias"), block.attn.bias.clone()));
        }
    }
    Ok(tensors)
}

fn config_json(model: &Gpt2LMHeadModel) -> serde_json::Result<String> {
    let config = Config { tie_word_embeddings: model.is_tied(), ..model.config().clone() };
    let mut json = serde_json::to_value(&config)?;
    json["architectures"] = serde_json::json!(["GPT2LMHeadModel"]);
    serde_json::to_string_pretty(&json).map(|text| text + "\n")
}
