//! [`Hub::open`] and its kin: find the files that a model or an adapter needs, and verify them.

use super::fetch::{CommitLookup, Fetch};
use super::{Headers, Hub, ModelId, Snapshot};
use crate::adapter::checkpoint::AdapterFiles;
use crate::dictionary::{DictionaryCheckpoint, DictionaryOrigin};
use crate::error::LoadError;
use crate::error::hub_error::HubError;
use crate::files::{
    ADAPTER_CONFIG, ADAPTERS, CONFIG, DICTIONARY_CONFIG, DICTIONARY_SAFETENSORS, Files, GENERATION_CONFIG,
    INDEX, PICKLE, PICKLE_INDEX, SAFETENSORS, SettingsFiles, TOKENIZER, TokenizerFiles, VOCABULARIES,
    WEIGHTS, WeightFiles, is_foreign,
};
use crate::formats::gguf_parts;
use crate::formats::index::Index;
use crate::formats::safetensors_file::Header;
use crate::stored::bytes::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The first request for a header: enough for that of GPT-2 small, 8 bytes of length and 14,283 of JSON.
const FIRST: u64 = 1 << 14;
/// The longest header that the format allows.
const LONGEST: u64 = 100_000_000;

impl Hub {
    /// The files of a model at a revision: a branch, a tag or a commit. It uses cached files without a request,
    /// so that a branch stays at the cached commit; [`download`](Self::download) looks for a newer one.
    ///
    /// # Errors
    /// When a file is neither cached nor available, or its content differs from what the Hub announced.
    pub fn open(&self, model: &ModelId, revision: &str) -> Result<Snapshot, LoadError> {
        Fetch::new(self, model, revision, CommitLookup::WhereNeeded)?.model()
    }

    /// Like [`open`](Self::open), but at the revision's present commit.
    ///
    /// # Errors
    /// When `open` would fail, or the Hub cannot be asked.
    pub fn download(&self, model: &ModelId, revision: &str) -> Result<Snapshot, LoadError> {
        Fetch::new(self, model, revision, CommitLookup::First)?.model()
    }

    /// A GGUF file of a model at a revision, such as `gpt2.Q8_0.gguf`, with all parts of the model if its name is that of a part;
    /// cached as by [`open`](Self::open).
    ///
    /// # Errors
    /// When a file is neither cached nor available, its content differs from what the Hub announced, or it is not a GPT-2.
    pub fn open_gguf(&self, model: &ModelId, revision: &str, file: &str) -> Result<Snapshot, LoadError> {
        let fetch = Fetch::new(self, model, revision, CommitLookup::WhereNeeded)?;
        let commit = fetch.commit()?;
        let parts = gguf_parts::names(file);
        for part in &parts {
            fetch.required(&commit, part)?;
        }
        let path = fetch.required(&commit, file)?;
        fetch.keep_commit(&commit)?;
        let files = Files {
            name: format!("{}, {file}", fetch.label(&commit)),
            commit: Some(commit.clone()),
            verified: fetch.verified(&commit, parts),
            ..Files::open_gguf(&path)?
        };
        Ok(Snapshot { dir: fetch.repo.snapshot(&commit), commit, files })
    }

    /// The files of a LoRA adapter at a revision; cached as by [`open`](Self::open).
    ///
    /// # Errors
    /// When a file is neither cached nor available, or its content differs from what the Hub announced.
    pub fn open_adapter(&self, adapter: &ModelId, revision: &str) -> Result<AdapterFiles, LoadError> {
        let mut fetch = Fetch::new(self, adapter, revision, CommitLookup::WhereNeeded)?;
        fetch.wanted = ADAPTER_CONFIG;
        let commit = fetch.commit()?;
        let config = fetch.required(&commit, ADAPTER_CONFIG)?;
        let name = fetch.first(&commit, &ADAPTERS)?;
        let weights = fetch.required(&commit, name)?;
        fetch.keep_commit(&commit)?;
        Ok(AdapterFiles {
            verified: fetch.verified(&commit, vec![name.to_string()]),
            commit: Some(commit.clone()),
            ..AdapterFiles::new(fetch.label(&commit), config, weights)
        })
    }

