//! `gpt2 score`: how well a model predicts each document of a corpus, on one process or on many.

use crate::input::corpus::{CorpusArgs, DocumentArgs};
use crate::interventions::args::InterventionArgs;
use crate::model::args::ModelArgs;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::process::parallel::{self, ParallelArgs, TIMEOUT};
use crate::process::signals::{self, Stop};
use gpt2_engine::interventions::Prepared;
use gpt2_engine::studies::Run;
use gpt2_engine::studies::predict::score::{DocumentTotals, Options, Report, ScoredPlace, to_resume};
use gpt2_engine::texts::{DocumentOptions, STDIN};
use gpt2_engine::words::count;
use gpt2_engine::{ReadFiles, Spelling};
use gpt2_parallel::Group;
use gpt2_view::{Align, Table};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const CORPUS: &str = "A text, JSON lines (.jsonl), a folder of .txt files (with its subfolders), or - for standard input (score keeps \
     the newline at the end of a file; forward drops it)";

#[derive(Debug, clap::Args)]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
#[command(mut_arg("place", |arg| arg.help(CORPUS)))]
#[command(after_help = "\
OUT holds a line of JSON for each document, in the order of the corpus: the other fields of a line of JSON (input), tokens, predicted (how many of them were
predicted), loss (nats a token) and perplexity. The first line says how they were made. A document longer than the
context is read in windows that overlap, so that each token is predicted once and has half a context before it; a perplexity of
other windows differs, such as that of gpt2 compare, which --stride gives. The same corpus gives the same bytes on any number
of processes. Interventions act on each document as on a prompt of its own.

Examples:
  gpt2 score notes.txt   # the perplexity of one text
  gpt2 score texts/ --jsonl scores.jsonl --model gpt2   # of each .txt file in a folder
  gpt2 score lines.txt --by line --jsonl lines.jsonl --summaries   # of each line
  gpt2 score stories.jsonl --field story   # of each line's field \"story\"
  gpt2 score texts/ --ablate 0.3   # without a head
  mpirun -n 4 gpt2 score texts/ --jsonl shared.jsonl   # on four processes
  gpt2 score texts/ --jsonl scores.jsonl --resume   # go on after Ctrl-C")]
pub(crate) struct ScoreArgs {
    #[command(flatten)]
    pub(crate) corpus: CorpusArgs,
    #[command(flatten)]
    pub(crate) documents: DocumentArgs,
    /// Write a line for each document to this file
    #[arg(long, value_name = "OUT")]
    pub(crate) jsonl: Option<PathBuf>,
    /// Add the summary of every head's attention over each document
    #[arg(long, requires = "jsonl")]
    pub(crate) summaries: bool,
    /// Put the model's first token (<|endoftext|> in GPT-2) before each document. Then its first token is predicted
    /// too
    #[arg(long)]
    pub(crate) bos: bool,
    /// Tokens of a window at most [default: the model's context]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) window: Option<u32>,
    /// Tokens by which a window moves on in a document that is longer. The rest of the window is context; as much as --window is the
    /// windows of gpt2 compare, without any [default: half of a window]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stride: Option<u32>,
    /// Go on where an earlier run stopped, or start if there was none; one that has finished only prints its totals
    #[arg(long, requires = "jsonl", conflicts_with = "overwrite")]
    pub(crate) resume: bool,
    /// Replace an existing OUT, or start an unfinished one anew
    #[arg(long, requires = "jsonl")]
    pub(crate) overwrite: bool,
    /// Print the total as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

pub(crate) fn run(args: &ScoreArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| score(args, &**group))
}

fn score(args: &ScoreArgs, group: &dyn Group) -> anyhow::Result<ExitCode> {
    let options = args.options();
    let documents = options.find(group, Spelling::Flags, &TERMINAL)?;
    let mut inputs = ReadFiles::default();
    // This decides itself which files may be replaced.
    let mut outputs = Outputs::new(true);
    if let Some(corpus) = &documents.corpus {
        for file in &corpus.files {
            match file == Path::new(STDIN) {
                false => inputs.file("the corpus", file),
                true if cfg!(unix) => inputs.file("the corpus", "/dev/stdin"),
                true => {}
            }
        }
        options.outputs().iter().for_each(|out| outputs.add("--jsonl", out));
    }
    args.interventions.inputs(&mut inputs);
    let opened = args.model.open_for(inputs, &outputs)?;
    let interventions = Prepared::new(args.interventions.options(), &opened, &TERMINAL)?;
    let run = Run { seed: args.model.run.seed, ..Run::new(&interventions, &TERMINAL) };
    let mut scoring = options.start(&run, group, documents)?;
    note(&scoring.provenance().model_line());
    scoring.open()?;
    let stop = Stop::listen();
    if args.jsonl.is_some() && group.rank() == 0 {
        signals::left_by_an_end(to_resume(Spelling::Flags));
    }
    match scoring.run() {
        Ok(Some(total)) => {
            note(&format!("{:.1} documents/s", total.fresh as f64 / total.seconds));
            output::report(args.json, &total, print)?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => Ok(ExitCode::SUCCESS),
        Err(error) => TERMINAL.end(&stop, error),
    }
}

impl ScoreArgs {
    fn options(&self) -> Options {
        let &Self { summaries, bos, resume, overwrite, .. } = self;
        let DocumentOptions { by, field } = self.documents.options();
        Options {
            corpus: self.corpus.path(),
            by,
            field,
            jsonl: self.jsonl.clone(),
            summaries,
            bos,
            window: self.window.map(|window| window as usize),
            stride: self.stride.map(|stride| stride as usize),
            resume,
            overwrite,
        }
    }
}

fn print(total: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { documents, empty, tokens, predicted, loss, perplexity, window, stride, .. } = total;
    if let Some(rows) = total.table() {
        let mut table = Table::new(&[
            ("document", Align::Left),
            ("tokens", Align::Right),
            ("predicted", Align::Right),
            ("perplexity", Align::Right),
        ]);
        for ScoredPlace { place, totals: DocumentTotals { tokens, predicted, loss } } in rows {
            let perplexity = if *predicted > 0 { format!("{:.4}", loss.exp()) } else { "-".into() };
            table.row(vec![place.clone(), tokens.to_string(), predicted.to_string(), perplexity]);
        }
        writeln!(out, "{}", table.render())?;
    }
    match (loss, perplexity) {
        (Some(loss), Some(perplexity)) => {
            writeln!(out, "perplexity {perplexity:.4}  ({loss:.4} nats per token)")?;
        }
        _ if empty == documents => writeln!(out, "no token to predict: no document has a token")?,
        _ => writeln!(
            out,
            "no token to predict: every document has one token at most; --bos also predicts that one"
        )?,
    }
    writeln!(
        out,
        "{}, {}, {predicted} predicted, in windows of up to {window} that move on by {stride}{}",
        count(*documents, "document"),
        count(*tokens, "token"),
        if tokens > window && stride < window {
            format!(" (gpt2 compare's move on by {window}: --stride {window} gives its perplexity)")
        } else {
            String::new()
        }
    )?;
    if *empty > 0 {
        writeln!(out, "{} without a token", count(*empty, "document"))?;
    }
    if total.other_files > 0 {
        let files = count(total.other_files, "file");
        writeln!(out, "{files} left out: the name does not end in .{}", total.extension)?;
    }
    Ok(())
}
