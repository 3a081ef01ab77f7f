//! The options of recording.

use super::documents::Documents;
use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::studies::study::PointName;
use crate::texts::{By, Corpus, DocumentOptions, DocumentUnit};
use anyhow::bail;
use candle_core::DType;
use gpt2_files::INDEX;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The options of recording.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// A file of texts, a folder of them, or `-` for standard input.
    pub corpus: PathBuf,
    /// The points whose values to record.
    pub points: Vec<PointName>,
    /// The folder for the shards.
    pub out: PathBuf,
    /// The precision of the values on disk.
    pub store: StoredAs,
    /// Tokens of a shard at most.
    pub shard_tokens: u32,
    /// The unit that counts as a document; by default JSON lines in a .jsonl file, else a whole file.
    pub by: Option<DocumentUnit>,
    /// The field of JSON lines that holds the text; by default `text`.
    pub field: Option<String>,
    /// Whether the model's first token stands before each window.
    pub bos: bool,
    /// Tokens of a window at most; by default as many as the model reads.
    pub window: Option<u32>,
    /// Whether to go on where an earlier run stopped.
    pub resume: bool,
}

/// The precision of values on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredAs {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits.
    F16,
}

impl StoredAs {
    /// The dtype.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            corpus: PathBuf::new(),
            points: vec![],
            out: PathBuf::new(),
            store: StoredAs::default(),
            shard_tokens: 1 << 15,
            by: None,
            field: None,
            bos: false,
            window: None,
            resume: false,
        }
    }
}

impl Options {
    /// The unit that counts as a document.
    ///
    /// # Errors
    /// When a field is named for documents that have none.
    pub fn unit(&self, spelling: Spelling) -> anyhow::Result<By> {
        By::new(&DocumentOptions { by: self.by, field: self.field.clone() }, &self.corpus, spelling)
    }

    /// The documents of the corpus, for the first process of a group alone.
    ///
    /// # Errors
    /// When there is no such file or folder, or the folder has no text.
    pub fn documents<'a>(
        &self,
        spelling: Spelling,
        observer: &'a dyn Observer,
    ) -> anyhow::Result<Documents<'a>> {
        let corpus = Corpus::open(&self.corpus, self.unit(spelling)?, spelling, observer)?;
        Ok(Documents::Corpus(corpus))
    }

    /// Refuses a folder that holds something, unless a run is to go on there, or one has left it without a shard.
    ///
    /// # Errors
    /// When there is something else.
    pub fn check_out(&self, spelling: Spelling) -> anyhow::Result<()> {
        let given = spelling.given("out", self.out.display());
        if self.out == Path::new("-") {
            bail!("{given}: expected the name of a folder; ./- is one");
        }
        if self.out.exists() && !self.out.is_dir() {
            bail!("{given}: is a file; name a folder, which may be new");
        }
        let entries = std::fs::read_dir(&self.out).into_iter().flatten().flatten();
        let names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let is_begun = names.iter().all(|name| name == INDEX || name.starts_with(".gpt2-"));
        if is_begun || (self.resume && names.iter().any(|name| name == INDEX)) {
            return Ok(());
        }
        if names.iter().any(|name| name == INDEX) {
            let resume = spelling.switch("resume");
            bail!("{given}: holds values already; go on with {resume}, or name another folder");
        }
        bail!("{given}: holds other files; name an empty folder, or a new one")
    }
}
