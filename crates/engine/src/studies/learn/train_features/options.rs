//! The options and surroundings of training a dictionary, and its report.

use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::studies::learn::record::Documents;
use crate::texts::{By, Corpus, DocumentOptions, DocumentUnit};
use crate::words::{Choices, name_of, one_of};
use anyhow::bail;
use gpt2_files::INDEX;
use gpt2_parallel::Group;
use gpt2_train::Sparsity;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rules by which features are kept few, by name.
pub const SPARSITIES: &Choices<Sparsity> = &[("topk", Sparsity::TopK), ("jumprelu", Sparsity::JumpRelu)];

/// The file of a stopped run's state, beside the dictionary.
const STATE: &str = "training-state.safetensors";

/// The options of training a dictionary.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// A store; or a file or folder of texts.
    pub source: PathBuf,
    /// The folder for the dictionary.
    pub out: PathBuf,
    /// The value to learn from; needed with a text, or if the store has several.
    pub point: Option<String>,
    /// The value that a transcoder predicts from that one; `None` for a sparse autoencoder.
    pub writes: Option<String>,
    /// The number of features to learn; by default 8 for each number of a value.
    pub features: Option<u32>,
    /// The number of features that fire at a token.
    pub k: u32,
    /// The rule that keeps features few.
    #[serde(serialize_with = "name_of_sparsity", deserialize_with = "sparsity_of_name")]
    pub sparsity: Sparsity,
    /// The number of times to go through the values.
    pub epochs: u32,
    /// The number of tokens in a batch.
    pub batch: u32,
    /// The number of batches that a step adds up.
    pub accumulate: u16,
    /// The largest learning rate.
    pub lr: f64,
    /// After how many tokens without firing a feature is revived.
    pub silent_after: u32,
    /// Whether to replace a dictionary.
    pub overwrite: bool,
    /// Whether to go on where a stopped run was.
    pub resume: bool,
    /// The unit of a text that counts as a document; by default JSON lines in a .jsonl file, else a whole file.
    pub by: Option<DocumentUnit>,
    /// The field of JSON lines that holds the text; by default `text`.
    pub field: Option<String>,
    /// Whether the model's first token stands before each window of a text.
    pub bos: bool,
    /// Tokens of a window of a text at most; by default as many as the model reads.
    pub window: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: PathBuf::new(),
            out: PathBuf::new(),
            point: None,
            writes: None,
            features: None,
            k: 32,
            sparsity: Sparsity::TopK,
            epochs: 4,
            batch: 1024,
            accumulate: 1,
            lr: 4e-3,
            silent_after: 100_000,
            overwrite: false,
            resume: false,
            by: None,
            field: None,
            bos: false,
            window: None,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn name_of_sparsity<S: Serializer>(sparsity: &Sparsity, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(name_of(SPARSITIES, sparsity))
}

fn sparsity_of_name<'de, D: Deserializer<'de>>(from: D) -> Result<Sparsity, D::Error> {
    let name = String::deserialize(from)?;
    one_of("sparsity", &name, SPARSITIES).map_err(serde::de::Error::custom)
}

/// The names of the value to read, and of the one that a transcoder predicts.
#[derive(Debug, Clone)]
pub struct ValueNames {
    /// The value to read.
    pub point: String,
    /// The value to predict.
    pub writes: Option<String>,
}

impl ValueNames {
    /// Both, or the one.
    pub(super) fn all(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.point).chain(&self.writes)
    }
}

/// Training's surroundings: the processes, the seed, and who hears of it.
#[derive(Clone, Copy)]
pub struct TrainingRun<'a> {
    /// The processes that share the work.
    pub group: &'a Arc<dyn Group>,
    /// Decides the first weights and the order of values.
    pub seed: u64,
    /// The face that messages speak to.
    pub spelling: Spelling,
    /// Hears notes and progress, and may end the work.
    pub observer: &'a dyn Observer,
}

/// A dictionary that was trained.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Its folder.
    pub out: PathBuf,
    /// The value that it reads.
    pub point: String,
    /// The value that a transcoder predicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes: Option<String>,
    /// The numbers of the value that it reads.
    pub d: usize,
    /// The number of features.
    pub features: usize,
    /// The steps taken; fewer than planned if the run was asked to stop.
    pub steps: usize,
    /// The tokens that were learned from.
    pub tokens: usize,
    /// The share of the values' variance that is explained, over the last steps.
    pub explained_variance: f64,
    /// The mean number of features that fire, over the last steps.
    pub l0: f64,
    /// The number of features that are silent.
    pub silent: usize,
    /// The steps that were planned.
    #[serde(skip)]
    pub planned: usize,
}

