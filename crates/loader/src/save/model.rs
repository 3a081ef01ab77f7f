//! Saves a model in a form that transformers and this crate can load.

use crate::error::LoadError;
use crate::files::{
    ADDED_TOKENS, CONFIG, GENERATION_CONFIG, SAFETENSORS, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG,
};
use crate::stored::names;
use crate::tokenizer::Tokenizer;
use candle_core::{DType, Tensor};
use gpt2_files::unfinished::together;
use gpt2_files::{atomic, write_safetensors};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::finite::all_finite;
use half::{bf16, f16};
use std::path::Path;

/// Options for saving a model.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct SaveOptions {
    /// The dtype in the file; `None` for the model's own.
    pub dtype: Option<DType>,
    /// Also save the causal triangle of each layer (`torch.tril`, PyTorch's buffer `attn.bias`), as `attn.bias`, u8 (1, 1, N, N),
    /// for readers that expect GPT-2's original layout. It is no parameter, and transformers ignores it: by default it is left out.
    pub buffers: bool,
}

impl SaveOptions {
    /// Sets the dtype in the file.
    #[must_use]
    pub fn with_dtype(self, dtype: impl Into<Option<DType>>) -> Self {
        Self { dtype: dtype.into(), ..self }
    }

    /// Sets whether to save the causal triangles.
    #[must_use]
    pub fn with_buffers(self, buffers: bool) -> Self {
        Self { buffers, ..self }
    }
}

/// Writes `model.safetensors`, `config.json` and, if there is a tokenizer, `tokenizer.json` into `dir`, which is
/// created if it does not exist; also `tokenizer_config.json`, if transformers would read `tokenizer.json` otherwise without it.
/// All files are written under temporary names, then renamed, the config last.
///
/// Names have the prefix `transformer.`, as transformers' `GPT2LMHeadModel.save_pretrained` writes them; an
/// `lm_head` that is tied to the embedding is left out, and so is the buffer `attn.bias`, unless
/// [`SaveOptions::with_buffers`] asks for it.
///
/// # Errors
/// When the folder cannot be created or written to, a layer of the model is not that of its config, buffers are asked of
/// gpt_bigcode, which has none, or a number is NaN, infinite or too large for the dtype ([`LoadError::NotSavable`]).
pub fn save(
    dir: &Path,
    model: &Gpt2LMHeadModel,
    tokenizer: Option<&Tokenizer>,
    options: SaveOptions,
) -> Result<(), LoadError> {
    // Do everything that can fail without writing before replacing the first file.
    let settings = tokenizer.and_then(Tokenizer::settings_json);
    let tokenizer = tokenizer.map(Tokenizer::to_json).transpose()?;
    let failed = |source| LoadError::Tensor { name: dir.display().to_string(), source };
    let config = config_json(model).map_err(candle_core::Error::wrap).map_err(failed)?;
    let tensors = tensors(model, options, dir)?;

    std::fs::create_dir_all(dir).map_err(LoadError::io(dir))?;
    let mut staged =
        vec![atomic::stage(&dir.join(SAFETENSORS), |temporary| write_tensors(temporary, &tensors))?];
    if let Some(json) = tokenizer {
        staged.push(atomic::stage_bytes(&dir.join(TOKENIZER), json.as_bytes())?);
    }
    if let Some(json) = settings {
        staged.push(atomic::stage_bytes(&dir.join(TOKENIZER_CONFIG), json.as_bytes())?);
    }
    let path = dir.join(CONFIG);
    staged.push(atomic::stage_bytes(&path, config.as_bytes())?);
    together(|| {
        // A folder without a config is no model to anyone: if the process dies between the files, nobody reads a mixture.
        if std::fs::read(&path).is_ok_and(|before| before != config.as_bytes()) {
            std::fs::remove_file(&path).map_err(LoadError::io(&path))?;
        }
        staged.into_iter().try_for_each(|file| Ok(file.commit()?))
    })
}

