//! `gpt2 discover`: the edges that a task needs, and how faithful the circuit is that they make.

mod dot;
mod print;

use crate::input::pairs::PairsArgs;
use crate::output;
use crate::output::written_files::Outputs;
use crate::results::picture::{PictureArgs, PictureMetadata};
use crate::study::args::StudyArgs;
use crate::values::{fraction, one_of};
use gpt2_circuits::discovery::{Edge, Graph, Replacement};
use gpt2_engine::Spelling;
use gpt2_engine::studies::interpret::discover::{
    CHOICES, EdgeChoice, INTEGRALS, Integral, Options, REPLACEMENTS, circuit_file, circuit_picture,
};
use gpt2_engine::words::count;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(mut_arg("circuit", |arg| arg.hide(true)))]
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

pub(crate) fn run(args: &DiscoverArgs) -> anyhow::Result<()> {
    args.study.check::<Options>()?;
    let options = args.options();
    options.check(Spelling::Flags)?;
    let mut outputs = Outputs::new(args.overwrite);
    for (flag, path) in [("--out", &args.out), ("--dot", &args.dot)] {
        if let Some(path) = path {
            outputs.add(flag, path);
        }
    }
    args.picture.add(&mut outputs)?;
    let opened = args.study.open_for(args.pairs.inputs(), &outputs)?;
    let report = args.study.outcome(&opened, &options, false)?.report;
    let edges = &report.circuit.edges;
    let title = format!("{}: a circuit of {}", opened.title(), count(edges.len(), "edge"));
    let about = PictureMetadata { title, made_by: &report.provenance, settings: report.settings.clone() };
    let graph = Graph::of(opened.model.config())?;
    let ends: Vec<Edge> = edges.iter().map(|edge| edge.edge).collect();
    let scores: Vec<f64> = edges.iter().map(|edge| edge.score).collect();
    args.picture.draw(&mut outputs, &about, |frame| circuit_picture(frame, graph, &ends, Some(&scores)))?;
    if let Some(path) = &args.out {
        outputs.stage_bytes(path, &circuit_file(&report)?)?;
    }
    if let Some(path) = &args.dot {
        outputs.stage_bytes(path, dot::graph(edges).as_bytes())?;
    }
    outputs.commit_after(|| output::report(args.study.json, &report, print::print))
}

impl DiscoverArgs {
    fn options(&self) -> Options {
        Options {
            pairs: self.pairs.input(),
            metric: self.pairs.metric,
            positions: self.pairs.positions.clone(),
            steps: self.steps.into(),
            integrate: self.integrate,
            qk_fix: self.qk_fix,
            choose: self.choose,
            replace: self.replace,
            edges: self.edges.map(|edges| edges as usize),
            faithfulness: self.faithfulness,
            random: self.random.into(),
            minimal: self.minimal,
        }
    }
}
