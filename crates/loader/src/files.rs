//! [`Files`]: the files of one model, by their purpose, and their names.

use crate::error::LoadError;
use crate::formats::index::Index;
use crate::formats::safetensors_file::Header;
use crate::formats::{gguf, gguf_parts};
use crate::stored::bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SAFETENSORS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const PICKLE: &str = "pytorch_model.bin";
pub(crate) const PICKLE_INDEX: &str = "pytorch_model.bin.index.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const VOCAB: &str = "vocab.json";
pub(crate) const MERGES: &str = "merges.txt";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const ADDED_TOKENS: &str = "added_tokens.json";
pub(crate) const SPECIAL_TOKENS: &str = "special_tokens_map.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// A vocabulary and its merges, under transformers' names and under `OpenAI`'s; the first pair that exists is used.
pub(crate) const VOCABULARIES: [(&str, &str); 2] = [(VOCAB, MERGES), ("encoder.json", "vocab.bpe")];
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
pub(crate) const ADAPTER_SAFETENSORS: &str = "adapter_model.safetensors";
pub(crate) const ADAPTER_PICKLE: &str = "adapter_model.bin";
/// The settings of a dictionary of features, and its tensors.
pub(crate) const DICTIONARY_CONFIG: &str = "cfg.json";
pub(crate) const DICTIONARY_SAFETENSORS: &str = "sae_weights.safetensors";

/// The files that hold the parameters, or say which files do; the first that exists is used.
pub(crate) const WEIGHTS: [&str; 4] = [SAFETENSORS, INDEX, PICKLE, PICKLE_INDEX];

/// The files that hold an adapter's tensors; the first that exists is used.
pub(crate) const ADAPTERS: [&str; 2] = [ADAPTER_SAFETENSORS, ADAPTER_PICKLE];

/// The names under which [`Source::directory`](crate::Source::directory) looks for a model's files.
pub const FILE_NAMES: [&str; 14] = [
    CONFIG,
    SAFETENSORS,
    INDEX,
    PICKLE,
    PICKLE_INDEX,
    TOKENIZER,
    VOCABULARIES[0].0,
    VOCABULARIES[0].1,
    VOCABULARIES[1].0,
    VOCABULARIES[1].1,
    TOKENIZER_CONFIG,
    ADDED_TOKENS,
    SPECIAL_TOKENS,
    GENERATION_CONFIG,
];

/// The files of one model. They exist; nothing else about them has been checked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Files {
    /// The model's name in messages: its folder, its GGUF file, or its embedded name.
    pub name: String,
    /// config.json: where it is and what it holds.
    pub config: (PathBuf, Bytes),
    /// The files that hold the model's parameters.
    pub weight_files: WeightFiles,
    /// The tokenizer.
    pub tokenizer: TokenizerFiles,
    /// The settings of the tokenizer and of generation.
    pub settings: SettingsFiles,
    /// Facts about the files' source for the reader of a command's output, a line each.
    pub notes: Vec<String>,
    /// The commit, for files from the Hub.
    pub commit: Option<String>,
    /// The hash of each verified weight file, in hexadecimal, by the file's name: SHA-256, or Git's SHA-1 of a blob
    /// for files outside large file storage.
    pub verified: BTreeMap<String, String>,
}

impl Files {
    /// Files without settings, a commit and known hashes.
    #[must_use]
    pub fn new(
        name: String,
        config: (PathBuf, Bytes),
        weight_files: WeightFiles,
        tokenizer: TokenizerFiles,
    ) -> Self {
        let settings = SettingsFiles::default();
        Self {
            name,
            config,
            weight_files,
            tokenizer,
            settings,
            notes: vec![],
            commit: None,
            verified: BTreeMap::new(),
        }
    }

    /// The files of a model that is one GGUF file, or several parts, of which this is one and the others lie beside it.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged, or is not a GPT-2, and when a part is missing.
    pub fn open_gguf(path: &Path) -> Result<Self, LoadError> {
        Self::of_parts(path, gguf_parts::open(path, Bytes::open(path)?)?)
    }