    /// A dictionary of features in a folder of a repository, "" for its root; cached as by [`open`](Self::open).
    ///
    /// # Errors
    /// When a file is neither cached nor available, its content differs from what the Hub announced, or it is not a dictionary.
    pub fn open_dictionary(
        &self,
        repository: &ModelId,
        revision: &str,
        folder: &str,
    ) -> Result<DictionaryCheckpoint, LoadError> {
        let inside = |name: &str| if folder.is_empty() { name.into() } else { format!("{folder}/{name}") };
        let config = inside(DICTIONARY_CONFIG);
        let weights = inside(DICTIONARY_SAFETENSORS);
        let mut fetch = Fetch::new(self, repository, revision, CommitLookup::WhereNeeded)?;
        fetch.wanted = &config;
        let commit = fetch.commit()?;
        for name in [&config, &weights] {
            fetch.required(&commit, name)?;
        }
        fetch.keep_commit(&commit)?;
        let name = [&fetch.label(&commit), folder].join("/");
        let path = fetch.repo.snapshot(&commit).join(folder);
        let mut checkpoint = DictionaryCheckpoint::open_named(&path, name.trim_end_matches('/').into())?;
        let weights = fetch.repo.digest(&commit, &weights).map(|digest| digest.as_str().to_string());
        checkpoint.origin = Some(DictionaryOrigin { commit, weights });
        Ok(checkpoint)
    }

    /// A file of a data set at a revision, such as `data/test.jsonl`; cached as by [`open`](Self::open).
    ///
    /// # Errors
    /// When it is neither cached nor available, or its content differs from what the Hub announced.
    pub fn open_dataset_file(
        &self,
        dataset: &ModelId,
        revision: &str,
        file: &str,
    ) -> Result<PathBuf, LoadError> {
        let mut fetch = Fetch::new(self, dataset, revision, CommitLookup::WhereNeeded)?;
        fetch.wanted = file;
        let commit = fetch.commit()?;
        let path = fetch.required(&commit, file)?;
        fetch.keep_commit(&commit)?;
        Ok(path)
    }

    /// Reads a model's config and the headers of its weight files. Asks the Hub for nothing that is cached.
    ///
    /// # Errors
    /// When [`open`](Self::open) would fail, and when the weight files are not safetensors.
    pub fn headers(&self, model: &ModelId, revision: &str) -> Result<Headers, LoadError> {
        let fetch = Fetch::new(self, model, revision, CommitLookup::WhereNeeded)?;
        let commit = fetch.commit()?;
        let config = fetch.required(&commit, CONFIG)?;
        let mut bytes_read = 0;
        let name = fetch.first(&commit, &WEIGHTS)?;
        let names = match name {
            INDEX | PICKLE_INDEX => {
                let index = Index::open(&fetch.required(&commit, name)?)?;
                index.shards().map(str::to_string).collect()
            }
            _ => vec![name.to_string()],
        };
        let cached = names.iter().map(|name| fetch.is_good(&commit, name));
        let weights = if cached.collect::<Result<Vec<_>, _>>()?.into_iter().all(|good| good) {
            fetch.weights(&commit)?
        } else if name == SAFETENSORS || name == INDEX {
            let headers = names.iter().map(|name| fetch.header(&commit, name, &mut bytes_read));
            WeightFiles::Headers(headers.collect::<Result<_, _>>()?)
        } else {
            return Err(HubError::NoHeader { model: model.to_string(), file: name }.into());
        };
        let mut files = fetch.files(&commit, config, weights, TokenizerFiles::Absent)?;
        files.settings.generation_config = fetch.optional(&commit, GENERATION_CONFIG)?;
        Ok(Headers { commit, files, bytes_read })
    }
}

