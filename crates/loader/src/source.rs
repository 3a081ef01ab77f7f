//! Where weights come from, and the files that are found there.

use crate::{Bytes, Hub, LoadError, ModelId, safetensors_file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a model is.
#[derive(Debug, Clone)]
pub enum Source {
    /// A folder in the layout of transformers' `save_pretrained`.
    Directory(PathBuf),
    /// A model that is part of the binary.
    Embedded(EmbeddedFiles),
    /// A model of the Hugging Face Hub at a revision: a branch, a tag or a commit.
    Hub(Box<Hub>, ModelId, String),
}

/// The content of a model's files, compiled in.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedFiles {
    /// What messages call it.
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

/// The files of one model, named one by one; nothing but their presence has been looked at.
#[derive(Debug, Clone)]
pub struct Files {
    /// What messages call the model: its folder, or its embedded name.
    pub name: String,
    /// config.json: where it is and what it holds.
    pub config: (PathBuf, Bytes),
    /// The weights.
    pub weights: Weights,
    /// The tokenizer.
    pub tokenizer: TokenizerFiles,
    /// The commit on the Hub that the files are of, where they are from there.
    pub commit: Option<String>,
    /// The hash of each of the weights' files that was verified, in hexadecimal, by the file's name: SHA-256, or Git's
    /// SHA-1 of a blob for files outside large file storage.
    pub verified: BTreeMap<String, String>,
}

impl Files {
    /// Files of which nothing is known but what they hold.
    #[must_use]
    pub fn new(name: String, config: (PathBuf, Bytes), weights: Weights, tokenizer: TokenizerFiles) -> Self {
        Self { name, config, weights, tokenizer, commit: None, verified: BTreeMap::new() }
    }

    /// Every file on disk that the model is read from, shards included.
    ///
    /// # Errors
    /// When an index of shards is damaged.
    pub fn paths(&self) -> Result<Vec<PathBuf>, LoadError> {
        let mut paths = vec![self.config.0.clone()];
        match &self.weights {
            Weights::Safetensors(path, _) | Weights::Pickle(path) => paths.push(path.clone()),
            Weights::Index(path) => {
                paths.push(path.clone());
                paths.extend(safetensors_file::shards(path)?.iter().map(|shard| path.with_file_name(shard)));
            }
            Weights::Headers(_) => {}
        }
        match &self.tokenizer {
            TokenizerFiles::Json(path, _) => paths.push(path.clone()),
            TokenizerFiles::VocabMerges(vocab, merges) => paths.extend([vocab.clone(), merges.clone()]),
            TokenizerFiles::Absent | TokenizerFiles::Unreachable(_) => {}
        }
        Ok(paths)
    }
}

/// The names under which [`Source::directory`] looks for a model's files.
pub const FILE_NAMES: [&str; 7] = [
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
];

/// The weights' files.
#[derive(Debug, Clone)]
pub enum Weights {
    /// One safetensors file.
    Safetensors(PathBuf, Bytes),
    /// `model.safetensors.index.json`, which names the shards beside it.
    Index(PathBuf),
    /// `pytorch_model.bin`, a zip with a pickle.
    Pickle(PathBuf),
    /// Headers of safetensors files without their data: enough for an audit, nothing to load.
    Headers(Vec<Header>),
}

/// The beginning of a safetensors file that is somewhere else.
#[derive(Debug, Clone)]
pub struct Header {
    /// What messages call the file.
    pub path: PathBuf,
    /// The length of the header and the header, and maybe more.
    pub bytes: Vec<u8>,
    /// The length of the whole file, where that is known.
    pub file_len: Option<u64>,
}

/// The tokenizer's files.
#[derive(Debug, Clone)]
pub enum TokenizerFiles {
    /// tokenizer.json
    Json(PathBuf, Bytes),
    /// vocab.json and merges.txt
    VocabMerges(PathBuf, PathBuf),
    /// None of them.
    Absent,
    /// There may be one, and it could not be fetched; why.
    Unreachable(String),
}

impl Source {
    /// A folder.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::Directory(path.into())
    }

    /// Finds the model's files: weights as safetensors first, then sharded, then pickled; the tokenizer
    /// as tokenizer.json first, then as vocab.json and merges.txt.
    ///
    /// # Errors
    /// When the folder, its config or its weights are not there, or only half a tokenizer is; for a model of
    /// the Hub, as [`Hub::open`].
    pub fn open(&self) -> Result<Files, LoadError> {
        match self {
            Self::Directory(dir) => open_directory(dir),
            Self::Hub(hub, model, revision) => Ok(hub.open(model, revision)?.files),
            Self::Embedded(files) => {
                let path = |file: &str| Path::new(files.name).join(file);
                Ok(Files {
                    name: files.name.to_string(),
                    config: (path("config.json"), Bytes::Embedded(files.config)),
                    weights: Weights::Safetensors(path("model.safetensors"), Bytes::Embedded(files.weights)),
                    tokenizer: TokenizerFiles::Json(path("tokenizer.json"), Bytes::Embedded(files.tokenizer)),
                    commit: None,
                    verified: BTreeMap::from([("model.safetensors".into(), files.weights_sha256.into())]),
                })
            }
        }
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
    // A link that leads nowhere is "there": opening it then fails with its name.
    let find = |name: &str| Some(dir.join(name)).filter(|p| p.symlink_metadata().is_ok());
    let config = find("config.json").ok_or_else(|| LoadError::NoConfig { dir: dir.to_path_buf() })?;
    let weights = if let Some(path) = find("model.safetensors") {
        Weights::Safetensors(path.clone(), Bytes::open(&path)?)
    } else if let Some(path) = find("model.safetensors.index.json") {
        Weights::Index(path)
    } else if let Some(path) = find("pytorch_model.bin") {
        Weights::Pickle(path)
    } else {
        return Err(LoadError::NoWeights { dir: dir.to_path_buf() });
    };
    let tokenizer = match (find("tokenizer.json"), find("vocab.json"), find("merges.txt")) {
        (Some(path), _, _) => TokenizerFiles::Json(path.clone(), Bytes::open(&path)?),
        (None, Some(vocab), Some(merges)) => TokenizerFiles::VocabMerges(vocab, merges),
        (None, None, None) => TokenizerFiles::Absent,
        (None, vocab, _) => {
            let missing = if vocab.is_some() { "merges.txt" } else { "vocab.json" };
            return Err(LoadError::HalfTokenizer { dir: dir.to_path_buf(), missing });
        }
    };
    let json = Bytes::open(&config)?;
    Ok(Files::new(dir.display().to_string(), (config, json), weights, tokenizer))
}