impl Report {
    /// The end of a run that was asked to stop: how far it came, and how to go on. `None` for a run that has finished.
    #[must_use]
    pub fn stopped(&self, spelling: Spelling) -> Option<String> {
        let Self { steps, planned, .. } = self;
        let again = match spelling {
            Spelling::Flags => "run the same command with --resume to continue",
            Spelling::Keywords => "call it again with resume=True to continue",
        };
        (steps < planned).then(|| {
            format!("stopped after {steps} of {planned} steps; what has been learned is saved; {again}")
        })
    }
}

impl Options {
    /// Whether the source is a store.
    #[must_use]
    pub fn is_store(&self) -> bool {
        self.source.join(INDEX).exists()
    }

    /// The unit of a text that counts as a document.
    ///
    /// # Errors
    /// When a field is named for documents that have none.
    pub fn unit(&self, spelling: Spelling) -> anyhow::Result<By> {
        By::new(&DocumentOptions { by: self.by, field: self.field.clone() }, &self.source, spelling)
    }

    /// The documents of a text, for the first process of a group alone.
    ///
    /// # Errors
    /// When there is no such file or folder, or the folder has no text.
    pub fn documents<'a>(
        &self,
        spelling: Spelling,
        observer: &'a dyn Observer,
    ) -> anyhow::Result<Documents<'a>> {
        let corpus = Corpus::open(&self.source, self.unit(spelling)?, spelling, observer)?;
        Ok(Documents::Corpus(corpus))
    }

    /// Refuses to resume where there is no run, and to begin where one waits to go on.
    ///
    /// # Errors
    /// When it is so.
    pub fn check_state(&self, spelling: Spelling) -> anyhow::Result<()> {
        let state = self.state();
        let resume = spelling.switch("resume");
        if self.resume && !state.exists() {
            bail!("{resume}: there is no {}; the run has finished, or never started", state.display());
        }
        if state.exists() && !self.resume && !self.overwrite {
            bail!(
                "{}: a run stopped there; continue it with {resume}, or start anew with {}",
                spelling.given("out", self.out.display()),
                spelling.switch("overwrite")
            );
        }
        Ok(())
    }

    /// Refuses sizes with which there is no step.
    ///
    /// # Errors
    /// When a number is too small, and for too many batches in a step.
    pub(super) fn check_sizes(&self, spelling: Spelling) -> anyhow::Result<()> {
        let ranges = [
            ("batch", self.batch, 2..=65_536),
            ("accumulate", self.accumulate.into(), 1..=1024),
            ("k", self.k, 1..=u32::MAX),
            ("epochs", self.epochs, 1..=u32::MAX),
            ("features", self.features.unwrap_or(1), 1..=1 << 20),
        ];
        match ranges.into_iter().find(|(_, given, range)| !range.contains(given)) {
            Some((name, given, range)) => {
                bail!("{}: expected {} to {}", spelling.given(name, given), range.start(), range.end())
            }
            None => Ok(()),
        }
    }

    /// Refuses a name that is no folder's, and a transcoder that no file can hold.
    ///
    /// # Errors
    /// When the name is `-`, or a transcoder is to be TopK.
    pub fn check(&self, spelling: Spelling) -> anyhow::Result<()> {
        if self.out == Path::new("-") {
            bail!("{}: expected the name of a folder; ./- is one", spelling.given("out", "-"));
        }
        if self.writes.is_some() && self.sparsity == Sparsity::TopK {
            bail!(
                "{}: SAELens' files have no TopK transcoder; add {}",
                spelling.option("writes"),
                spelling.given("sparsity", "jumprelu")
            );
        }
        Ok(())
    }

    /// The file of a stopped run's state.
    pub(super) fn state(&self) -> PathBuf {
        self.out.join(STATE)
    }

    pub(super) fn tokens_of_step(&self) -> usize {
        self.batch as usize * usize::from(self.accumulate)
    }
}