    /// The files with this note.
    pub(crate) fn noted(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Opens a GGUF file with this content.
    pub(crate) fn of_gguf(path: &Path, bytes: Bytes) -> Result<Self, LoadError> {
        gguf_parts::check_whole(path, &bytes)?;
        Self::of_parts(path, vec![(path.to_path_buf(), bytes)])
    }

    /// The parts of a GGUF file, at least one; `named` is the one that the user gave.
    fn of_parts(named: &Path, parts: Vec<(PathBuf, Bytes)>) -> Result<Self, LoadError> {
        let config = Bytes::InMemory(Arc::new(gguf::config(&parts)?));
        let (first, bytes) = parts[0].clone();
        let weights = match parts.len() {
            1 => WeightFiles::Gguf(first.clone(), bytes.clone()),
            _ => WeightFiles::GgufParts(parts),
        };
        let tokenizer = TokenizerFiles::Gguf(first.clone(), bytes);
        Ok(Self::new(named.display().to_string(), (first, config), weights, tokenizer))
    }

    /// The config's name in messages.
    pub(crate) fn config_name(&self) -> &'static str {
        match &self.weight_files {
            WeightFiles::Gguf(..) | WeightFiles::GgufParts(_) => {
                "the file's own keys (block_count and others)"
            }
            WeightFiles::LlmC(..) => "the file's header",
            WeightFiles::Pickle(path, _) if *path == self.config.0 => "the file's own model_args",
            _ => "config.json",
        }
    }

    /// The files by their names, as [`Files::in_memory`] takes them; `None` for a model whose weights are in several files.
    #[must_use]
    pub fn contents(&self) -> Option<Vec<(String, &Bytes)>> {
        let mut contents = match &self.weight_files {
            WeightFiles::Gguf(path, bytes) => return Some(vec![named(path, bytes)]),
            WeightFiles::Safetensors(path, bytes) | WeightFiles::Pickle(path, bytes) => {
                vec![named(path, bytes)]
            }
            // Readers of files in memory know neither llm.c's format nor parts.
            WeightFiles::Index(_)
            | WeightFiles::Headers(_)
            | WeightFiles::GgufParts(_)
            | WeightFiles::LlmC(..) => return None,
        };
        contents.push(named(&self.config.0, &self.config.1));
        match &self.tokenizer {
            TokenizerFiles::Json(path, bytes) => contents.push(named(path, bytes)),
            TokenizerFiles::VocabMerges { vocab, merges } => {
                contents.extend([vocab, merges].map(|(path, bytes)| named(path, bytes)));
            }
            TokenizerFiles::Gguf(..)
            | TokenizerFiles::Foreign(_)
            | TokenizerFiles::Absent
            | TokenizerFiles::Unreachable(_) => {}
        }
        contents.extend(self.settings.all().map(|(path, bytes)| named(path, bytes)));
        Some(contents)
    }

    /// The path of every file that the model is read from, shards included. Files in memory have no such place on disk.
    ///
    /// # Errors
    /// When an index of shards is damaged.
    pub fn paths(&self) -> Result<Vec<PathBuf>, LoadError> {
        let mut paths = vec![self.config.0.clone()];
        match &self.weight_files {
            WeightFiles::Safetensors(path, _) | WeightFiles::Pickle(path, _) => paths.push(path.clone()),
            WeightFiles::Index(path) => {
                paths.push(path.clone());
                let index = Index::open(path)?;
                paths.extend(index.shards().map(|shard| index.path_of(shard)));
            }
            WeightFiles::GgufParts(parts) => paths.extend(parts.iter().map(|(path, _)| path.clone())),
            // Such a file is the config's.
            WeightFiles::Headers(_) | WeightFiles::Gguf(..) | WeightFiles::LlmC(..) => {}
        }
        match &self.tokenizer {
            TokenizerFiles::Json(path, _) | TokenizerFiles::Foreign(path) => paths.push(path.clone()),
            TokenizerFiles::VocabMerges { vocab, merges } => {
                paths.extend([vocab.0.clone(), merges.0.clone()]);
            }
            TokenizerFiles::Absent | TokenizerFiles::Unreachable(_) | TokenizerFiles::Gguf(..) => {}
        }
        paths.extend(self.settings.all().map(|(path, _)| path.clone()));
        Ok(paths)
    }
}

/// A file by the name that it has in its folder.
fn named<'a>(path: &Path, bytes: &'a Bytes) -> (String, &'a Bytes) {
    (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), bytes)
}

