//! GGUF files, as llama.cpp reads and writes them: the weights, the config and the tokenizer of a model in one file.
//!
//! The layout is that of ggml's `docs/gguf.md`, version 3; version 2 differs in nothing that GPT-2 uses. Nothing in a file is
//! trusted: every length is compared with what is left of the file before it is used.

mod config;
mod header;
mod keys;
mod kind;
mod names;
mod plan;
mod value;
mod vocabulary;

pub(crate) use header::ALIGNMENT;
pub(crate) use keys::{Keys, put_text};
pub(crate) use kind::number;
pub use plan::GgufType;
pub(crate) use plan::{Planned, plan};
pub(crate) use vocabulary::{Vocabulary, vocabulary};

use crate::bytes::Bytes;
use crate::error::LoadError;
use crate::stored::Stored;
use crate::tensor_info::{Encoding, TensorInfo};
use header::Header;
use std::path::Path;

pub(crate) const FORMAT: &str = "GGUF";

/// config.json, from the file's keys and tensors.
pub(crate) fn config(path: &Path, bytes: &Bytes) -> Result<Vec<u8>, LoadError> {
    let damaged = |reason: String| LoadError::damaged(path, FORMAT, bytes, reason);
    let header = Header::parse(bytes).map_err(damaged)?;
    let stored = read_tensors(path, bytes, &header).map_err(damaged)?;
    let find = |name: &str| stored.iter().find(|tensor| tensor.info.name == name);
    let (table, output) = (find("token_embd.weight"), find(names::OUTPUT.0));
    let vocab_size = table.and_then(|table| table.info.shape.first().copied());
    let tied = output.is_none() || same_numbers(table, output);
    config::config_json(&header, vocab_size, tied).map_err(damaged)
}

/// Every tensor of the file, under the name and with the shape that it has in a checkpoint. A table that the file holds twice,
/// as embedding and as output projection, is there once.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<(String, Stored)>, LoadError> {
    let damaged = |reason: String| LoadError::damaged(path, FORMAT, bytes, reason);
    let header = Header::parse(bytes).map_err(damaged)?;
    let mut stored = read_tensors(path, bytes, &header).map_err(damaged)?;
    let find = |name: &str| stored.iter().find(|tensor| tensor.info.name == name);
    if same_numbers(find("token_embd.weight"), find(names::OUTPUT.0)) {
        stored.retain(|tensor| tensor.info.name != names::OUTPUT.0);
    }
    let named = stored.into_iter().map(|tensor| {
        let name = names::of_checkpoint(&tensor.info.name).map(|(name, _)| name);
        // Another name is none of the model's, even if a checkpoint would have it.
        (name.unwrap_or_else(|| format!("{FORMAT}: {}", tensor.info.name)), tensor)
    });
    Ok(named.collect())
}

/// Whether both tensors are there and hold the same bytes.
fn same_numbers(a: Option<&Stored>, b: Option<&Stored>) -> bool {
    const PART: usize = 1 << 20;
    let (Some(a), Some(b)) = (a, b) else { return false };
    if a.info.dtype != b.info.dtype
        || a.info.shape != b.info.shape
        || a.range.len() != b.range.len()
        || a.range.is_empty()
    {
        return false;
    }
    // Read, because touched pages of a map count as this process's memory.
    let read = |tensor: &Stored, from: usize| {
        let mut part = vec![0; PART.min(tensor.range.len() - from)];
        tensor.bytes.read_at(tensor.range.start + from, &mut part).ok().map(|()| part)
    };
    (0..a.range.len()).step_by(PART).all(|from| {
        let part = read(a, from);
        part.is_some() && part == read(b, from)
    })
}

fn read_tensors(path: &Path, bytes: &Bytes, header: &Header) -> Result<Vec<Stored>, String> {
    let mut stored = vec![];
    for tensor in &header.tensors {
        let name = tensor.name;
        let encoding = kind::encoding(tensor.kind);
        let transposed = names::of_checkpoint(name).is_some_and(|(_, transposed)| transposed);
        let (row, rest) = tensor.dims.split_first().map_or((1, &[][..]), |(row, rest)| (*row, rest));
        let rows = rest.iter().try_fold(1usize, |rows, n| rows.checked_mul(*n));
        let too_many =
            || format!("{name}: {:?} numbers are too many, or no whole blocks of {encoding}", tensor.dims);
        rows.and_then(|rows| rows.checked_mul(row)).ok_or_else(too_many)?;
        let range = if matches!(encoding, Encoding::Unknown { .. }) {
            0..0
        } else {
            let len = encoding.bytes_of(row).zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
            let len = len.ok_or_else(too_many)?;
            let start = usize::try_from(tensor.offset).ok();
            let start = start.and_then(|offset| header.data.checked_add(offset));
            let end = start.and_then(|start| start.checked_add(len)).filter(|end| *end <= bytes.len());
            let (Some(start), Some(end)) = (start, end) else {
                return Err(format!(
                    "{name}: its {len} bytes at offset {} go beyond the end of the file, which has {} bytes",
                    tensor.offset,
                    bytes.len()
                ));
            };
            start..end
        };
        let mut shape: Vec<usize> = tensor.dims.iter().rev().copied().collect();
        if transposed {
            shape.reverse();
        }
        let info = TensorInfo { name: name.to_string(), dtype: encoding, shape, file: path.to_path_buf() };
        stored.push(Stored { info, bytes: bytes.clone(), range, entry: None, transposed });
    }
    check_overlap(&stored)?;
    Ok(stored)
}

/// Refuses tensors that share bytes, which no writer produces.
fn check_overlap(stored: &[Stored]) -> Result<(), String> {
    let mut places: Vec<_> = stored.iter().filter(|t| !t.range.is_empty()).collect();
    places.sort_by_key(|tensor| tensor.range.start);
    match places.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        Some(pair) => Err(format!("{} and {} share bytes of the file", pair[0].info.name, pair[1].info.name)),
        None => Ok(()),
    }
}
