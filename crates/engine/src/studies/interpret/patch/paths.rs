//! Path patching: what senders tell readers.

use super::agreement::check_difference;
use crate::interventions::Applied;
use crate::observer::steps;
use crate::provenance::RunProvenance;
use crate::studies::interpret::measure::{Measured, MetricName, measured};
use crate::studies::interpret::over_pairs::{provenance, study_of};
use crate::studies::study::{Mean, Outcome, Run, Study};
use crate::texts::PairsInput;
use crate::words::{Choices, name_of};
use anyhow::bail;
use gpt2_circuits::discovery::{Freeze, Pair, Paths, Reader, Writer};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The parts that stay as in the clean run, by name.
pub const FREEZES: &Choices<Freeze> =
    &[("all", Freeze::All), ("heads", Freeze::Heads), ("nothing", Freeze::Nothing)];

/// Serde's names of what stays.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Freeze", rename_all = "lowercase")]
pub(super) enum FreezeName {
    All,
    Heads,
    Nothing,
}

/// Senders and readers, as the user typed them: `0.1,0.2->3.2.q,logits`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathsText {
    senders: Vec<Writer>,
    receivers: Vec<Reader>,
    text: String,
}

impl FromStr for PathsText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (senders, receivers) =
            text.split_once("->").ok_or("expected senders and readers, such as 0.3->1.2.k,1.0.k")?;
        Ok(Self {
            senders: senders.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?,
            receivers: receivers.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?,
            text: text.to_owned(),
        })
    }
}

impl TryFrom<String> for PathsText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PathsText> for String {
    fn from(PathsText { text, .. }: PathsText) -> Self {
        text
    }
}

/// The share of the difference that the clean run loses along paths.
#[derive(Debug, Clone, Serialize)]
pub struct PathPatch {
    /// Senders and readers, as they were given.
    pub path: String,
    /// The parts between them that stay as in the clean run.
    pub freeze: &'static str,
    /// The share.
    pub lost: Mean,
}

/// Path patching alone, without patches of parts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathOptions {
    /// The pairs of texts.
    pub pairs: PairsInput,
    /// The metric; by default that of the answers.
    pub metric: Option<MetricName>,
    /// The positions over which the metric of the answers is averaged, instead of the last.
    pub positions: Vec<usize>,
    /// Senders and readers.
    pub path: Vec<PathsText>,
    /// The parts between them that stay as in the clean run.
    #[serde(with = "FreezeName")]
    pub freeze: Freeze,
}

/// The loss of the clean runs along each path.
#[derive(Debug, Serialize)]
pub struct PathReport {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The source of the pairs.
    pub settings: serde_json::Value,
    /// The number of pairs.
    pub pairs: usize,
    /// The metric; null for the logit difference of the answers, or the log-probability of the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// The metric after the clean texts.
    pub clean_difference: Mean,
    /// The metric after the corrupted texts.
    pub corrupt_difference: Mean,
    /// The paths.
    pub paths: Vec<PathPatch>,
}

/// The metrics of the plain runs, and what is lost along each path.
pub(super) struct MeasuredPaths {
    pub(super) clean: Vec<f64>,
    pub(super) corrupt: Vec<f64>,
    pub(super) paths: Vec<PathPatch>,
}

/// The share of the mean difference between clean and corrupted texts that the clean runs lose along each path.
pub(super) fn measure(
    run: &Run,
    pairs: &[Pair],
    applied: &Applied,
    paths: &[PathsText],
    freeze: Freeze,
) -> anyhow::Result<MeasuredPaths> {
    let study = study_of(run, pairs, applied)?;
    let all = paths.iter().map(|PathsText { senders, receivers, .. }| Paths {
        senders: senders.clone(),
        receivers: receivers.clone(),
        freeze,
    });
    let all: Vec<Paths> = all.collect();
    let (clean, corrupt) = study.plain(&mut steps(run.observer, "runs"))?;
    let difference = Mean::of(&clean).mean - Mean::of(&corrupt).mean;
    let found = study.path_patching(&all, &mut steps(run.observer, "paths"))?;
    if !found.iter().flatten().all(|metric| metric.is_finite()) {
        bail!("{}: the metric of a path is not finite", run.opened.spelling.option("path"));
    }
    let freeze = name_of(FREEZES, &freeze);
    let lost = |(path, metrics): (&PathsText, Vec<f64>)| {
        let lost: Vec<f64> =
            clean.iter().zip(metrics).map(|(clean, patched)| (clean - patched) / difference).collect();
        PathPatch { path: path.text.clone(), freeze, lost: Mean::of(&lost) }
    };
    let paths = paths.iter().zip(found).map(lost).collect();
    Ok(MeasuredPaths { clean, corrupt, paths })
}

impl Study for PathOptions {
    const NAME: &'static str = "path-patching";
    // A circuit replaces what readers read, as paths do.
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = PathReport;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<PathReport>> {
        let spelling = run.opened.spelling;
        if self.path.is_empty() {
            bail!("{}: there is no path; 0.3->1.2.k is one", spelling.option("path"));
        }
        let Measured { pairs, applied, metric, is_difference, facts } =
            measured(run, &self.pairs, self.metric, &self.positions)?;
        let MeasuredPaths { clean, corrupt, paths } =
            measure(run, &pairs, &applied, &self.path, self.freeze)?;
        let clean_difference = Mean::of(&clean);
        let corrupt_difference = Mean::of(&corrupt);
        let difference = clean_difference.mean - corrupt_difference.mean;
        let wrong = is_difference.then_some("the wrong one");
        check_difference(run, clean_difference.mean, difference, "the right answer", wrong, self.metric)?;
        Ok(Outcome::new(PathReport {
            provenance: provenance(run, &pairs, &applied)?,
            settings: facts,
            pairs: pairs.len(),
            metric,
            clean_difference,
            corrupt_difference,
            paths,
        }))
    }
}
