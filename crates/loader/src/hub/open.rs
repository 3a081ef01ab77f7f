//! [`Hub::open`]: finds the files that a model needs, and verifies them.

use super::fetch::{Ask, Fetch};
use super::{Hub, ModelId, Snapshot};
use crate::bytes::Bytes;
use crate::error::LoadError;
use crate::file_names::{CONFIG, INDEX, MERGES, PICKLE, SAFETENSORS, TOKENIZER, VOCAB, WEIGHTS};
use crate::files::{Files, TokenizerFiles, WeightFiles};
use crate::shards::Index;
use std::path::PathBuf;
use std::sync::Arc;

impl Hub {
    /// The files of a model at a revision: a branch, a tag or a commit. It uses cached files without a request,
    /// so that a branch stays at the cached commit; [`download`](Self::download) looks for a newer one.
    ///
    /// # Errors
    /// When a file is neither cached nor available, or its content differs from what the Hub announced.
    pub fn open(&self, model: &ModelId, revision: &str) -> Result<Snapshot, LoadError> {
        Fetch::new(self, model, revision, Ask::WhereNeeded)?.snapshot()
    }

    /// A GGUF file of a model at a revision, such as `gpt2.Q8_0.gguf`; cached as by [`open`](Self::open).
    ///
    /// # Errors
    /// When the file is neither cached nor available, its content differs from what the Hub announced, or it is not a GPT-2.
    pub fn open_gguf(&self, model: &ModelId, revision: &str, file: &str) -> Result<Snapshot, LoadError> {
        let fetch = Fetch::new(self, model, revision, Ask::WhereNeeded)?;
        let commit = fetch.commit()?;
        let path = fetch.required(&commit, file)?;
        fetch.keep_commit(&commit)?;
        let digest = fetch.repo.digest(&commit, file);
        let files = Files {
            name: format!("{}, {file}", fetch.label(&commit)),
            commit: Some(commit.clone()),
            verified: digest
                .map(|digest| (file.to_string(), digest.as_str().to_string()))
                .into_iter()
                .collect(),
            ..Files::open_gguf(&path)?
        };
        Ok(Snapshot { dir: fetch.repo.snapshot(&commit), commit, files })
    }

    /// Like [`open`](Self::open), but at the revision's present commit.
    ///
    /// # Errors
    /// When `open` would fail, or the Hub cannot be asked.
    pub fn download(&self, model: &ModelId, revision: &str) -> Result<Snapshot, LoadError> {
        Fetch::new(self, model, revision, Ask::First)?.snapshot()
    }
}

impl Fetch<'_> {
    fn snapshot(&self) -> Result<Snapshot, LoadError> {
        let commit = self.commit()?;
        let config = self.required(&commit, CONFIG)?;
        let weights = self.weights(&commit)?;
        let tokenizer = self.tokenizer(&commit)?;
        // Last, so that the revision never names a commit whose files are not all cached.
        self.keep_commit(&commit)?;
        let files = self.files(&commit, config, weights, tokenizer)?;
        Ok(Snapshot { dir: self.repo.snapshot(&commit), commit, files })
    }

    pub(super) fn files(
        &self,
        commit: &str,
        config: PathBuf,
        weight_files: WeightFiles,
        tokenizer: TokenizerFiles,
    ) -> Result<Files, LoadError> {
        let json = Bytes::open(&config)?;
        let names = match &weight_files {
            WeightFiles::Safetensors(..) => vec![SAFETENSORS.to_string()],
            WeightFiles::Pickle(_) => vec![PICKLE.to_string()],
            WeightFiles::Index(path) => Index::open(path)?.shards().map(str::to_string).collect(),
            WeightFiles::Headers(_) | WeightFiles::Gguf(..) => vec![],
        };
        let hash = |name: String| {
            let digest = self.repo.digest(commit, &name)?;
            Some((name, digest.as_str().to_string()))
        };
        Ok(Files {
            commit: Some(commit.to_string()),
            verified: names.into_iter().filter_map(hash).collect(),
            ..Files::new(self.label(commit), (config, json), weight_files, tokenizer)
        })
    }

    /// The cached weight files, or else those that the commit has.
    pub(super) fn weights(&self, commit: &str) -> Result<WeightFiles, LoadError> {
        let name = match self.cached_weights(commit) {
            Some(name) => name,
            None => self.listed_weights(commit)?,
        };
        let path = self.required(commit, name)?;
        if name == INDEX {
            for shard in Index::open(&path)?.shards() {
                self.required(commit, shard)?;
            }
        }
        WeightFiles::open(path)
    }

    /// The name of the weight file that the cache has.
    pub(super) fn cached_weights(&self, commit: &str) -> Option<&'static str> {
        WEIGHTS.into_iter().find(|name| self.repo.has_file(commit, name))
    }

    /// The name of the weight file that the commit has.
    pub(super) fn listed_weights(&self, commit: &str) -> Result<&'static str, LoadError> {
        for name in WEIGHTS {
            if self.is_listed(commit, name)? {
                return Ok(name);
            }
        }
        Err(self.missing(&WEIGHTS.join(", ")))
    }

    /// Fetches the tokenizer. If only that is unavailable, the model can still be used with token ids.
    fn tokenizer(&self, commit: &str) -> Result<TokenizerFiles, LoadError> {
        match self.tokenizer_files(commit) {
            Err(error) if error.is_unreachable() && self.ask == Ask::WhereNeeded => {
                Ok(TokenizerFiles::Unreachable(Arc::new(error)))
            }
            files => files,
        }
    }

    fn tokenizer_files(&self, commit: &str) -> Result<TokenizerFiles, LoadError> {
        let cached = |name| self.repo.has_file(commit, name);
        let has_both = cached(VOCAB) && cached(MERGES);
        if cached(TOKENIZER) || (!has_both && self.is_listed(commit, TOKENIZER)?) {
            return TokenizerFiles::open_json(&self.required(commit, TOKENIZER)?);
        }
        if has_both || (self.is_listed(commit, VOCAB)? && self.is_listed(commit, MERGES)?) {
            let (vocab, merges) = (self.required(commit, VOCAB)?, self.required(commit, MERGES)?);
            return Ok(TokenizerFiles::VocabMerges(vocab, merges));
        }
        Ok(TokenizerFiles::Absent)
    }
}
