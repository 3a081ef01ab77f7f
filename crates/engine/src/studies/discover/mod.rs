//! The edges that a task needs, and how faithful the circuit is that they make.

mod circuit_file;
mod edge_scores;
mod report;
mod search;

use super::mean::Mean;
use super::run::{Outcome, Run, Study};
use crate::interventions::{Applied, Reads};
use crate::provenance::RunProvenance;
use crate::texts::PairsInput;
use crate::words::{Choices, name_of};
use anyhow::bail;
pub use circuit_file::circuit_file;
use gpt2_circuits::discovery::{self, EdgeGradients, EdgeScoring, Pair, Replacement};
use search::Search;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use edge_scores::{EdgeScoreOptions, EdgeScoreReport, GradientRuns};
pub use report::{EachPair, MeasuredCircuit, Report, ScoredEdge, SizedCircuit, Without};

/// The options of circuit discovery.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The pairs of texts.
    pub pairs: PairsInput,
    /// The number of runs between the texts over which gradients are taken; with 0, they are those of the clean run.
    pub steps: usize,
    /// What leads from the corrupted to the clean text in these runs.
    pub integrate: Integral,
    /// Whether attention is computed again for each edge into queries and keys (`AtP*`, Kramár et al. 2024).
    pub qk_fix: bool,
    /// The order in which edges are chosen.
    pub choose: EdgeChoice,
    /// What stands in for the other edges.
    #[serde(with = "ReplacementName")]
    pub replace: Replacement,
    /// How many edges to choose; without a number, as many as reach `faithfulness`.
    pub edges: Option<usize>,
    /// The faithfulness to look for.
    pub faithfulness: f64,
    /// The number of circuits of random edges beside each circuit.
    pub random: usize,
    /// Whether to run the circuit without each of its heads and MLPs, too.
    pub minimal: bool,
}

/// What leads from the corrupted to the clean text when gradients are integrated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Integral {
    /// The embeddings of the tokens.
    #[default]
    Inputs,
    /// What the embeddings, the heads of a layer and an MLP add, one after the other.
    Activations,
}

/// The order in which edges are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeChoice {
    /// From the logits on, each time the best edge into the circuit.
    #[default]
    Greedy,
    /// The best of all.
    Rank,
}

/// Serde's names of replacements.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Replacement", rename_all = "lowercase")]
enum ReplacementName {
    Corrupted,
    Mean,
    Zero,
}

/// Integrals by name.
pub const INTEGRALS: &Choices<Integral> =
    &[("inputs", Integral::Inputs), ("activations", Integral::Activations)];
/// Orders of choosing edges by name.
pub const CHOICES: &Choices<EdgeChoice> = &[("greedy", EdgeChoice::Greedy), ("rank", EdgeChoice::Rank)];
/// Replacements by name.
pub const REPLACEMENTS: &Choices<Replacement> =
    &[("corrupted", Replacement::Corrupted), ("mean", Replacement::Mean), ("zero", Replacement::Zero)];

impl Default for Options {
    fn default() -> Self {
        Self {
            pairs: PairsInput::default(),
            steps: 5,
            integrate: Integral::default(),
            qk_fix: false,
            choose: EdgeChoice::default(),
            replace: Replacement::default(),
            edges: None,
            faithfulness: 0.9,
            random: 3,
            minimal: false,
        }
    }
}

/// The interventions for runs over pairs: over the only pair, they may name its positions.
pub(super) fn on_pairs(run: &Run, pairs: &[Pair]) -> anyhow::Result<Applied> {
    run.interventions.of(match pairs {
        [pair] => Reads::Branches(&pair.clean),
        _ => Reads::Others("pairs of prompts"),
    })
}

/// The pairs of a study on the run's model, under interventions.
pub(super) fn study_of<'a>(
    run: &Run<'a>,
    pairs: &'a [Pair],
    applied: &'a Applied,
) -> anyhow::Result<discovery::Study<'a>> {
    let study = discovery::Study::new(&run.opened.model, pairs)?;
    Ok(if applied.list.is_empty() { study } else { study.with_hooks(&applied.list)? })
}

/// The facts that runs over pairs depend on; of a single pair, its tokens, too.
pub(super) fn provenance(run: &Run, pairs: &[Pair], applied: &Applied) -> anyhow::Result<RunProvenance> {
    let longest = pairs.first().map_or(1, |pair| pair.clean.len());
    let mut provenance = RunProvenance::of_tokens(run.opened, longest)?.under(applied);
    if let [pair] = pairs {
        provenance.ids.clone_from(&pair.clean);
        provenance.corrupt_ids.clone_from(&pair.corrupt);
    }
    Ok(provenance)
}

impl Options {
    fn scoring(&self, run: &Run) -> anyhow::Result<EdgeScoring> {
        let spelling = run.opened.spelling;
        let gradients = match (self.steps, self.integrate) {
            (0, Integral::Inputs) => EdgeGradients::Clean,
            (0, Integral::Activations) => bail!(
                "{} needs {} of at least 1: 0 takes the clean run's gradients alone",
                spelling.given("integrate", "activations"),
                spelling.option("steps")
            ),
            (steps, Integral::Inputs) => EdgeGradients::Integrated { steps },
            (steps, Integral::Activations) => EdgeGradients::IntegratedActivations { steps },
        };
        Ok(EdgeScoring { gradients, qk_fix: self.qk_fix })
    }

    /// Refuses sizes and shares that no circuit has.
    fn check(&self, run: &Run) -> anyhow::Result<()> {
        let option = |name| run.opened.spelling.option(name);
        if self.edges == Some(0) {
            bail!("{}: a circuit has at least one edge", option("edges"));
        }
        if !(self.faithfulness > 0.0 && self.faithfulness < 1.0) {
            bail!("{} is {}, expected a number between 0 and 1", option("faithfulness"), self.faithfulness);
        }
        Ok(())
    }

    fn settings(&self, pairs: &[Pair], seed: u64) -> serde_json::Value {
        let mut settings = self.pairs.facts(pairs);
        for (name, value) in [
            ("steps", json!(self.steps)),
            ("integrate", json!(name_of(INTEGRALS, &self.integrate))),
            ("qk_fix", json!(self.qk_fix)),
            ("choose", json!(name_of(CHOICES, &self.choose))),
            ("replace", json!(name_of(REPLACEMENTS, &self.replace))),
            ("edges", json!(self.edges)),
            ("faithfulness", json!(self.edges.is_none().then_some(self.faithfulness))),
            ("random", json!(self.random)),
            ("seed", json!(seed)),
        ] {
            settings[name] = value;
        }
        settings
    }
}

impl Study for Options {
    const NAME: &'static str = "discover";
    // A circuit replaces what readers read, and that is what the scores of edges are about.
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = Report;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        self.check(run)?;
        let scoring = self.scoring(run)?;
        let pairs = self.pairs.read(run.opened, run.observer)?;
        let applied = on_pairs(run, &pairs)?;
        let study = study_of(run, &pairs, &applied)?;
        study.check(scoring)?;
        let search = Search::new(self, run, &study, scoring)?;
        let curve = search.curve()?;
        let circuit = search.chosen(&curve)?;
        Ok(Outcome::new(Report {
            provenance: provenance(run, &pairs, &applied)?,
            settings: self.settings(&pairs, run.seed),
            pairs: pairs.len(),
            clean_difference: Mean::of(&search.clean),
            corrupt_difference: Mean::of(&search.corrupt),
            without_edges: Mean::of(&search.none),
            all_edges: study.graph().edge_count(),
            area: report::area(&curve),
            distance: report::distance(&curve),
            curve,
            circuit,
        }))
    }
}
