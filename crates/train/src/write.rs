//! The way to files: whole or not there, and read only where they are files.

use crate::error::{Result, TrainError};
use candle_core::{Device, Tensor};
use gpt2_files::atomic;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

pub(crate) use gpt2_files::{open_regular, read_text};

/// Puts `content` at `path`.
pub(crate) fn bytes(path: &Path, content: &[u8]) -> Result<()> {
    atomic::write_bytes(path, content).map_err(|e| TrainError::Write(e.into()))
}

/// Puts a safetensors file of these tensors at `path`, with one entry of metadata. Tensors and metadata that are the
/// same give the same bytes: safetensors sorts tensors by dtype and name.
pub(crate) fn tensors(path: &Path, tensors: &BTreeMap<String, Tensor>, metadata: (&str, &str)) -> Result<()> {
    let metadata = HashMap::from([(metadata.0.to_owned(), metadata.1.to_owned())]);
    // Candle's copy to bytes panics where it fails, so what can fail comes before it.
    let on_cpu = |(name, tensor): (&String, &Tensor)| {
        Ok((name.clone(), tensor.to_device(&Device::Cpu)?.contiguous()?))
    };
    let tensors = tensors.iter().map(on_cpu).collect::<candle_core::Result<Vec<_>>>()?;
    atomic::write(path, |temporary| safetensors::serialize_to_file(tensors, Some(metadata), temporary))
        .map_err(|e| TrainError::Write(e.into()))
}
