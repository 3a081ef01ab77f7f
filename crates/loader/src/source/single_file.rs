//! One file of weights, whatever program wrote it, and the config that it holds or that lies beside it.

use crate::error::LoadError;
use crate::files::{CONFIG, Files, MERGES, TOKENIZER, TokenizerFiles, VOCAB, WeightFiles};
use crate::formats::{llmc, pickle};
use crate::stored::bytes::Bytes;
use crate::stored::recognize::Kind;
use gpt2_model::Config;
use gpt2_model::config::Activation;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FORMAT: &str = "safetensors, PyTorch, GGUF or llm.c";

/// The file at `path` by its content, whatever its name is: a GGUF file, llm.c's checkpoint, weights of safetensors or of
/// `torch.save` with a config.json beside them, or nanoGPT's checkpoint, which holds its sizes.
///
/// # Errors
/// When the file is of another kind or damaged, and when nothing says the model's sizes.
pub(crate) fn open(path: &Path) -> Result<Files, LoadError> {
    let bytes = Bytes::open(path)?;
    let weights = match Kind::of(&bytes) {
        Some(Kind::Gguf) => return Files::open_gguf(path),
        Some(Kind::LlmC) => {
            let config = llmc::config(path, &bytes)?;
            let tokenizer = tokenizer(path)?;
            return Ok(holding(path, config, WeightFiles::LlmC(path.to_path_buf(), bytes), tokenizer));
        }
        Some(Kind::Safetensors) => WeightFiles::Safetensors(path.to_path_buf(), bytes),
        Some(Kind::Zip | Kind::Pickle) => {
            if let Some(sizes) = pickle::read_all(path, &bytes)?.sizes {
                let config = nano_gpt(path, &sizes)?;
                let weights = WeightFiles::Pickle(path.to_path_buf(), bytes);
                return Ok(holding(path, config, weights, tokenizer(path)?));
            }
            WeightFiles::Pickle(path.to_path_buf(), bytes)
        }
        _ => return Err(LoadError::damaged(path, FORMAT, &bytes, "it is none of these by its first bytes")),
    };
    let config = path.with_file_name(CONFIG);
    if config.symlink_metadata().is_err() {
        let reason = "holds weights, and not the model's sizes; expected a config.json beside it: put the model's own there";
        return Err(LoadError::Unread { path: path.to_path_buf(), reason: reason.into() });
    }
    let json = Bytes::open(&config)?;
    Ok(Files::new(path.display().to_string(), (config, json), weights, tokenizer(path)?))
}

/// A file that also holds the config.
fn holding(path: &Path, config: Vec<u8>, weights: WeightFiles, tokenizer: TokenizerFiles) -> Files {
    let config = (path.to_path_buf(), Bytes::InMemory(Arc::new(config)));
    Files::new(path.display().to_string(), config, weights, tokenizer)
}

/// The tokenizer's files beside a file of weights.
fn tokenizer(path: &Path) -> Result<TokenizerFiles, LoadError> {
    let beside = |name: &str| Some(path.with_file_name(name)).filter(|file| file.symlink_metadata().is_ok());
    let open = |file: PathBuf| Ok::<_, LoadError>((file.clone(), Bytes::open(&file)?));
    if let Some(file) = beside(TOKENIZER) {
        let (file, bytes) = open(file)?;
        return Ok(TokenizerFiles::Json(file, bytes));
    }
    match (beside(VOCAB), beside(MERGES)) {
        (Some(vocab), Some(merges)) => {
            Ok(TokenizerFiles::VocabMerges { vocab: open(vocab)?, merges: open(merges)? })
        }
        _ => Ok(TokenizerFiles::Absent),
    }
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
