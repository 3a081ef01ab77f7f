//! The search for a circuit: scores of all edges, circuits of growing size, and the one to report.

use super::options::{EdgeChoice, Options};
use super::report::{EachPair, MeasuredCircuit, ScoredEdge, SizedCircuit, Without};
use crate::observer::steps;
use crate::studies::interpret::measure::MetricName;
use crate::studies::interpret::over_pairs::are_alike;
use crate::studies::study::{Mean, Run};
use crate::words::count;
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use gpt2_circuits::discovery::{Edge, EdgeScores, EdgeScoring, EdgeSet, Study};
use std::time::Instant;

/// The sizes of circuits in the curve, in thousandths of all edges: those of the MIB benchmark (Mueller et al. 2025).
const THOUSANDTHS: [usize; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// Scores of all edges, and the metrics that circuits are compared with.
pub(super) struct Search<'a> {
    options: &'a Options,
    run: &'a Run<'a>,
    study: &'a Study<'a>,
    scores: EdgeScores,
    /// The metric of each pair with all edges, after the corrupted text, and without any edge.
    pub(super) clean: Vec<f64>,
    pub(super) corrupt: Vec<f64>,
    pub(super) none: Vec<f64>,
}

/// Refuses metrics of the plain runs that are not finite, unless the caller allows them.
pub(super) fn check_plain(run: &Run, study: &Study, clean: &[f64], corrupt: &[f64]) -> anyhow::Result<()> {
    for (place, pair) in study.pairs().iter().enumerate() {
        for (ids, metric) in [(&pair.clean, clean[place]), (&pair.corrupt, corrupt[place])] {
            let ids = run.opened.input_ids(ids)?;
            run.check_finite(&ids, study.hooks(), [&Tensor::new(metric, &Device::Cpu)?])?;
        }
    }
    Ok(())
}

/// The scores of all edges.
pub(super) fn score(run: &Run, study: &Study, scoring: EdgeScoring) -> anyhow::Result<EdgeScores> {
    let start = Instant::now();
    let scores = study.edge_scores(scoring, &mut steps(run.observer, "runs"))?;
    run.observer.timing(&format!(
        "scored {} in {:.1} s",
        count(study.graph().edge_count(), "edge"),
        start.elapsed().as_secs_f64()
    ));
    if !run.allow_nonfinite && scores.sorted().iter().any(|(_, score)| !score.is_finite()) {
        bail!(
            "a score is not finite: the gradients exceed the range of the dtype; {} goes on anyway",
            run.opened.spelling.switch("allow-nonfinite")
        );
    }
    Ok(scores)
}

impl<'a> Search<'a> {
    pub(super) fn new(
        options: &'a Options,
        run: &'a Run<'a>,
        study: &'a Study<'a>,
        scoring: EdgeScoring,
    ) -> anyhow::Result<Self> {
        let (clean, corrupt) = study.plain(&mut steps(run.observer, "runs"))?;
        let nothing = EdgeSet::empty(study.graph());
        let none = study.measure(&[&nothing], options.replace, &mut steps(run.observer, "runs"))?;
        let none = none.into_iter().next().context("no run without edges")?;
        check_plain(run, study, &clean, &corrupt)?;
        let scores = score(run, study, scoring)?;
        let search = Self { options, run, study, scores, clean, corrupt, none };
        if are_alike(mean(&search.clean), mean(&search.none), options.metric) {
            bail!(
                "the metric is {:#} with all edges and without any, so there is nothing to look for: choose prompts and answers \
                 that tell the two apart",
                Mean::of(&[mean(&search.clean)])
            );
        }
        let of_answers =
            run.metric.is_none() && !matches!(options.metric, Some(MetricName::Loss | MetricName::Kl));
        if of_answers && mean(&search.clean) < mean(&search.corrupt) {
            run.observer.note(
                "the clean prompts make the correct answers less likely than the corrupted ones do: swap them, if the model should get \
                 the clean ones right",
            );
        }
        Ok(search)
    }

    /// The faithfulness of each circuit, and the metric of each pair in it.
    fn measured(&self, circuits: &[&EdgeSet]) -> anyhow::Result<Vec<(f64, Vec<f64>)>> {
        let start = Instant::now();
        let mut progress = steps(self.run.observer, "runs of circuits");
        let found = self.study.measure(circuits, self.options.replace, &mut progress)?;
        if !self.run.allow_nonfinite && !found.iter().flatten().all(|metric| metric.is_finite()) {
            bail!(
                "a circuit's metric is not finite; {} goes on anyway",
                self.run.opened.spelling.switch("allow-nonfinite")
            );
        }
        if circuits.len() > 1 {
            self.run.observer.timing(&format!(
                "ran {} circuits in {:.1} s",
                circuits.len(),
                start.elapsed().as_secs_f64()
            ));
        }
        let all = mean(&self.clean);
        let none = mean(&self.none);
        Ok(found.into_iter().map(|each| ((mean(&each) - none) / (all - none), each)).collect())
    }

