//! `gpt2 train-features`: trains a sparse autoencoder or transcoder on values that `gpt2 record` has written, or that a model computes as it reads a
//! text, on one process or on many.

mod args;

use crate::model::hub;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::process::parallel;
use crate::process::signals::Stop;
use anyhow::{Context, bail};
pub(crate) use args::TrainFeaturesArgs;
use gpt2_engine::studies::learn::record::Documents;
use gpt2_engine::studies::learn::train_features::{FeatureTraining, Report, TrainingRun, TrainingValues};
use gpt2_engine::texts::STDIN;
use gpt2_engine::words::count;
use gpt2_engine::{ReadFiles, Spelling};
use gpt2_files::INDEX;
use gpt2_files::folder::OwnFolder;
use gpt2_loader::DictionaryCheckpoint;
use gpt2_parallel::Group;
use gpt2_view::visible_text;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(args: &TrainFeaturesArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| train_features(args, group))
}

fn train_features(args: &TrainFeaturesArgs, group: &Arc<dyn Group>) -> anyhow::Result<ExitCode> {
    let options = args.options();
    let seed = args.model.run.seed;
    let run = TrainingRun { group, seed, spelling: Spelling::Flags, observer: &TERMINAL };
    let leads = group.rank() == 0;
    options.check(run.spelling)?;
    if args.source == Path::new(STDIN) && group.size() > 1 {
        bail!("-: standard input keeps the other processes waiting; name a file");
    }
    // Rank 0 decides, and alone reads a text; the others get it from there.
    let is_store = group.any(leads && options.is_store())?;
    if !is_store && args.point.is_none() && (args.source == Path::new(STDIN) || args.source.exists()) {
        bail!(
            "{}: is no folder that gpt2 record wrote; if it is a text, name the value to learn from with --point",
            args.source.display()
        );
    }
    options.unit(run.spelling)?;
    let reads = leads && !is_store;
    let documents = reads.then(|| options.documents(run.spelling, &TERMINAL)).transpose()?;
    let files = match &documents {
        Some(Documents::Corpus(corpus)) => corpus.files.iter().cloned().collect(),
        _ => vec![],
    };
    inputs(args, &files).spare_folder(&format!("--out {}", args.out.display()), &args.out)?;
    if leads {
        options.check_state(run.spelling)?;
    }
    let mut outputs = Outputs::new(args.overwrite || args.resume);
    for path in DictionaryCheckpoint::paths_in(&args.out).iter().filter(|_| leads) {
        outputs.add("--out", path);
    }
    if args.out.is_dir() {
        outputs.check(&inputs(args, &files))?;
    }
    let opened;
    let values = if is_store {
        TrainingValues::recorded(&options, args.for_a_model(), run.spelling)?
    } else {
        opened = args.model.open_for(inputs(args, &files), &Outputs::new(false))?;
        TrainingValues::live(&options, &opened, documents, &run)?
    };
    let training = FeatureTraining::begin(&options, values, run)?;
    let _folder = leads.then(|| OwnFolder::make(&args.out).context("--out")).transpose()?;
    outputs.check(&inputs(args, &files))?;
    let training = training.resume()?;
    let stop = Stop::listen();
    let trained = training.run();
    TERMINAL.clear();
    let report = trained?;
    if leads {
        output::report(args.json, &report, print)?;
    }
    if let Some(stopped) = report.stopped(run.spelling) {
        note(&stopped);
        return Ok(ExitCode::from(stop.code()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that the run reads. `files` are those of a text, empty for a store.
fn inputs(args: &TrainFeaturesArgs, files: &[PathBuf]) -> ReadFiles {
    let mut inputs = ReadFiles::default();
    if files.is_empty() {
        inputs.file("the store", args.source.join(INDEX));
        inputs.named(&args.source.display().to_string());
    }
    for file in files.iter().filter(|file| **file != Path::new(STDIN)) {
        inputs.file("the text", file);
    }
    hub::inputs(&args.model.hub, &mut inputs);
    args.model.model.iter().for_each(|model| inputs.named(model));
    inputs
}

fn print(report: &Report) -> anyhow::Result<()> {
    let Report { out, point, writes, d, features, steps, tokens, explained_variance, l0, silent, .. } =
        report;
    let mut out_stream = output::stdout();
    let out = visible_text(&out.display().to_string());
    let predicts = writes.as_ref().map_or(String::new(), |writes| format!(", predicts {writes}"));
    writeln!(out_stream, "{out}: {features} features of {point} ({d} numbers){predicts}")?;
    writeln!(
        out_stream,
        "{} of {}: explained variance {explained_variance:.3}, L0 {l0:.1}, {silent} silent",
        count(*steps, "step"),
        count(tokens / steps.max(&1), "token"),
    )?;
    Ok(())
}
