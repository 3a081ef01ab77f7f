//! Circuit discovery as a study: checks, the search, the report.

use super::options::{CHOICES, INTEGRALS, Integral, Options, REPLACEMENTS};
use super::report::{Report, area, distance};
use super::search::Search;
use crate::spelling::Spelling;
use crate::studies::interpret::measure::{Measured, measured};
use crate::studies::interpret::over_pairs::{provenance, study_of};
use crate::studies::study::{Mean, Outcome, Run, Study};
use crate::words::name_of;
use anyhow::bail;
use gpt2_circuits::discovery::{EdgeGradients, EdgeScoring};
use serde_json::json;

impl Options {
    fn scoring(&self, spelling: Spelling) -> anyhow::Result<EdgeScoring> {
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

    /// Refuses sizes and shares that no circuit has, and gradients that there are not, before a model is needed.
    ///
    /// # Errors
    /// When an option is one of these.
    pub fn check(&self, spelling: Spelling) -> anyhow::Result<()> {
        let option = |name| spelling.option(name);
        if self.edges == Some(0) {
            bail!("{}: a circuit has at least one edge", option("edges"));
        }
        if !(self.faithfulness > 0.0 && self.faithfulness < 1.0) {
            bail!("{} is {}, expected a number between 0 and 1", option("faithfulness"), self.faithfulness);
        }
        self.scoring(spelling).map(drop)
    }

    /// The options, besides the facts of the pairs.
    fn settings(&self, mut settings: serde_json::Value, seed: u64) -> serde_json::Value {
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
        self.check(run.opened.spelling)?;
        let scoring = self.scoring(run.opened.spelling)?;
        let Measured { pairs, applied, metric, facts, .. } =
            measured(run, &self.pairs, self.metric, &self.positions)?;
        let study = study_of(run, &pairs, &applied)?;
        study.check(scoring)?;
        let search = Search::new(self, run, &study, scoring)?;
        let curve = search.curve()?;
        let circuit = search.chosen(&curve)?;
        Ok(Outcome::new(Report {
            provenance: provenance(run, &pairs, &applied)?,
            settings: self.settings(facts, run.seed),
            pairs: pairs.len(),
            metric,
            clean_difference: Mean::of(&search.clean),
            corrupt_difference: Mean::of(&search.corrupt),
            without_edges: Mean::of(&search.none),
            all_edges: study.graph().edge_count(),
            area: area(&curve),
            distance: distance(&curve),
            curve,
            circuit,
        }))
    }
}
