//! [`import`]: writes a model that another program saved as a folder that transformers loads.

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::files::{Files, TokenizerFiles, WeightFiles};
use crate::save::model::{SaveOptions, save};
use crate::tokenizer::Tokenizer;
use candle_core::{DType, Device};
use gpt2_model::Config;
use std::path::Path;

/// nanoGPT's and llm.c's vocabulary for GPT-2's tokens: a multiple of 128.
const PADDED: usize = 50_304;

/// What [`import`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// The number of parameters.
    pub parameters: u64,
    /// Whether a tokenizer was written, too.
    pub tokenizer: bool,
    /// What was read otherwise than it is stored, and what was left out: a line each.
    pub notes: Vec<String>,
}

/// Reads a model, and writes it into the folder `out` as `config.json`, `model.safetensors` and, if there is a tokenizer,
/// `tokenizer.json`. Nothing is written unless everything can be read. Calls `progress` with the number of parameters read, and of
/// all.
///
/// # Errors
/// When the files do not fit one another, a number is not finite, or the folder cannot be written to.
pub fn import(
    files: &Files,
    out: &Path,
    dtype: DType,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Imported, LoadError> {
    let checkpoint = Checkpoint::open(files)?;
    checkpoint.check()?;
    let mut audit = checkpoint.audit();
    audit.not_finite = checkpoint.not_finite(progress)?.unwrap_or_default();
    if !audit.is_clean() {
        return Err(LoadError::Audit(Box::new(audit)));
    }
    let mut notes = checkpoint.notes();
    let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    let vocab_size = checkpoint.config().vocab_size;
    let is_nano_gpt = matches!(&files.weight_files, WeightFiles::Pickle(path, _) if *path == files.config.0);
    let is_padded = vocab_size == PADDED && matches!(files.tokenizer, TokenizerFiles::Absent);
    if is_nano_gpt {
        notes.push(
            "GELU is computed exactly (gelu), as nanoGPT does; older versions of it used gelu_new".into(),
        );
    }
    if is_padded {
        notes.push(format!(
            "the vocabulary is padded from {} to {vocab_size} tokens: the tokenizer is GPT-2's",
            Config::gpt2().vocab_size
        ));
    }
    let known = if is_padded { Config::gpt2().vocab_size } else { vocab_size };
    let tokenizer = match Tokenizer::open(files, known) {
        Ok(tokenizer) => Some(tokenizer),
        Err(LoadError::NoTokenizer { .. }) => {
            notes.push("no tokenizer is beside the weights: none is written".into());
            None
        }
        Err(error) => return Err(error),
    };
    save(out, &model, tokenizer.as_ref(), SaveOptions::default().with_dtype(dtype))?;
    Ok(Imported { parameters: audit.parameter_count, tokenizer: tokenizer.is_some(), notes })
}
