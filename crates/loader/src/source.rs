//! Where a model comes from, and how its files are found there.

use crate::bytes::Bytes;
use crate::error::LoadError;
use crate::files::{CONFIG, MERGES, SAFETENSORS, TOKENIZER, VOCAB, WEIGHTS};
use crate::files::{Files, TokenizerFiles, WeightFiles};
use crate::hub::{Hub, ModelId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a model is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Source {
    /// A folder in the layout of transformers' `save_pretrained`.
    Directory(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A model that is part of the binary.
    Embedded(EmbeddedFiles),
    /// A model on the Hugging Face Hub.
    Hub {
        /// The Hub, and where its files are kept.
        hub: Box<Hub>,
        /// The model.
        model: ModelId,
        /// A branch, a tag or a commit.
        revision: String,
    },
}

/// The content of a model's files, compiled into the binary.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedFiles {
    /// The model's name in messages.
    pub name: &'static str,
    /// config.json
    pub config: &'static [u8],
    /// model.safetensors
    pub weights: &'static [u8],
    /// The SHA-256 of that, in hexadecimal.
    pub weights_sha256: &'static str,
    /// tokenizer.json
    pub tokenizer: &'static [u8],
}

impl Source {
    /// A folder.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::Directory(path.into())
    }

    /// A model on the Hub at a revision: a branch, a tag or a commit.
    pub fn hub(hub: Hub, model: ModelId, revision: impl Into<String>) -> Self {
        Self::Hub { hub: Box::new(hub), model, revision: revision.into() }
    }

    /// Finds the model's files: the parameters as safetensors first, then sharded, then pickled; the tokenizer
    /// as tokenizer.json first, then as vocab.json and merges.txt.
    ///
    /// # Errors
    /// When the folder, its config or its weights are missing, or half a tokenizer is; for a model on the Hub,
    /// when [`Hub::open`] fails.
    pub fn open(&self) -> Result<Files, LoadError> {
        match self {
            Self::Directory(dir) => open_directory(dir),
            Self::Gguf(path) => Files::open_gguf(path),
            Self::Hub { hub, model, revision } => Ok(hub.open(model, revision)?.files),
            Self::Embedded(files) => Ok(open_embedded(files)),
        }
    }
}

fn open_embedded(files: &EmbeddedFiles) -> Files {
    let file = |name: &str, content| (Path::new(files.name).join(name), Bytes::Embedded(content));
    let (weights, content) = file(SAFETENSORS, files.weights);
    let (tokenizer, json) = file(TOKENIZER, files.tokenizer);
    Files {
        verified: BTreeMap::from([(SAFETENSORS.into(), files.weights_sha256.into())]),
        ..Files::new(
            files.name.to_string(),
            file(CONFIG, files.config),
            WeightFiles::Safetensors(weights, content),
            TokenizerFiles::Json(tokenizer, json),
        )
    }
}

fn open_directory(dir: &Path) -> Result<Files, LoadError> {
    match std::fs::metadata(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(LoadError::NotFound { path: dir.to_path_buf() });
        }
        Err(e) => return Err(LoadError::io(dir)(e)),
        Ok(meta) if !meta.is_dir() => return Err(LoadError::NotADirectory { path: dir.to_path_buf() }),
        Ok(_) => {}
    }
    // A broken link counts as existing: opening it then fails with an error that names it.
    let find = |name: &str| Some(dir.join(name)).filter(|p| p.symlink_metadata().is_ok());
    let config = find(CONFIG).ok_or_else(|| LoadError::NoConfig { dir: dir.to_path_buf() })?;
    let weights = WEIGHTS.into_iter().find_map(find);
    let weights = weights.ok_or_else(|| LoadError::NoWeights { dir: dir.to_path_buf() })?;
    let weights = WeightFiles::open(weights)?;
    let tokenizer = match (find(TOKENIZER), find(VOCAB), find(MERGES)) {
        (Some(path), _, _) => TokenizerFiles::open_json(&path)?,
        (None, Some(vocab), Some(merges)) => TokenizerFiles::VocabMerges(vocab, merges),
        (None, None, None) => TokenizerFiles::Absent,
        (None, vocab, _) => {
            let missing = if vocab.is_some() { MERGES } else { VOCAB };
            return Err(LoadError::HalfTokenizer { dir: dir.to_path_buf(), missing });
        }
    };
    let json = Bytes::open(&config)?;
    Ok(Files::new(dir.display().to_string(), (config, json), weights, tokenizer))
}
