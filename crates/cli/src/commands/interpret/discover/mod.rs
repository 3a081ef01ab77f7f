//! `gpt2 discover`: the edges that a task needs, and how faithful the circuit is that they make.

mod circuit_file;
mod picture;
mod report;

use crate::input::pairs::{Mean, PairsArgs};
use crate::output::progress::with_progress;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::results::picture::{PictureArgs, PictureMetadata};
use crate::study::args::StudyArgs;
use crate::values::{fraction, one_of};
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use gpt2_circuits::discovery::{Edge, EdgeGradients, EdgeScores, EdgeScoring, EdgeSet, Replacement, Study};
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Reads;
use gpt2_engine::words::{count, name_of};
use report::{EachPair, MeasuredCircuit, Report, ScoredEdge, SizedCircuit, Without};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
An edge leads from what a head, an MLP or the embeddings add to the residual stream to what a later head's queries, keys or values,
an MLP or the logits read of it. Each edge gets a score: the change of what it carries between the prompts, times the gradient
(EAP-IG, Hanna et al. 2024). Circuits of growing size are then run by themselves: along all other edges, readers get the corrupted
run's values. Faithfulness says how much of the logit difference stays: 0 is as without any edge, 1 as with all. Beside it stands
that of as many random edges.

Examples:
  gpt2 discover \" lord fair which king come out of lord\" \" king fair which lord come out of lord\" --answer \" fair\" --against \" come\"
  gpt2 pairs induction --count 20 | gpt2 discover --pairs - --edges 50 --out circuit.json --picture circuit.svg
  gpt2 pairs ioi --model gpt2 | gpt2 discover --model gpt2 --pairs -")]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    pairs: PairsArgs,
    /// Take gradients over STEPS runs between the prompts (integrated gradients), or with 0 those of the clean run alone (EAP)
    #[arg(long, default_value_t = 5, value_name = "STEPS", value_parser = clap::value_parser!(u16).range(0..=100))]
    steps: u16,
    /// What leads from the corrupted to the clean prompt in these runs: the inputs, or the activations of the embeddings and of each
    /// layer's heads and MLP, one after the other, which takes STEPS runs for each
    #[arg(long, default_value = "inputs", value_name = "WHAT", value_parser = one_of(INTEGRALS))]
    integrate: Integral,
    /// Compute attention again for each edge into queries and keys, for heads whose softmax is decided and has no gradient (the QK
    /// fix of AtP*, Kramár et al. 2024)
    #[arg(long)]
    qk_fix: bool,
    /// How to choose edges: greedy goes from the logits on, each time by the best edge into the circuit; rank takes the best of all
    #[arg(long, default_value = "greedy", value_name = "HOW", value_parser = one_of(CHOICES))]
    choose: EdgeChoice,
    /// What stands in for the other edges: the corrupted run's values, their mean over all pairs and positions, or zero
    #[arg(long, default_value = "corrupted", value_name = "WHAT", value_parser = one_of(REPLACEMENTS))]
    replace: Replacement,
    /// How many edges to choose, of which those that make no difference are then left out [default: a number at which the
    /// circuit reaches --faithfulness, found by halving]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    edges: Option<u32>,
    /// The faithfulness to look for
    #[arg(long, default_value_t = 0.9, value_name = "SHARE", value_parser = fraction, conflicts_with = "edges")]
    faithfulness: f64,
    /// How many circuits of as many random edges to compare each circuit with; few random edges hardly ever make a way through
    /// the model
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    random: u16,
    /// Also run the circuit without each of its heads and MLPs: those without which it keeps as much are not needed
    #[arg(long)]
    minimal: bool,
    /// Write the circuit as JSON: its edges with their scores
    #[arg(short, long, value_name = "FILE", help_heading = "Files")]
    out: Option<PathBuf>,
    /// Write the circuit as a graph for Graphviz
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    dot: Option<PathBuf>,
    #[command(flatten)]
    picture: PictureArgs,
    /// Let --out, --dot and --picture replace existing files
    #[arg(long, help_heading = "Files")]
    overwrite: bool,
    #[command(flatten)]
    study: StudyArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Integral {
    Inputs,
    Activations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EdgeChoice {
    Greedy,
    Rank,
}

const INTEGRALS: &[(&str, Integral)] =
    &[("inputs", Integral::Inputs), ("activations", Integral::Activations)];
const CHOICES: &[(&str, EdgeChoice)] = &[("greedy", EdgeChoice::Greedy), ("rank", EdgeChoice::Rank)];
const REPLACEMENTS: &[(&str, Replacement)] =
    &[("corrupted", Replacement::Corrupted), ("mean", Replacement::Mean), ("zero", Replacement::Zero)];
/// The sizes of circuits in the curve, in thousandths of all edges: those of the MIB benchmark (Mueller et al. 2025).
const THOUSANDTHS: [usize; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

pub(crate) fn run(args: &DiscoverArgs) -> anyhow::Result<()> {
    args.study.interventions.no_circuit("discover")?;
    let scoring = args.scoring()?;
    let mut outputs = Outputs::new(args.overwrite);
    for (flag, path) in [("--out", &args.out), ("--dot", &args.dot)] {
        if let Some(path) = path {
            outputs.add(flag, path);
        }
    }
    args.picture.add(&mut outputs)?;
    let opened = args.study.open_for(args.pairs.inputs(), &outputs)?;
    let pairs = args.pairs.read(&opened)?;
    let changes =
        args.study.interventions.options().build(&opened, Reads::Others("pairs of prompts"), &TERMINAL)?;
    let mut study = Study::new(&opened.model, &pairs)?;
    if !changes.list.is_empty() {
        study = study.with_hooks(&changes.list)?;
    }
    study.check(scoring)?;
    let search = Search::new(args, &opened, &study, scoring)?;
    let curve = search.curve()?;
    let circuit = search.chosen(&curve)?;
    let mut provenance = RunProvenance::of_tokens(&opened, pairs[0].clean.len())?.under(&changes);
    if let [pair] = &pairs[..] {
        provenance.ids.clone_from(&pair.clean);
        provenance.corrupt_ids.clone_from(&pair.corrupt);
    }
    let mut settings = args.pairs.facts(&pairs);
    for (name, value) in [
        ("steps", json!(args.steps)),
        ("integrate", json!(name_of(INTEGRALS, &args.integrate))),
        ("qk_fix", json!(args.qk_fix)),
        ("choose", json!(name_of(CHOICES, &args.choose))),
        ("replace", json!(name_of(REPLACEMENTS, &args.replace))),
        ("edges", json!(args.edges)),
        ("faithfulness", json!(args.edges.is_none().then_some(args.faithfulness))),
        ("random", json!(args.random)),
        ("seed", json!(args.study.model.run.seed)),
    ] {
        settings[name] = value;
    }
    let title = format!("{}: a circuit of {}", opened.title(), count(circuit.edges.len(), "edge"));
    let about = PictureMetadata { title, made_by: &provenance, settings: settings.clone() };
    args.picture.draw(&mut outputs, &about, |frame| picture::draw(frame, study.graph(), &circuit.edges))?;
    let report = Report {
        provenance,
        settings,
        pairs: pairs.len(),
        clean_difference: Mean::of(&search.clean),
        corrupt_difference: Mean::of(&search.corrupt),
        without_edges: Mean::of(&search.none),
        all_edges: study.graph().edge_count(),
        area: report::area(&curve),
        distance: report::distance(&curve),
        curve,
        circuit,
    };
    if let Some(path) = &args.out {
        outputs.stage_bytes(path, &circuit_file::json(&report)?)?;
    }
    if let Some(path) = &args.dot {
        outputs.stage_bytes(path, circuit_file::dot(&report.circuit.edges).as_bytes())?;
    }
    outputs.commit_after(|| output::report(args.study.json, &report, report::print))
}

/// Scores of all edges, and the metrics that circuits are compared with.
struct Search<'a> {
    args: &'a DiscoverArgs,
    study: &'a Study<'a>,
    scores: EdgeScores,
    /// The metric of each pair with all edges, after the corrupted prompt, and without any edge.
    clean: Vec<f64>,
    corrupt: Vec<f64>,
    none: Vec<f64>,
}

impl DiscoverArgs {
    fn scoring(&self) -> anyhow::Result<EdgeScoring> {
        let gradients = match (usize::from(self.steps), self.integrate) {
            (0, Integral::Inputs) => EdgeGradients::Clean,
            (0, Integral::Activations) => {
                bail!(
                    "--integrate activations needs --steps of at least 1: 0 takes the clean run's gradients alone"
                )
            }
            (steps, Integral::Inputs) => EdgeGradients::Integrated { steps },
            (steps, Integral::Activations) => EdgeGradients::IntegratedActivations { steps },
        };
        Ok(EdgeScoring { gradients, qk_fix: self.qk_fix })
    }
}

impl<'a> Search<'a> {
    fn new(
        args: &'a DiscoverArgs,
        opened: &Opened,
        study: &'a Study<'a>,
        scoring: EdgeScoring,
    ) -> anyhow::Result<Self> {
        let (clean, corrupt) = with_progress("runs", |progress| study.plain(progress))?;
        let nothing = EdgeSet::empty(study.graph());
        let none = with_progress("runs", |progress| study.measure(&[&nothing], args.replace, progress))?;
        let none = none.into_iter().next().context("no run without edges")?;
        for (place, pair) in study.pairs().iter().enumerate() {
            for (ids, metric) in [(&pair.clean, clean[place]), (&pair.corrupt, corrupt[place])] {
                let ids = opened.input_ids(ids)?;
                args.study.finite.check(
                    opened,
                    &ids,
                    study.hooks(),
                    [&Tensor::new(metric, &Device::Cpu)?],
                )?;
            }
        }
        let start = Instant::now();
        let scores = with_progress("runs", |progress| study.edge_scores(scoring, progress))?;
        note(&format!(
            "scored {} in {:.1} s",
            count(study.graph().edge_count(), "edge"),
            start.elapsed().as_secs_f64()
        ));
        if !args.study.finite.allow_nonfinite && scores.sorted().iter().any(|(_, score)| !score.is_finite()) {
            bail!(
                "a score is not finite: the gradients exceed the range of the dtype; --allow-nonfinite goes on anyway"
            );
        }
        let search = Self { args, study, scores, clean, corrupt, none };
        let difference = mean(&search.clean) - mean(&search.none);
        if difference.abs() < 1e-6 {
            bail!(
                "the logit difference is {:.4} with all edges and without any, so there is nothing to look for: choose prompts and answers \
                 that tell the two apart",
                mean(&search.clean)
            );
        }
        if mean(&search.clean) < mean(&search.corrupt) {
            note(
                "the clean prompts make the correct answers less likely than the corrupted ones do: swap them, if the model should get \
                 the clean ones right",
            );
        }
        Ok(search)
    }

    /// The faithfulness of each circuit, and the metric of each pair in it.
    fn measured(&self, circuits: &[&EdgeSet]) -> anyhow::Result<Vec<(f64, Vec<f64>)>> {
        let start = Instant::now();
        let found = with_progress("runs of circuits", |progress| {
            self.study.measure(circuits, self.args.replace, progress)
        })?;
        if !self.args.study.finite.allow_nonfinite && !found.iter().flatten().all(|metric| metric.is_finite())
        {
            bail!("a circuit's logit difference is not finite; --allow-nonfinite goes on anyway");
        }
        if circuits.len() > 1 {
            note(&format!("ran {} circuits in {:.1} s", circuits.len(), start.elapsed().as_secs_f64()));
        }
        let all = mean(&self.clean);
        let none = mean(&self.none);
        Ok(found.into_iter().map(|each| ((mean(&each) - none) / (all - none), each)).collect())
    }

    /// The circuit of the best `count` edges, less those that lie on no path from the embeddings to the logits.
    fn best(&self, count: usize) -> EdgeSet {
        let chosen = match self.args.choose {
            EdgeChoice::Greedy => self.scores.greedy(count),
            EdgeChoice::Rank => self.scores.ranked(count),
        };
        chosen.connected(self.args.replace)
    }

    /// Circuits of `count` random edges each, as many as `--random` says.
    fn random(&self, count: usize) -> Vec<EdgeSet> {
        let seeds = (0..self.args.random).map(|i| self.args.study.model.run.seed.wrapping_add(u64::from(i)));
        seeds.map(|seed| EdgeSet::random(self.study.graph(), count, seed)).collect()
    }

    /// Circuits of growing size, each beside random ones.
    fn curve(&self) -> anyhow::Result<Vec<SizedCircuit>> {
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

    /// The number of edges: `--edges`, or one at which circuits reach `--faithfulness`.
    fn size(&self, curve: &[SizedCircuit]) -> anyhow::Result<usize> {
        if let Some(edges) = self.args.edges {
            return Ok((edges as usize).min(self.study.graph().edge_count()));
        }
        let wanted = self.args.faithfulness;
        let above = curve.iter().position(|point| point.faithfulness >= wanted);
        let Some(above) = above else {
            bail!("no circuit has a faithfulness of {wanted}; choose a smaller one, or a size with --edges");
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
    fn chosen(&self, curve: &[SizedCircuit]) -> anyhow::Result<MeasuredCircuit> {
        let size = self.size(curve)?;
        let circuit = self.best(size);
        if circuit.is_empty() {
            bail!(
                "no way from the embeddings to the logits has all its edges among the best {size}: give --choose greedy, or more with \
                 --edges"
            );
        }
        let parts = if self.args.minimal { circuit.parts() } else { vec![] };
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
