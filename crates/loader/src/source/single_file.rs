//! One file of weights, whatever program wrote it, and the config that it holds or that lies beside it.

use super::tokenizer_files::{choose_tokenizer, names_in};
use crate::error::LoadError;
use crate::files::{
    ADAPTER_CONFIG, CONFIG, DICTIONARY_CONFIG, Files, SettingsFiles, TokenizerFiles, WEIGHTS, WeightFiles,
};
use crate::formats::{llmc, pickle};
use crate::stored::bytes::Bytes;
use crate::stored::recognize::FileKind;
use gpt2_model::Config;
use gpt2_model::config::Activation;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FORMAT: &str = "safetensors, PyTorch, GGUF or llm.c";
const OF_NANO_GPT: &str = "the model's sizes are those of nanoGPT's model_args; GELU is computed exactly (gelu), as nanoGPT does; \
                           older versions of it used gelu_new";

/// The file at `path` by its content, whatever its name is: a GGUF file, llm.c's checkpoint, weights of safetensors or of
/// `torch.save` with a config.json beside them, or nanoGPT's checkpoint, which holds its sizes.
///
/// # Errors
/// When the file is of another kind or damaged, and when nothing says the model's sizes.
pub(crate) fn open(path: &Path) -> Result<Files, LoadError> {
    let bytes = Bytes::open(path)?;
    let weights = match FileKind::of(&bytes) {
        Some(FileKind::Gguf) => return Files::open_gguf(path),
        Some(FileKind::LlmC) => {
            let config = llmc::config(path, &bytes)?;
            let tokenizer = tokenizer(path)?;
            let files = holding(path, config, WeightFiles::LlmC(path.to_path_buf(), bytes), tokenizer);
            return Ok(files.noted("the model's sizes are those of the header of llm.c"));
        }
        Some(FileKind::Safetensors) => WeightFiles::Safetensors(path.to_path_buf(), bytes),
        Some(FileKind::Zip | FileKind::Pickle) => {
            if let Some(sizes) = pickle::read_all(path, &bytes)?.sizes {
                let config = nano_gpt(path, &sizes)?;
                let weights = WeightFiles::Pickle(path.to_path_buf(), bytes);
                return Ok(holding(path, config, weights, tokenizer(path)?).noted(OF_NANO_GPT));
            }
            WeightFiles::Pickle(path.to_path_buf(), bytes)
        }
        _ => return Err(LoadError::damaged(path, FORMAT, &bytes, "it is none of these by its first bytes")),
    };
    if let Some(reason) = part_of_more(path) {
        return Err(LoadError::Unread { path: path.to_path_buf(), reason });
    }
    let Some(config) = beside(path, CONFIG) else {
        let reason = "holds weights, and not the model's sizes; expected a config.json beside it: put the model's own there";
        return Err(LoadError::Unread { path: path.to_path_buf(), reason: reason.into() });
    };
    let note = format!("the model's sizes are those of {}", config.display());
    let json = Bytes::open(&config)?;
    let settings = SettingsFiles::find(|name| beside(path, name).map(with_bytes).transpose())?;
    let files = Files::new(path.display().to_string(), (config, json), weights, tokenizer(path)?);
    Ok(Files { settings, ..files }.noted(note))
}

/// The whole to which a file of weights belongs, if it is no model by itself, and the thing to give instead.
fn part_of_more(path: &Path) -> Option<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.display();
    if WEIGHTS.iter().any(|index| {
        Path::new(index).extension().is_some_and(|end| end == "json") && beside(path, index).is_some()
    }) && name.contains("-of-")
    {
        return Some(format!("is one of several files of a model; give the folder with the index: {folder}"));
    }
    if beside(path, CONFIG).is_some() {
        return None;
    }
    if beside(path, ADAPTER_CONFIG).is_some() {
        return Some(format!(
            "holds a LoRA adapter, not a model; give its model, and the folder as the adapter: {folder}"
        ));
    }
    beside(path, DICTIONARY_CONFIG).map(|_| {
        format!("holds a dictionary of features, not a model; give a model, and the folder as the dictionary: {folder}")
    })
}

/// The file of this name in the same folder, if there is one.
fn beside(path: &Path, name: &str) -> Option<PathBuf> {
    Some(path.with_file_name(name)).filter(|file| file.symlink_metadata().is_ok())
}

fn with_bytes(file: PathBuf) -> Result<(PathBuf, Bytes), LoadError> {
    let bytes = Bytes::open(&file)?;
    Ok((file, bytes))
}

/// A file that also holds the config.
fn holding(path: &Path, config: Vec<u8>, weights: WeightFiles, tokenizer: TokenizerFiles) -> Files {
    let config = (path.to_path_buf(), Bytes::InMemory(Arc::new(config)));
    Files::new(path.display().to_string(), config, weights, tokenizer)
}

/// The tokenizer's files beside a file of weights, as in a folder. Only a folder with a config is one model's: elsewhere, a file of
/// another kind of tokenizer may be anybody's.
fn tokenizer(path: &Path) -> Result<TokenizerFiles, LoadError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names = if beside(path, CONFIG).is_some() { names_in(dir)? } else { vec![] };
    let has = |name: &str| beside(path, name).is_some();
    choose_tokenizer(dir, &names, &has, &|name| with_bytes(path.with_file_name(name)))
}

/// config.json for nanoGPT's `model_args`. nanoGPT computes GELU exactly, with PyTorch's `nn.GELU`.
fn nano_gpt(path: &Path, sizes: &BTreeMap<String, i64>) -> Result<Vec<u8>, LoadError> {
    let unread = |reason: String| LoadError::Unread { path: path.to_path_buf(), reason };
    let size = |name: &str| {
        let size = sizes.get(name).and_then(|n| usize::try_from(*n).ok());
        size.ok_or_else(|| unread(format!("its model_args have no {name}; expected nanoGPT's")))
    };
    let gpt2 = Config::gpt2();
    let vocab_size = size("vocab_size")?;
    let has_end = vocab_size >= gpt2.vocab_size;
    let config = Config {
        vocab_size,
        n_positions: size("block_size")?,
        n_embd: size("n_embd")?,
        n_layer: size("n_layer")?,
        n_head: size("n_head")?,
        activation_function: Activation::Gelu,
        bos_token_id: gpt2.bos_token_id.filter(|_| has_end),
        eos_token_id: gpt2.eos_token_id.clone().filter(|_| has_end),
        ..gpt2
    };
    serde_json::to_vec_pretty(&config).map_err(|e| unread(e.to_string()))
}
