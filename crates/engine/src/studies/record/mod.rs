//! The values at hook points over a corpus, in a folder of shards, by one process or by many.
//!
//! It is no [`Study`](super::Study): it writes a folder of its own, and shares the work with the other processes of a group.

mod documents;
mod shards;
mod texts;

pub use documents::{Documents, TextsInMemory};
pub use shards::Recording;

use crate::interventions::Prepared;
use crate::observer::Observer;
use crate::open::Opened;
use crate::provenance::RunProvenance;
use crate::spelling::Spelling;
use crate::studies::PointName;
use crate::studies::run::Run;
use crate::texts::{By, Corpus, DocumentOptions, DocumentUnit, Windowing};
use anyhow::bail;
use candle_core::DType;
use gpt2_files::{INDEX, StoreWriter};
use gpt2_model::hooks::Point;
use gpt2_parallel::{Fact, Group};
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};
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
    /// What a document is; by default JSON lines in a .jsonl file, else a whole file.
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

/// What was recorded.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The folder.
    pub folder: PathBuf,
    /// The points, as they were named.
    pub points: Vec<String>,
    /// The number of documents.
    pub documents: usize,
    /// The number of documents without a token.
    pub empty: usize,
    /// The number of tokens.
    pub tokens: usize,
    /// The number of shards.
    pub shards: usize,
    /// The speed; none where all shards were there already.
    #[serde(skip)]
    pub tokens_per_second: Option<f64>,
}

/// The settings that every shard depends on.
#[derive(Serialize)]
struct ShardSettings<'a> {
    provenance: &'a RunProvenance,
    /// The unit that counts as a document.
    #[serde(flatten)]
    by: &'a By,
    points: &'a [String],
    store: &'static str,
    window: usize,
    shard_tokens: u32,
    bos: bool,
    /// The model's config and weights, the tokenizer, and what interventions read from files.
    fingerprint: String,
    isa: &'static str,
}

/// The values to record of each token, and the windows to compute them in.
struct Plan {
    points: Vec<Point>,
    /// The points' names, as the user spelled them and as the shards keep them.
    names: Vec<String>,
    windowing: Windowing,
}

/// What a stopped run leaves, and how to go on.
#[must_use]
pub fn left(spelling: Spelling) -> &'static str {
    match spelling {
        Spelling::Flags => "the finished shards stay: run the same command with --resume to continue",
        Spelling::Keywords => "the finished shards stay: call it again with resume=True to continue",
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

    /// Checks the options, lets the processes of the group agree on them, and begins the folder.
    ///
    /// # Errors
    /// When an option does not fit the model, processes differ, or the folder holds other values.
    pub fn begin<'a>(&'a self, run: &Run<'a>, group: &'a dyn Group) -> anyhow::Result<Recording<'a>> {
        let Run { opened, interventions, .. } = *run;
        let plan = self.plan(opened, interventions)?;
        let provenance = RunProvenance::of_tokens(opened, plan.windowing.window)?;
        let provenance = provenance.under(&interventions.described());
        let facts = self.facts(run, &plan, &provenance)?;
        agree(group, &facts)?;
        let writer = || StoreWriter::new(&self.out, plan.names.clone(), facts.clone());
        // One process makes the folder, and all of them see it.
        if group.rank() == 0 {
            writer()?;
        }
        group.any(false)?;
        let writer = writer()?;
        Ok(Recording { options: self, run: *run, group, plan, provenance, writer })
    }

    fn plan(&self, opened: &Opened, interventions: &Prepared) -> anyhow::Result<Plan> {
        let spelling = opened.spelling;
        let config = opened.model.config();
        let points_option = spelling.option("points");
        let found = PointName::all(&points_option, &self.points, config.n_layer)?;
        let (names, points): (Vec<String>, Vec<Point>) = found.into_iter().unzip();
        if points.is_empty() {
            bail!("{points_option}: there is none; name the values to record");
        }
        if let Some((name, _)) =
            names.iter().zip(&points).find(|(_, point)| matches!(point, Point::Scores(_) | Point::Pattern(_)))
        {
            bail!(
                "{points_option} {name}: has a value for each pair of tokens, not for each token; record another point"
            );
        }
        let mean_of = spelling.option("mean-of");
        if interventions.options().need_whole_texts() {
            bail!(
                "interventions at positions, or with means over the text, do not fit windows; take fixed means with {mean_of}"
            );
        }
        let windowing = Windowing::new(config, self.bos, self.window, spelling)?;
        let own = windowing.window - windowing.added();
        if (self.shard_tokens as usize) < own {
            bail!(
                "{}: a window of {own} tokens does not fit; give more, or a smaller {}",
                spelling.given("shard-tokens", self.shard_tokens),
                spelling.option("window")
            );
        }
        if self.bos && interventions.options().given().contains(&"mean-ablate") {
            let bos = spelling.option("bos");
            bail!("{bos}: it would move the positions of the means of {mean_of}; leave one of them out");
        }
        Ok(Plan { points, names, windowing })
    }

    fn facts(&self, run: &Run, plan: &Plan, provenance: &RunProvenance) -> anyhow::Result<serde_json::Value> {
        let opened = run.opened;
        let mut hash = DefaultHasher::new();
        (opened.model.fingerprint()?, opened.tokenizer()?.to_json().ok()).hash(&mut hash);
        run.interventions.hash(&mut hash, run.observer)?;
        Ok(serde_json::to_value(ShardSettings {
            provenance,
            by: &self.unit(opened.spelling)?,
            points: &plan.names,
            store: DType::as_str(&self.store.dtype()),
            window: plan.windowing.window,
            shard_tokens: self.shard_tokens,
            bos: plan.windowing.bos.is_some(),
            fingerprint: format!("{:016x}", hash.finish()),
            isa: candle_fused::Isa::current().as_str(),
        })?)
    }
}

/// Refuses processes whose shards would differ.
fn agree(group: &dyn Group, facts: &serde_json::Value) -> anyhow::Result<()> {
    let fact = |(what, value): (&String, &serde_json::Value)| Fact {
        what: what.clone(),
        value: value.to_string(),
        remedy: "start every rank with the same command and the same model",
    };
    group.agree(|| anyhow::Ok(facts.as_object().into_iter().flatten().map(fact).collect()))
}
