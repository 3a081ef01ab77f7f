//! File access: files are written whole or not at all, and only regular files are read.

use crate::error::Result;
use candle_core::Tensor;
use gpt2_files::{atomic, write_safetensors};
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) use gpt2_files::{open_regular, read_text};

/// Writes `content` to `path`.
pub(crate) fn bytes(path: &Path, content: &[u8]) -> Result<()> {
    Ok(atomic::write_bytes(path, content)?)
}

/// Writes these tensors to a safetensors file at `path`, with one metadata entry.
pub(crate) fn tensors(path: &Path, tensors: &BTreeMap<String, Tensor>, metadata: (&str, &str)) -> Result<()> {
    let tensors: Vec<(&str, &Tensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let metadata = [(metadata.0, metadata.1.to_owned())];
    Ok(atomic::write(path, |temporary| write_safetensors(temporary, &tensors, &metadata))?)
}
