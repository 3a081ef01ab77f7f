//! `gpt2 record`: the values at hook points over a corpus, in a folder of shards, on one process or on many.

mod args;

use crate::model::hub;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::process::parallel;
use crate::process::signals::{self, Stop};
use anyhow::bail;
pub(crate) use args::RecordArgs;
use gpt2_engine::interventions::Prepared;
use gpt2_engine::studies::Run;
use gpt2_engine::studies::learn::record::{Documents, Recording, Report, left};
use gpt2_engine::texts::STDIN;
use gpt2_engine::words::count;
use gpt2_engine::{ReadFiles, Spelling};
use gpt2_parallel::Group;
use gpt2_view::visible_text;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| record(args, &**group))
}

fn record(args: &RecordArgs, group: &dyn Group) -> anyhow::Result<ExitCode> {
    let options = args.options();
    // Rank 0 alone reads the corpus; the others get the texts from it.
    let leads = group.rank() == 0;
    options.unit(Spelling::Flags)?;
    let documents = leads.then(|| options.documents(Spelling::Flags, &TERMINAL)).transpose()?;
    let inputs = inputs(args, documents.as_ref());
    inputs.spare_folder(&format!("--out {}", args.out.display()), &args.out)?;
    options.check_out(Spelling::Flags)?;
    if group.size() > 1 && args.corpus.path() == Path::new(STDIN) {
        bail!("-: standard input keeps the other processes waiting; name a file");
    }
    let opened = args.model.open_for(inputs, &Outputs::new(false))?;
    let interventions = Prepared::new(args.interventions.options(), &opened, &TERMINAL)?;
    let run = Run { seed: args.model.run.seed, ..Run::new(&interventions, &TERMINAL) };
    let recording = Recording::begin(&options, &run, group)?;
    note(&recording.provenance().model_line());
    let stop = Stop::listen();
    signals::left_by_an_end(left(Spelling::Flags));
    let report = match recording.run(documents) {
        Ok(report) => report,
        Err(error) => return TERMINAL.end(&stop, error),
    };
    TERMINAL.clear();
    if leads {
        if let Some(speed) = report.tokens_per_second {
            note(&format!("{speed:.0} tokens/s"));
        }
        output::report(args.json, &report, print)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that the run reads.
fn inputs(args: &RecordArgs, documents: Option<&Documents>) -> ReadFiles {
    let mut inputs = ReadFiles::default();
    if let Some(Documents::Corpus(corpus)) = documents {
        for file in corpus.files.iter().filter(|file| **file != Path::new(STDIN)) {
            inputs.file("the corpus", file);
        }
    }
    args.interventions.inputs(&mut inputs);
    hub::inputs(&args.model.hub, &mut inputs);
    args.model.model.iter().for_each(|model| inputs.named(model));
    inputs
}

fn print(total: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { folder, points, documents, empty, tokens, shards, .. } = total;
    writeln!(
        out,
        "{}: {} of {}, {}, at {}",
        visible_text(&folder.display().to_string()),
        count(*tokens, "token"),
        count(*documents, "document"),
        count(*shards, "shard"),
        points.join(", ")
    )?;
    if *empty > 0 {
        writeln!(out, "{} without a token", count(*empty, "document"))?;
    }
    Ok(())
}