impl Fetch<'_> {
    fn model(&self) -> Result<Snapshot, LoadError> {
        let commit = self.commit()?;
        let config = self.required(&commit, CONFIG)?;
        let weights = self.weights(&commit)?;
        let tokenizer = self.tokenizer(&commit)?;
        let settings = SettingsFiles::find(|name| self.optional(&commit, name))?;
        // Last, so that the revision never names a commit whose files are not all cached.
        self.keep_commit(&commit)?;
        let files = Files { settings, ..self.files(&commit, config, weights, tokenizer)? };
        Ok(Snapshot { dir: self.repo.snapshot(&commit), commit, files })
    }

    fn files(
        &self,
        commit: &str,
        config: PathBuf,
        weight_files: WeightFiles,
        tokenizer: TokenizerFiles,
    ) -> Result<Files, LoadError> {
        let json = Bytes::open(&config)?;
        let names = match &weight_files {
            WeightFiles::Safetensors(..) => vec![SAFETENSORS.to_string()],
            WeightFiles::Pickle(..) => vec![PICKLE.to_string()],
            WeightFiles::Index(path) => Index::open(path)?.shards().map(str::to_string).collect(),
            WeightFiles::Headers(_)
            | WeightFiles::Gguf(..)
            | WeightFiles::GgufParts(_)
            | WeightFiles::LlmC(..) => vec![],
        };
        Ok(Files {
            commit: Some(commit.to_string()),
            verified: self.verified(commit, names),
            ..Files::new(self.label(commit), (config, json), weight_files, tokenizer)
        })
    }

    /// The hashes of the files with these names, as far as the cache knows them.
    fn verified(&self, commit: &str, names: Vec<String>) -> BTreeMap<String, String> {
        let hash = |name: String| {
            let digest = self.repo.digest(commit, &name)?;
            Some((name, digest.as_str().to_string()))
        };
        names.into_iter().filter_map(hash).collect()
    }

    /// The first of several names that the cache has, or else that the commit has.
    fn first(&self, commit: &str, names: &[&'static str]) -> Result<&'static str, HubError> {
        if let Some(name) = names.iter().find(|name| self.repo.has_file(commit, name)) {
            return Ok(name);
        }
        for name in names {
            if self.is_listed(commit, name)? {
                return Ok(name);
            }
        }
        Err(self.missing(&names.join(", ")))
    }

    fn weights(&self, commit: &str) -> Result<WeightFiles, LoadError> {
        let name = self.first(commit, &WEIGHTS)?;
        let path = self.required(commit, name)?;
        if [INDEX, PICKLE_INDEX].contains(&name) {
            for shard in Index::open(&path)?.shards() {
                self.required(commit, shard)?;
            }
        }
        WeightFiles::of(path, |path| Ok(Bytes::open(path)?))
    }

    /// Fetches the tokenizer. If only that is unavailable, the model can still be used with token ids.
    fn tokenizer(&self, commit: &str) -> Result<TokenizerFiles, LoadError> {
        match self.tokenizer_files(commit) {
            Err(LoadError::Hub(error)) if error.is_unreachable() && self.ask == CommitLookup::WhereNeeded => {
                Ok(TokenizerFiles::Unreachable(Arc::new(error.into())))
            }
            files => files,
        }
    }

    fn tokenizer_files(&self, commit: &str) -> Result<TokenizerFiles, LoadError> {
        let cached = |name| self.repo.has_file(commit, name);
        let has_pair = VOCABULARIES.iter().any(|(vocab, merges)| cached(vocab) && cached(merges));
        if cached(TOKENIZER) || (!has_pair && self.is_listed(commit, TOKENIZER)?) {
            let (path, bytes) = self.opened(commit, TOKENIZER)?;
            return Ok(TokenizerFiles::Json(path, bytes));
        }
        for (vocab, merges) in VOCABULARIES {
            if (cached(vocab) && cached(merges))
                || (!has_pair && self.is_listed(commit, vocab)? && self.is_listed(commit, merges)?)
            {
                let vocab = self.opened(commit, vocab)?;
                let merges = self.opened(commit, merges)?;
                return Ok(TokenizerFiles::VocabMerges { vocab, merges });
            }
        }
        // Fetched, so that the next run finds it without asking.
        match self.names(commit).into_iter().find(|name| is_foreign(name)) {
            Some(name) => Ok(TokenizerFiles::Foreign(self.required(commit, &name)?)),
            None => Ok(TokenizerFiles::Absent),
        }
    }

    /// A file that the commit may have; `None` if it has none, or if the Hub does not tell. A file that the commit has is never
    /// left out.
    fn optional(&self, commit: &str, name: &str) -> Result<Option<(PathBuf, Bytes)>, LoadError> {
        // One request without an answer is enough: the next one would be waited for as long.
        if self.is_silent.get() && !self.repo.has_file(commit, name) {
            return Ok(None);
        }
        match self.is_listed(commit, name) {
            Ok(true) => self.opened(commit, name).map(Some),
            Ok(false) => Ok(None),
            Err(error) if error.is_unreachable() && self.ask == CommitLookup::WhereNeeded => {
                self.is_silent.set(true);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A file that the commit must have, and its content.
    fn opened(&self, commit: &str, name: &str) -> Result<(PathBuf, Bytes), LoadError> {
        let path = self.required(commit, name)?;
        let bytes = Bytes::open(&path)?;
        Ok((path, bytes))
    }

    /// The header of a safetensors file, without its data; adds the bytes that came to `bytes_read`.
    fn header(&self, commit: &str, name: &str, bytes_read: &mut u64) -> Result<Header, HubError> {
        let path = PathBuf::from(self.label(commit)).join(name);
        let client = self.client(name)?;
        let announced = client.announced(commit, name)?.ok_or_else(|| self.missing(name))?;
        if announced.size == Some(0) {
            return Ok(Header { path, bytes: vec![], file_len: announced.size });
        }
        let file_len = announced.size.unwrap_or(u64::MAX);
        let mut bytes = client.range(commit, name, 0, FIRST.min(file_len))?;
        if let Some(len) = bytes.first_chunk().map(|len| u64::from_le_bytes(*len)) {
            let end = len.saturating_add(8);
            if end > bytes.len() as u64 && end <= file_len.min(LONGEST) {
                bytes.extend(client.range(commit, name, bytes.len() as u64, end)?);
            }
        }
        *bytes_read += bytes.len() as u64;
        Ok(Header { path, bytes, file_len: announced.size })
    }
}
