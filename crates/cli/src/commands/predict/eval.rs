//! `gpt2 eval`: standard evaluations, on one process or on many.

use crate::interventions::args::InterventionArgs;
use crate::model::args::{FiniteArgs, ModelArgs};
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::process::parallel::{self, ParallelArgs, TIMEOUT};
use crate::process::signals;
use anyhow::bail;
use gpt2_engine::ReadFiles;
use gpt2_engine::interventions::Prepared;
use gpt2_engine::studies::Run;
use gpt2_engine::studies::predict::eval::{Options, Report, TaskResult};
use gpt2_parallel::Group;
use gpt2_view::{Align, Table, visible_text};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
#[command(after_help = "\
Tasks by the definitions of lm-evaluation-harness: lambada_openai, lambada_standard (the last word of a text), hellaswag (the ending of a scene),
wikitext, wikitext103 (whole articles), blimp or blimp_PART (of two sentences, the grammatical one). Without =FILE, a task's data set comes
from the Hub; FILE is in JSON lines or Parquet, with the data set's fields, or hf://datasets/OWNER/NAME/FILE.
Another set of examples is a file of JSON lines with the fields context, choices, answer (an index), or context, answer (a text), or text; a .json
file describes one with other fields. docs/evaluation.md has every definition.
Interventions act on each text, a context with one choice, as on a prompt of its own.

Examples:
  gpt2 eval hellaswag=validation.jsonl --limit 100   # the first 100 questions of a file
  gpt2 eval quiz.jsonl --json   # questions of your own
  gpt2 eval quiz.jsonl --ablate 0.3   # without a head
  gpt2 eval quiz.jsonl --out results.json --samples   # to a file, with every answer
  gpt2 eval quiz.jsonl --journal done.jsonl   # goes on after Ctrl-C
  gpt2 eval lambada_openai hellaswag --model gpt2   # data sets from the Hub
  mpirun -n 4 gpt2 eval quiz.jsonl   # on four processes")]
pub(crate) struct EvalArgs {
    /// A task such as lambada_openai, hellaswag, wikitext or blimp, a task with a file of its data set, or the file of a task of your own
    #[arg(value_name = "TASK[=FILE]|FILE", required = true)]
    pub(crate) tasks: Vec<String>,
    /// Run only the first N examples of each task
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Move a window over a text that is longer than the context on by T tokens. The rest of the window is context [default:
    /// the model's context, so that windows hardly overlap, as in lm-evaluation-harness]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stride: Option<u32>,
    /// Draw N samples of the answers for the standard error of a perplexity, 2 at least; 0 leaves the error out
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) bootstrap: u32,
    /// Add every example with its log-probabilities to the JSON
    #[arg(long)]
    pub(crate) samples: bool,
    /// Keep finished work in this file: a run that stopped goes on from it
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Write the JSON to this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Let --out replace an existing file
    #[arg(long, requires = "out")]
    pub(crate) overwrite: bool,
    /// Print JSON, in the form of lm-evaluation-harness
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) finite: FiniteArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

pub(crate) fn run(args: &EvalArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| evaluate(args, &**group))
}

fn evaluate(args: &EvalArgs, group: &dyn Group) -> anyhow::Result<ExitCode> {
    let options = args.options();
    let mut inputs = ReadFiles::default();
    for file in options.files()? {
        inputs.file("a file of examples", file);
    }
    args.interventions.inputs(&mut inputs);
    let leads = group.rank() == 0;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(out) = args.out.as_ref().filter(|_| leads) {
        outputs.add("--out", out);
    }
    if let Some(journal) = &args.journal {
        if args.out.as_ref() == Some(journal) {
            bail!("--journal and --out are the same file {}: give two names", journal.display());
        }
        // This decides itself which files it may go on with.
        let mut kept = Outputs::new(true);
        kept.add("--journal", journal);
        kept.check(&inputs)?;
        signals::left_by_an_end("the same command goes on from what the journal has");
    }
    let opened = args.model.open_for(inputs, &outputs)?;
    let interventions = Prepared::new(args.interventions.options(), &opened, &TERMINAL)?;
    let run = Run {
        seed: args.model.run.seed,
        allow_nonfinite: args.finite.allow_nonfinite,
        ..Run::new(&interventions, &TERMINAL)
    };
    let report = options.evaluate(&run, group)?;
    if leads {
        if let Some(out) = &args.out {
            let json = serde_json::to_vec_pretty(&report)?;
            outputs.stage_bytes(out, &json)?;
        }
        outputs.commit_after(|| output::report(args.json, &report, print))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl EvalArgs {
    fn options(&self) -> Options {
        Options {
            tasks: self.tasks.clone(),
            limit: self.limit.map(|limit| limit as usize),
            stride: self.stride.map(|stride| stride as usize),
            bootstrap: self.bootstrap as usize,
            samples: self.samples,
            journal: self.journal.clone(),
        }
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}", report.provenance.model_line())?;
    let mut table = Table::new(&[
        ("task", Align::Left),
        ("examples", Align::Right),
        ("measure", Align::Left),
        ("", Align::Left),
        ("value", Align::Right),
        ("standard error", Align::Right),
    ]);
    for TaskResult { name, examples, all_examples, measures, .. } in &report.tasks {
        for (row, measure) in measures.iter().enumerate() {
            let count = if examples == all_examples {
                examples.to_string()
            } else {
                format!("{examples} of {all_examples}")
            };
            let is_first = row == 0;
            table.row(vec![
                if is_first { visible_text(name) } else { String::new() },
                if is_first { count } else { String::new() },
                measure.name.to_owned(),
                if measure.is_better_higher() { "↑" } else { "↓" }.to_owned(),
                number(measure.value),
                measure.error.map_or_else(|| "-".to_owned(), number),
            ]);
        }
    }
    Ok(write!(out, "{}", table.render())?)
}

/// A number with four decimals; a large one in a few characters.
fn number(value: f64) -> String {
    if value.abs() < 1e6 { format!("{value:.4}") } else { format!("{value:.4e}") }
}