/// The files that hold the parameters.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WeightFiles {
    /// One safetensors file.
    Safetensors(PathBuf, Bytes),
    /// `model.safetensors.index.json` or `pytorch_model.bin.index.json`, which names the shards beside it.
    Index(PathBuf),
    /// `pytorch_model.bin`, or another file that `torch.save` wrote.
    Pickle(PathBuf, Bytes),
    /// A GGUF file, which also holds the config and the tokenizer.
    Gguf(PathBuf, Bytes),
    /// The parts of a GGUF file, in order.
    GgufParts(Vec<(PathBuf, Bytes)>),
    /// A checkpoint of llm.c, which also holds the config.
    LlmC(PathBuf, Bytes),
    /// Headers of safetensors files without their data: enough for an audit, not enough for a model.
    Headers(Vec<Header>),
}

impl WeightFiles {
    /// Whether a file holds the whole model: it then has no folder of its own, in which other files belong to it.
    #[must_use]
    pub fn stands_alone(&self) -> bool {
        matches!(self, Self::Gguf(..) | Self::GgufParts(_) | Self::LlmC(..))
    }

    /// The file at `path`, which has one of the names in [`WEIGHTS`].
    pub(crate) fn of(
        path: PathBuf,
        open: impl FnOnce(&Path) -> Result<Bytes, LoadError>,
    ) -> Result<Self, LoadError> {
        let is = |name: &str| path.file_name() == Some(name.as_ref());
        if is(INDEX) || is(PICKLE_INDEX) {
            return Ok(Self::Index(path));
        }
        let bytes = open(&path)?;
        Ok(if is(SAFETENSORS) { Self::Safetensors(path, bytes) } else { Self::Pickle(path, bytes) })
    }
}

/// The tokenizer's files.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TokenizerFiles {
    /// tokenizer.json
    Json(PathBuf, Bytes),
    /// vocab.json and merges.txt, or `OpenAI`'s encoder.json and vocab.bpe
    VocabMerges {
        /// vocab.json
        vocab: (PathBuf, Bytes),
        /// merges.txt
        merges: (PathBuf, Bytes),
    },
    /// Another kind of tokenizer: this is one of its files.
    Foreign(PathBuf),
    /// A GGUF file, which may hold one.
    Gguf(PathBuf, Bytes),
    /// No tokenizer file.
    Absent,
    /// The Hub may have one, but fetching it failed for this reason.
    Unreachable(Arc<LoadError>),
}

/// Files of settings, beside the weights and the vocabulary: for the tokens of a text, and for generation. Each may be absent.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SettingsFiles {
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<(PathBuf, Bytes)>,
    /// `added_tokens.json`
    pub added_tokens: Option<(PathBuf, Bytes)>,
    /// `special_tokens_map.json`
    pub special_tokens: Option<(PathBuf, Bytes)>,
    /// `generation_config.json`
    pub generation_config: Option<(PathBuf, Bytes)>,
}

impl SettingsFiles {
    /// Opens each file through `open`, which has `None` for a file that is not there.
    pub(crate) fn find<E>(open: impl Fn(&str) -> Result<Option<(PathBuf, Bytes)>, E>) -> Result<Self, E> {
        Ok(Self {
            tokenizer_config: open(TOKENIZER_CONFIG)?,
            added_tokens: open(ADDED_TOKENS)?,
            special_tokens: open(SPECIAL_TOKENS)?,
            generation_config: open(GENERATION_CONFIG)?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &(PathBuf, Bytes)> {
        [&self.tokenizer_config, &self.added_tokens, &self.special_tokens, &self.generation_config]
            .into_iter()
            .flatten()
    }
}

/// Whether a file of this name belongs to a tokenizer that is not byte-level BPE: `SentencePiece`'s and tiktoken's models,
/// BERT's and Mistral's vocabularies, the codes of subword-nmt and fairseq.
pub(crate) fn is_foreign(name: &str) -> bool {
    const NAMES: [&str; 6] = ["vocab.txt", "tekken.json", "bpe.codes", "bpecodes", "codes", "dict.txt"];
    let end = Path::new(name).extension().unwrap_or_default();
    NAMES.contains(&name) || ["model", "spm", "tiktoken"].iter().any(|of| end.eq_ignore_ascii_case(of))
}
