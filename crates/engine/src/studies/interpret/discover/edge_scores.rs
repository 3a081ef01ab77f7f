//! Scores of all edges by themselves, without a search for a circuit.

use super::options::{INTEGRALS, Integral};
use super::search::{check_plain, score};
use crate::observer::steps;
use crate::provenance::RunProvenance;
use crate::studies::interpret::measure::{Measured, MetricName, measured};
use crate::studies::interpret::over_pairs::{provenance, study_of};
use crate::studies::study::{Mean, Outcome, Run, Study};
use crate::texts::PairsInput;
use crate::words::{Choices, name_of};
use anyhow::bail;
use candle_core::{Device, Tensor};
use gpt2_circuits::discovery::{Edge, EdgeGradients, EdgeScores, EdgeScoring};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The options of scores of all edges. Their defaults are those of `discover`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeScoreOptions {
    /// The pairs of texts.
    pub pairs: PairsInput,
    /// The metric; by default that of the answers.
    pub metric: Option<MetricName>,
    /// The positions over which the metric of the answers is averaged, instead of the last.
    pub positions: Vec<usize>,
    /// The runs in which gradients are taken.
    pub gradients: GradientRuns,
    /// The number of runs between the texts over which gradients are integrated.
    pub steps: usize,
    /// The path from the corrupted to the clean text in these runs.
    pub integrate: Integral,
    /// Whether attention is computed again for each edge into queries and keys (`AtP*`, Kramár et al. 2024).
    pub qk_fix: bool,
}

/// The runs in which gradients are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientRuns {
    /// The clean one (EAP: Syed et al. 2023).
    Clean,
    /// The corrupted one, as in attribution patching (Nanda 2023).
    Corrupted,
    /// Several between the two (EAP-IG: Hanna et al. 2024).
    #[default]
    Integrated,
}

const GRADIENTS: &Choices<GradientRuns> = &[
    ("clean", GradientRuns::Clean),
    ("corrupted", GradientRuns::Corrupted),
    ("integrated", GradientRuns::Integrated),
];

impl Default for EdgeScoreOptions {
    fn default() -> Self {
        Self {
            pairs: PairsInput::default(),
            metric: None,
            positions: vec![],
            gradients: GradientRuns::default(),
            steps: 5,
            integrate: Integral::default(),
            qk_fix: false,
        }
    }
}

/// Writers and readers, whose scores are the tensor `scores`.
#[derive(Debug, Serialize)]
pub struct EdgeScoreReport {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The options that shaped it.
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
    /// The names of the writers: the embeddings, then each layer's heads and its MLP.
    pub writers: Vec<String>,
    /// The names of the readers: each layer's queries, keys, values and its MLP, then the logits.
    pub readers: Vec<String>,
    /// The number of writers before each reader. Edges lead from these alone.
    pub writers_before: Vec<usize>,
}

impl EdgeScoreOptions {
    fn scoring(&self, run: &Run) -> anyhow::Result<EdgeScoring> {
        let gradients = match (self.gradients, self.integrate) {
            (GradientRuns::Integrated, Integral::Inputs) => EdgeGradients::Integrated { steps: self.steps },
            (GradientRuns::Integrated, Integral::Activations) => {
                EdgeGradients::IntegratedActivations { steps: self.steps }
            }
            (GradientRuns::Clean, Integral::Inputs) => EdgeGradients::Clean,
            (GradientRuns::Corrupted, Integral::Inputs) => EdgeGradients::Corrupt,
            (_, Integral::Activations) => bail!(
                "{} needs {}",
                run.opened.spelling.given("integrate", "activations"),
                run.opened.spelling.given("gradients", "integrated")
            ),
        };
        Ok(EdgeScoring { gradients, qk_fix: self.qk_fix })
    }
}

/// The scores, (readers, writers) in f64; 0 where there is no edge.
fn by_reader(scores: &EdgeScores) -> candle_core::Result<Tensor> {
    let graph = scores.graph();
    let of = |to, from| scores.of(Edge { from, to }).unwrap_or(0.0);
    let values = graph.readers().flat_map(|to| graph.writers().map(move |from| of(to, from)));
    Tensor::from_vec(values.collect(), (graph.reader_count(), graph.writer_count()), &Device::Cpu)
}

impl Study for EdgeScoreOptions {
    const NAME: &'static str = "edge-scores";
    // A circuit replaces what readers read, and that is what the scores are about.
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = EdgeScoreReport;

    /// The tensor `scores` holds a row for each reader, a column for each writer. Above 0, an edge helps the right answers.
    fn run(&self, run: &Run) -> anyhow::Result<Outcome<EdgeScoreReport>> {
        let scoring = self.scoring(run)?;
        let Measured { pairs, applied, metric, facts: mut settings, .. } =
            measured(run, &self.pairs, self.metric, &self.positions)?;
        let study = study_of(run, &pairs, &applied)?;
        study.check(scoring)?;
        let (clean, corrupt) = study.plain(&mut steps(run.observer, "runs"))?;
        check_plain(run, &study, &clean, &corrupt)?;
        let scores = score(run, &study, scoring)?;
        for (name, value) in [
            ("gradients", json!(name_of(GRADIENTS, &self.gradients))),
            ("steps", json!((self.gradients == GradientRuns::Integrated).then_some(self.steps))),
            ("integrate", json!(name_of(INTEGRALS, &self.integrate))),
            ("qk_fix", json!(self.qk_fix)),
        ] {
            settings[name] = value;
        }
        let graph = study.graph();
        let report = EdgeScoreReport {
            provenance: provenance(run, &pairs, &applied)?,
            settings,
            pairs: pairs.len(),
            metric,
            clean_difference: Mean::of(&clean),
            corrupt_difference: Mean::of(&corrupt),
            writers: graph.writers().map(|writer| writer.to_string()).collect(),
            readers: graph.readers().map(|reader| reader.to_string()).collect(),
            writers_before: graph.readers().map(|reader| graph.writers_before(reader)).collect(),
        };
        Ok(Outcome { report, tensors: vec![("scores".to_owned(), by_reader(&scores)?)] })
    }
}