    /// The circuit of the best `count` edges, less those that lie on no path from the embeddings to the logits.
    fn best(&self, count: usize) -> EdgeSet {
        let chosen = match self.options.choose {
            EdgeChoice::Greedy => self.scores.greedy(count),
            EdgeChoice::Rank => self.scores.ranked(count),
        };
        chosen.connected(self.options.replace)
    }

    /// Circuits of `count` random edges each, as many as the options say.
    fn random(&self, count: usize) -> Vec<EdgeSet> {
        let seeds = (0..self.options.random).map(|i| self.run.seed.wrapping_add(i as u64));
        seeds.map(|seed| EdgeSet::random(self.study.graph(), count, seed)).collect()
    }

    /// Circuits of growing size, each beside random ones.
    pub(super) fn curve(&self) -> anyhow::Result<Vec<SizedCircuit>> {
        let total = self.study.graph().edge_count();
        let mut counts: Vec<usize> = THOUSANDTHS.map(|share| (share * total).div_ceil(1000)).to_vec();
        counts.dedup();
        let mut circuits = vec![];
        let mut draws = vec![];
        for &count in &counts {
            let best = self.best(count);
            // All edges are always the same ones.
            let random = if count < total { self.random(best.len()) } else { vec![] };
            draws.push(random.len());
            circuits.push(best);
            circuits.extend(random);
        }
        let found = self.measured(&circuits.iter().collect::<Vec<_>>())?;
        let mut found = circuits.iter().zip(found);
        let mut curve = vec![];
        for (edges, draws) in counts.into_iter().zip(draws) {
            let Some((circuit, (faithfulness, _))) = found.next() else { break };
            let random: Vec<f64> = found.by_ref().take(draws).map(|(_, (share, _))| share).collect();
            let random = (!random.is_empty()).then(|| Mean::of(&random));
            let share = edges as f64 / total as f64;
            curve.push(SizedCircuit { edges, share, connected: circuit.len(), faithfulness, random });
        }
        Ok(curve)
    }

    /// The number of edges: the one asked for, or one at which circuits reach the faithfulness.
    fn size(&self, curve: &[SizedCircuit]) -> anyhow::Result<usize> {
        if let Some(edges) = self.options.edges {
            return Ok(edges.min(self.study.graph().edge_count()));
        }
        let wanted = self.options.faithfulness;
        let above = curve.iter().position(|point| point.faithfulness >= wanted);
        let Some(above) = above else {
            bail!(
                "no circuit has a faithfulness of {wanted}; choose a smaller one, or a size with {}",
                self.run.opened.spelling.option("edges")
            );
        };
        let below = above.checked_sub(1).map_or(0, |below| curve[below].edges);
        // The sizes between two of the curve, halved until they meet.
        let mut low = below;
        let mut high = curve[above].edges;
        while low + 1 < high {
            let middle = low.midpoint(high);
            let circuit = self.best(middle);
            if self.measured(&[&circuit])?[0].0 >= wanted { high = middle } else { low = middle }
        }
        Ok(high)
    }

    /// The circuit to report, with its faithfulness and that of the circuits beside it.
    pub(super) fn chosen(&self, curve: &[SizedCircuit]) -> anyhow::Result<MeasuredCircuit> {
        let size = self.size(curve)?;
        let circuit = self.best(size);
        if circuit.is_empty() {
            let spelling = self.run.opened.spelling;
            bail!(
                "no way from the embeddings to the logits has all its edges among the best {size}: give {}, or more with {}",
                spelling.given("choose", "greedy"),
                spelling.option("edges")
            );
        }
        let parts = if self.options.minimal { circuit.parts() } else { vec![] };
        let without: Vec<EdgeSet> = parts.iter().map(|&part| circuit.without(part)).collect();
        let random = self.random(circuit.len());
        let rest = circuit.complement();
        let all: Vec<&EdgeSet> = [&circuit, &rest].into_iter().chain(&random).chain(&without).collect();
        let mut found = self.measured(&all)?.into_iter();
        let mut next = || found.next().unwrap_or((f64::NAN, vec![]));
        let ((faithfulness, each), (rest, _)) = (next(), next());
        let random: Vec<f64> = random.iter().map(|_| next().0).collect();
        let without =
            parts.iter().map(|part| Without { part: part.to_string(), faithfulness: next().0 }).collect();
        let scored = |edge: Edge| ScoredEdge { edge, score: self.scores.of(edge).unwrap_or(f64::NAN) };
        let mut edges: Vec<ScoredEdge> = circuit.iter().map(scored).collect();
        edges.sort_by(|a, b| b.score.abs().total_cmp(&a.score.abs()));
        let each = self.clean.iter().zip(&self.corrupt).zip(each);
        Ok(MeasuredCircuit {
            faithfulness,
            rest,
            random: (!random.is_empty()).then(|| Mean::of(&random)),
            without,
            edges,
            each: each.map(|((&clean, &corrupt), circuit)| EachPair { clean, corrupt, circuit }).collect(),
        })
    }
}

fn mean(values: &[f64]) -> f64 {
    Mean::of(values).mean
}
