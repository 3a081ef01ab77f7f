//! [`Hub::headers`]: a model's config and the headers of its weights, without the weights.

use super::fetch::{Ask, Fetch};
use super::{Headers, Hub, ModelId};
use crate::error::LoadError;
use crate::file_names::{CONFIG, INDEX, SAFETENSORS};
use crate::files::{Header, TokenizerFiles, WeightFiles};
use crate::shards::Index;
use std::path::PathBuf;

/// The first request: enough for the header of GPT-2 small, 8 bytes of length and 14,283 of JSON.
const FIRST: u64 = 1 << 14;
/// The longest header that the format allows.
const LONGEST: u64 = 100_000_000;

impl Hub {
    /// Reads a model's config and the headers of its weight files. Asks the Hub for nothing that is cached.
    ///
    /// # Errors
    /// When [`open`](Self::open) would fail, and when the weight files are not safetensors.
    pub fn headers(&self, model: &ModelId, revision: &str) -> Result<Headers, LoadError> {
        let fetch = Fetch::new(self, model, revision, Ask::WhereNeeded)?;
        let commit = fetch.commit()?;
        let config = fetch.required(&commit, CONFIG)?;
        let mut bytes_read = 0;
        let name = match fetch.cached_weights(&commit) {
            Some(name) => name,
            None => fetch.listed_weights(&commit)?,
        };
        let names = match name {
            INDEX => {
                let index = Index::open(&fetch.required(&commit, name)?)?;
                index.shards().map(str::to_string).collect()
            }
            _ => vec![name.to_string()],
        };
        let cached = names.iter().map(|name| fetch.is_good(&commit, name));
        let weights = if cached.collect::<Result<Vec<_>, _>>()?.into_iter().all(|good| good) {
            fetch.weights(&commit)?
        } else if name == SAFETENSORS || name == INDEX {
            let headers = names.iter().map(|name| read_header(&fetch, &commit, name, &mut bytes_read));
            WeightFiles::Headers(headers.collect::<Result<_, _>>()?)
        } else {
            return Err(LoadError::NoHeader { model: model.to_string(), file: name });
        };
        let files = fetch.files(&commit, config, weights, TokenizerFiles::Absent)?;
        Ok(Headers { commit, files, bytes_read })
    }
}

fn read_header(
    fetch: &Fetch<'_>,
    commit: &str,
    name: &str,
    bytes_read: &mut u64,
) -> Result<Header, LoadError> {
    let path = PathBuf::from(fetch.label(commit)).join(name);
    let client = fetch.client(name)?;
    let announced = client.announced(commit, name)?.ok_or_else(|| fetch.missing(name))?;
    if announced.size == Some(0) {
        return Ok(Header { path, bytes: vec![], file_len: announced.size });
    }
    let file_len = announced.size.unwrap_or(u64::MAX);
    let mut bytes = client.range(commit, name, 0, FIRST.min(file_len))?;
    *bytes_read += bytes.len() as u64;
    if let Some(len) = bytes.first_chunk().map(|len| u64::from_le_bytes(*len)) {
        let end = len.saturating_add(8);
        if end > bytes.len() as u64 && end <= file_len.min(LONGEST) {
            let rest = client.range(commit, name, bytes.len() as u64, end)?;
            *bytes_read += rest.len() as u64;
            bytes.extend(rest);
        }
    }
    Ok(Header { path, bytes, file_len: announced.size })
}
