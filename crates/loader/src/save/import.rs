//! [`import`]: writes a model that another program saved as a folder that transformers loads.

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::files::Files;
use crate::save::model::{SaveOptions, save};
use crate::tokenizer::Tokenizer;
use candle_core::{DType, Device};
use std::path::Path;

/// The result of [`import`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// The number of parameters.
    pub parameters: u64,
    /// Whether a tokenizer was written, too.
    pub tokenizer: bool,
    /// Everything that was read otherwise than it is stored, or left out: a line each.
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
    progress: &mut dyn FnMut(usize, usize) -> candle_core::Result<()>,
) -> Result<Imported, LoadError> {
    let checkpoint = Checkpoint::open(files)?;
    checkpoint.check()?;
    let mut audit = checkpoint.audit();
    audit.not_finite = checkpoint.numbers(progress)?.unwrap_or_default().not_finite;
    if !audit.is_clean() {
        return Err(LoadError::Audit(Box::new(audit)));
    }
    let mut notes = checkpoint.notes();
    let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
    let vocab_size = checkpoint.config().vocab_size;
    let tokenizer = match Tokenizer::open(files, vocab_size) {
        Ok(tokenizer) => Some(tokenizer),
        Err(LoadError::NoTokenizer { .. }) => {
            notes.push("no tokenizer is beside the weights: none is written".into());
            None
        }
        Err(error) => return Err(error),
    };
    notes.extend(tokenizer.iter().filter_map(|tokenizer| tokenizer.note().map(str::to_owned)));
    save(out, &model, tokenizer.as_ref(), SaveOptions::default().with_dtype(dtype))?;
    Ok(Imported { parameters: audit.parameter_count, tokenizer: tokenizer.is_some(), notes })
}