/// A file in `dir` that would change what a model saved there reads or where its texts end, and that [`save`] would not replace:
/// one of another model's settings. `writes_config`: the model's tokenizer writes its own `tokenizer_config.json`.
#[must_use]
pub fn stale_settings(dir: &Path, writes_config: bool) -> Option<&'static str> {
    [TOKENIZER_CONFIG, ADDED_TOKENS, SPECIAL_TOKENS, GENERATION_CONFIG]
        .into_iter()
        .filter(|name| !(writes_config && *name == TOKENIZER_CONFIG))
        .find(|name| dir.join(name).symlink_metadata().is_ok())
}

/// Refuses a model that [`save`] would not write with numbers of this dtype, or of the model's own for `None`. Long work can so
/// be refused before it starts.
///
/// # Errors
/// [`LoadError::NotSavable`] for the first parameter with a number that is NaN, infinite or too large for the dtype.
pub fn check_savable(model: &Gpt2LMHeadModel, dtype: impl Into<Option<DType>>) -> Result<(), LoadError> {
    let dtype = dtype.into().unwrap_or(model.dtype());
    for (name, values) in model.named_parameters() {
        savable(&name, values.tensor(), dtype)?;
    }
    Ok(())
}

/// A parameter as it is saved.
fn savable(name: &str, tensor: candle_core::Result<Tensor>, dtype: DType) -> Result<Tensor, LoadError> {
    let failed = |source| LoadError::Tensor { name: name.to_string(), source };
    let tensor = tensor.map_err(failed)?;
    let saved = tensor.to_dtype(dtype).and_then(|saved| saved.contiguous()).map_err(failed)?;
    if all_finite(&saved).map_err(failed)? {
        return Ok(saved);
    }
    let numbers = |x: &Tensor| x.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
    let before = numbers(&tensor).map_err(failed)?;
    let after = numbers(&saved).map_err(failed)?;
    let found = before.into_iter().zip(after).find(|(_, after)| !after.is_finite());
    let (value, _) = found.unwrap_or((f64::NAN, f64::NAN));
    let (most, remedy) = match dtype {
        DType::F16 => (f64::from(f16::MAX), "save it in bf16 or f32"),
        DType::BF16 => (f64::from(bf16::MAX), "save it in f32"),
        _ => (f64::from(f32::MAX), "save it in f64"),
    };
    Err(LoadError::NotSavable {
        parameter: name.to_string(),
        value,
        format: dtype.as_str().to_string(),
        most,
        remedy,
    })
}

fn tensors(
    model: &Gpt2LMHeadModel,
    options: SaveOptions,
    dir: &Path,
) -> Result<Vec<(String, Tensor)>, LoadError> {
    let failed = |source| LoadError::Tensor { name: dir.display().to_string(), source };
    let mut tensors = vec![];
    model.check_layers().map_err(failed)?; // which readers of the file would not know
    let dtype = options.dtype.unwrap_or(model.dtype());
    for (name, values) in model.named_parameters() {
        tensors.push((names::saved(&name), savable(&name, values.tensor(), dtype)?));
    }
    if options.buffers {
        if model.config().is_bigcode() {
            let none = "gpt_bigcode has no attn.bias buffers: save it without them";
            return Err(failed(candle_core::Error::msg(none)));
        }
        for (i, block) in model.transformer.h.iter().enumerate() {
            let triangle = block.attn.bias.tensor().map_err(failed)?;
            tensors.push((names::saved(&format!("h.{i}.{}", names::TRIANGLE)), triangle));
        }
    }
    Ok(tensors)
}

/// Writes tensors into the file at `path`.
fn write_tensors(path: &Path, tensors: &[(String, Tensor)]) -> candle_core::Result<()> {
    let tensors: Vec<(&str, &Tensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    // transformers refuses a file that does not say which framework's layout it holds.
    write_safetensors(path, &tensors, &[("format", "pt".to_string())])
}

fn config_json(model: &Gpt2LMHeadModel) -> serde_json::Result<String> {
    let mut json = serde_json::to_value(model.checkpoint_config())?;
    json["architectures"] = serde_json::json!([model.config().architecture()]);
    serde_json::to_string_pretty(&json).map(|text| text + "\n")
}
