//! [`Source`]: the place of a model, and the search for its files there.

mod found_instead;
mod single_file;
mod tokenizer_files;

use crate::error::LoadError;
use crate::files::{CONFIG, INDEX, PICKLE, PICKLE_INDEX, SAFETENSORS, TOKENIZER, WEIGHTS};
use crate::files::{Files, SettingsFiles, TokenizerFiles, WeightFiles};
use crate::hub::{Hub, ModelId};
use crate::stored::bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizer_files::{choose_tokenizer, name_of, names_in};

/// The place of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Source {
    /// A folder in the layout of transformers' `save_pretrained`.
    Directory(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// One file of weights, whatever program wrote it, with the config that it holds or that lies beside it.
    File(PathBuf),
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
    /// as tokenizer.json first, then as vocab.json and merges.txt, then as `OpenAI`'s encoder.json and vocab.bpe.
    ///
    /// # Errors
    /// When the folder, its config or its weights are missing or cannot be opened, or half a tokenizer is missing; for a model
    /// on the Hub, when [`Hub::open`] fails.
    pub fn open(&self) -> Result<Files, LoadError> {
        match self {
            Self::Directory(dir) => open_directory(dir),
            Self::Gguf(path) => Files::open_gguf(path),
            Self::File(path) => single_file::open(path),
            Self::Hub { hub, model, revision } => Ok(hub.open(model, revision)?.files),
            Self::Embedded(files) => Ok(open_embedded(files)),
        }
    }
}

impl Files {
    /// The files of a model that are in memory, by their names: those of a folder in the layout of transformers'
    /// `save_pretrained`, or one GGUF file. Other files are left out, shards among them. `name` stands for the folder in messages.
    ///
    /// # Errors
    /// When the config or the weights are missing, half a tokenizer is, the weights are in several files, or a GGUF file is
    /// damaged or not a GPT-2.
    pub fn in_memory(name: &str, files: BTreeMap<String, Vec<u8>>) -> Result<Self, LoadError> {
        let is_gguf = |(name, _): &(String, Vec<u8>)| {
            Path::new(name).extension().is_some_and(|it| it.eq_ignore_ascii_case("gguf"))
        };
        let (mut of_gguf, mut files): (BTreeMap<_, _>, BTreeMap<_, _>) = files.into_iter().partition(is_gguf);
        let has_shards = files.remove(INDEX).is_some() | files.remove(PICKLE_INDEX).is_some();
        let has = |name: &str| files.contains_key(name);
        // As on disk, a folder with a config has its weights in other files.
        if has(CONFIG) {
            of_gguf.clear();
        }
        let has_whole = has(SAFETENSORS) || has(PICKLE) || !of_gguf.is_empty();
        if of_gguf.len() > 1 || (has_shards && !has_whole) {
            return Err(LoadError::SeveralFiles { name: name.to_owned() });
        }
        let in_memory = |content| Bytes::InMemory(Arc::new(content));
        if let Some((file, content)) = of_gguf.into_iter().next() {
            return Self::of_gguf(Path::new(&file), in_memory(content));
        }
        let dir = Path::new(name);
        let files: BTreeMap<_, _> =
            files.into_iter().map(|(name, content)| (dir.join(name), in_memory(content))).collect();
        let names: Vec<String> = files.keys().filter_map(|path| name_of(path)).collect();
        let has = |name: &str| files.contains_key(&dir.join(name));
        choose(dir, &names, has, |path| Ok(files[path].clone()), String::new)
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
    let has = |name: &str| dir.join(name).symlink_metadata().is_ok();
    choose(dir, &names_in(dir)?, has, |path| Ok(Bytes::open(path)?), || found_instead::of(dir))
}

/// The files of the model in a folder that has files of these names.
fn choose(
    dir: &Path,
    names: &[String],
    has: impl Fn(&str) -> bool,
    open: impl Fn(&Path) -> Result<Bytes, LoadError>,
    instead: impl Fn() -> String,
) -> Result<Files, LoadError> {
    let file = |name: &str| open(&dir.join(name)).map(|bytes| (dir.join(name), bytes));
    if !has(CONFIG) {
        return Err(LoadError::NoConfig { dir: dir.to_path_buf(), found: instead() });
    }
    let weights = WEIGHTS.into_iter().find(|name| has(name));
    let weights = weights.ok_or_else(|| LoadError::NoWeights { dir: dir.to_path_buf(), found: instead() })?;
    let weights = WeightFiles::of(dir.join(weights), &open)?;
    let tokenizer = choose_tokenizer(dir, names, &has, &file)?;
    let settings = SettingsFiles::find(|name| has(name).then(|| file(name)).transpose())?;
    let files = Files::new(dir.display().to_string(), file(CONFIG)?, weights, tokenizer);
    Ok(Files { settings, ..files })
}
