//! Saving a model in a form that transformers loads, and this crate.

use crate::error::LoadError;
use crate::file_names::{CONFIG, SAFETENSORS, TOKENIZER};
use crate::names;
use crate::tokenizer::Tokenizer;
use candle_core::{DType, Device, Tensor};
use gpt2_files::atomic;
use gpt2_model::{Config, Gpt2LMHeadModel};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// What is saved, and how.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct SaveOptions {
    /// The dtype in the file; the model's own where it is `None`.
    pub dtype: Option<DType>,
    /// Save the causal triangle of each layer, too, as `attn.bias`, u8 (1, 1, N, N), for readers that expect
    /// GPT-2's original layout. transformers ignores it.
    pub buffers: bool,
}

impl SaveOptions {
    /// The same with this dtype in the file.
    #[must_use]
    pub fn dtype(self, dtype: impl Into<Option<DType>>) -> Self {
        Self { dtype: dtype.into(), ..self }
    }

    /// The same with the causal triangles, or without them.
    #[must_use]
    pub fn buffers(self, buffers: bool) -> Self {
        Self { buffers, ..self }
    }
}

/// Writes `model.safetensors`, `config.json` and, if there is a tokenizer, `tokenizer.json` into `dir`, which is
/// created if it does not exist. Each file is written under a temporary name, then renamed.
///
/// Names have the prefix `transformer.`, as transformers' `GPT2LMHeadModel.save_pretrained` writes them; an
/// `lm_head` that is tied to the embedding is left out.
///
/// # Errors
/// When the folder cannot be created or written to.
pub fn save(
    dir: &Path,
    model: &Gpt2LMHeadModel,
    tokenizer: Option<&Tokenizer>,
    options: SaveOptions,
) -> Result<(), LoadError> {
    // Whatever can fail without writing fails before the first file is replaced.
    let tokenizer = tokenizer.map(Tokenizer::to_json).transpose()?;
    let failed = |source| LoadError::Tensor { name: dir.display().to_string(), source };
    let config = config_json(model).map_err(candle_core::Error::wrap).map_err(failed)?;
    let tensors = tensors(model, options).map_err(failed)?;

    std::fs::create_dir_all(dir).map_err(LoadError::io(dir))?;
    atomic::write(&dir.join(SAFETENSORS), |temporary| write_tensors(temporary, tensors))?;
    if let Some(json) = tokenizer {
        atomic::write_bytes(&dir.join(TOKENIZER), json.as_bytes())?;
    }
    Ok(atomic::write_bytes(&dir.join(CONFIG), config.as_bytes())?)
}

fn tensors(model: &Gpt2LMHeadModel, options: SaveOptions) -> candle_core::Result<Vec<(String, Tensor)>> {
    let mut tensors = vec![];
    for (name, tensor) in model.named_parameters() {
        let tensor = tensor.to_dtype(options.dtype.unwrap_or(tensor.dtype()))?.contiguous()?;
        tensors.push((names::saved(&name), tensor));
    }
    if options.buffers {
        for (i, block) in model.transformer.h.iter().enumerate() {
            tensors.push((names::saved_triangle(i), block.attn.bias.tensor()?));
        }
    }
    Ok(tensors)
}

/// Writes tensors into the file at `path`. The safetensors crate's own function would replace that file by another,
/// whose lock nobody holds, see [`atomic::stage`].
fn write_tensors(path: &Path, mut tensors: Vec<(String, Tensor)>) -> candle_core::Result<()> {
    // Wide dtypes first: each tensor then starts at a multiple of its dtype's size.
    tensors.sort_by(|(a, x), (b, y)| Dtype::from(y.dtype()).cmp(&x.dtype().into()).then_with(|| a.cmp(b)));
    let mut end = 0;
    let info = |(name, tensor): &(String, Tensor)| {
        let start = end;
        end += tensor.elem_count() * tensor.dtype().size_in_bytes();
        let shape = tensor.dims().to_vec();
        (name.clone(), TensorInfo { dtype: tensor.dtype().into(), shape, data_offsets: (start, end) })
    };
    let infos = tensors.iter().map(info).collect();
    // transformers refuses a file that does not say which framework's layout it holds.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let mut header =
        serde_json::to_vec(&Metadata::new(Some(metadata), infos)?).map_err(candle_core::Error::wrap)?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (_, tensor) in tensors {
        out.write_all(&safetensors::View::data(&tensor.to_device(&Device::Cpu)?))?;
    }
    Ok(out.flush()?)
}

fn config_json(model: &Gpt2LMHeadModel) -> serde_json::Result<String> {
    let config = Config { tie_word_embeddings: model.is_tied(), ..model.config().clone() };
    let mut json = serde_json::to_value(&config)?;
    json["architectures"] = serde_json::json!(["GPT2LMHeadModel"]);
    serde_json::to_string_pretty(&json).map(|text| text + "\n")
}
