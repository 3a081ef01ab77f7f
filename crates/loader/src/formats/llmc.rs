//! Checkpoints of llm.c, such as `gpt2_124M.bin`: a header of 256 integers, then every kind of parameter for all layers in turn.
//!
//! The layout is that of llm.c's `train_gpt2.py` (`write_model`) and `train_gpt2.cu` at commit f1e2ace of May 2025. Weights of linear layers are (out, in), as PyTorch has them, and
//! the table of tokens has further rows, so that their number is a multiple of 128.

use crate::error::LoadError;
use crate::stored::bytes::Bytes;
use crate::stored::{Encoding, Stored, TensorInfo};
use gpt2_model::Config;
use safetensors::Dtype;
use std::path::Path;

pub(crate) const FORMAT: &str = "llm.c";
const HEADER: usize = 256;
const MAGIC: i32 = 20_240_326;

/// A checkpoint's sizes, and the dtype of all its numbers.
struct Sizes {
    config: Config,
    padded_vocab: usize,
    dtype: Dtype,
}

/// config.json for the model in the file.
pub(crate) fn config(path: &Path, bytes: &Bytes) -> Result<Vec<u8>, LoadError> {
    let sizes = sizes(path, bytes)?;
    serde_json::to_vec_pretty(&sizes.config).map_err(|e| LoadError::damaged(path, FORMAT, bytes, e))
}

/// Every parameter, under the model's own name and with the model's own shape.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<(String, Stored)>, LoadError> {
    let damaged = |reason: String| LoadError::damaged(path, FORMAT, bytes, reason);
    let Sizes { config, padded_vocab, dtype } = sizes(path, bytes)?;
    let (c, layers) = (config.n_embd, config.n_layer);
    let mut at = 4 * HEADER;
    let mut stored = vec![];
    let mut add = |name: String, shape: &[usize], skipped: usize, transposed: bool| -> Option<()> {
        let len = shape.iter().try_fold(dtype.bitsize() / 8, |n, d| n.checked_mul(*d))?;
        let range = at..at.checked_add(len)?;
        at = range.end.checked_add(skipped)?;
        let info = TensorInfo {
            name: name.clone(),
            dtype: Encoding::Plain(dtype),
            shape: shape.to_vec(),
            file: path.to_path_buf(),
        };
        let mut tensor =
            Stored { info, bytes: bytes.clone(), range, entry: None, strides: None, transposed: false };
        if transposed {
            tensor.transpose();
        }
        stored.push((name, tensor));
        Some(())
    };
    let padding = (padded_vocab - config.vocab_size) * c * dtype.bitsize() / 8;
    let mut all = || {
        add("wte.weight".into(), &[config.vocab_size, c], padding, false)?;
        add("wpe.weight".into(), &[config.n_positions, c], 0, false)?;
        for (name, shape) in [
            ("ln_1.weight", &[c][..]),
            ("ln_1.bias", &[c]),
            ("attn.c_attn.weight", &[3 * c, c]),
            ("attn.c_attn.bias", &[3 * c]),
            ("attn.c_proj.weight", &[c, c]),
            ("attn.c_proj.bias", &[c]),
            ("ln_2.weight", &[c]),
            ("ln_2.bias", &[c]),
            ("mlp.c_fc.weight", &[4 * c, c]),
            ("mlp.c_fc.bias", &[4 * c]),
            ("mlp.c_proj.weight", &[c, 4 * c]),
            ("mlp.c_proj.bias", &[c]),
        ] {
            for layer in 0..layers {
                add(format!("h.{layer}.{name}"), shape, 0, shape.len() == 2)?;
            }
        }
        add("ln_f.weight".into(), &[c], 0, false)?;
        add("ln_f.bias".into(), &[c], 0, false)
    };
    all().ok_or_else(|| damaged("its sizes are too large".into()))?;
    if at != bytes.len() {
        return Err(damaged(format!("its header asks for {at} bytes, and the file has {}", bytes.len())));
    }
    Ok(stored)
}

fn sizes(path: &Path, bytes: &Bytes) -> Result<Sizes, LoadError> {
    let damaged = |reason: String| LoadError::damaged(path, FORMAT, bytes, reason);
    let header = bytes.get(..4 * HEADER).ok_or_else(|| damaged("it is shorter than its header".into()))?;
    let (words, _) = header.as_chunks::<4>();
    let word = |place: usize| i32::from_le_bytes(words[place]);
    let count = |place: usize, name: &str| {
        usize::try_from(word(place)).map_err(|_| damaged(format!("{name} is {}", word(place))))
    };
    if word(0) != MAGIC {
        return Err(damaged(format!("it begins with {}; expected {MAGIC}", word(0))));
    }
    let dtype = match word(1) {
        3 => Dtype::F32,
        5 => Dtype::BF16,
        other => {
            let reason = format!(
                "is a checkpoint of llm.c in version {other}; expected 3 (f32) or 5 (bf16): write it again with a newer llm.c"
            );
            return Err(LoadError::Unread { path: path.to_path_buf(), reason });
        }
    };
    // For some weeks in 2024, version 3 was another layout: in bf16, without padding, the norms last.
    if word(7) == 0 {
        let reason = "is a checkpoint of llm.c from before its vocabulary was padded, in another layout: write it again with a newer llm.c";
        return Err(LoadError::Unread { path: path.to_path_buf(), reason: reason.into() });
    }
    let gpt2 = Config::gpt2();
    let vocab_size = count(3, "vocab_size")?;
    let has_end = vocab_size == gpt2.vocab_size;
    let config = Config {
        n_positions: count(2, "max_seq_len")?,
        vocab_size,
        n_layer: count(4, "num_layers")?,
        n_head: count(5, "num_heads")?,
        n_embd: count(6, "channels")?,
        bos_token_id: gpt2.bos_token_id.filter(|_| has_end),
        eos_token_id: gpt2.eos_token_id.clone().filter(|_| has_end),
        ..gpt2
    };
    config.validate().map_err(|source| LoadError::Config { path: path.to_path_buf(), reason: source })?;
    let padded_vocab = count(7, "padded_vocab_size")?;
    if padded_vocab < config.vocab_size || padded_vocab > 1 << 24 {
        return Err(damaged(format!(
            "padded_vocab_size is {padded_vocab}; vocab_size is {}",
            config.vocab_size
        )));
    }
    Ok(Sizes { config, padded_vocab, dtype })
}
