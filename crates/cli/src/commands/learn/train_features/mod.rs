//! `gpt2 train-features`: trains a sparse autoencoder on values that `gpt2 record` has written, or that a model computes as it reads a
//! text, on one process or on many.

mod args;
mod live;
mod values;

use crate::model::hub;
use crate::output::progress::bar;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::{NewFolder, Outputs};
use crate::output::{self, note};
use crate::process::parallel;
use crate::process::signals::Stop;
use anyhow::{Context, bail};
use args::SPARSITIES;
pub(crate) use args::TrainFeaturesArgs;
use gpt2_engine::Spelling;
use gpt2_engine::texts::STDIN;
use gpt2_engine::texts::{By, Corpus};
use gpt2_engine::words::{count, name_of};
use gpt2_files::INDEX;
use gpt2_loader::{DictionaryCheckpoint, NewDictionary, save_dictionary};
use gpt2_model::Config;
use gpt2_model::hooks::Point;
use gpt2_parallel::Group;
use gpt2_train::{DictionaryOptions, DictionaryStep, DictionaryTrainer, TrainError};
use gpt2_view::visible_text;
use live::LiveValues;
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use values::TrainingValues;

/// Default features per input dimension.
const FEATURES_OF_ONE: usize = 8;
/// Steps over which the last figures are averaged.
const LAST: usize = 20;

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    point: String,
    d: usize,
    features: usize,
    /// The steps taken; fewer than planned if the run was asked to stop.
    steps: usize,
    tokens: usize,
    /// Over the last steps: the share of the values' variance that is explained, and the mean number of features that fire.
    explained_variance: f64,
    l0: f64,
    silent: usize,
}

impl Report {
    fn new(
        args: &TrainFeaturesArgs,
        point: &str,
        (d, features): (usize, usize),
        steps: usize,
        found: &[DictionaryStep],
    ) -> Self {
        let last = &found[found.len().saturating_sub(LAST)..];
        let mean =
            |of: fn(&DictionaryStep) -> f64| last.iter().map(of).sum::<f64>() / last.len().max(1) as f64;
        Self {
            out: args.out.clone(),
            point: point.to_owned(),
            d,
            features,
            steps,
            tokens: steps * tokens_of_step(args),
            explained_variance: 1.0 - mean(|step| step.unexplained),
            l0: mean(|step| step.l0),
            silent: last.last().map_or(0, |step| step.silent),
        }
    }
}

fn tokens_of_step(args: &TrainFeaturesArgs) -> usize {
    args.batch as usize * usize::from(args.accumulate)
}

pub(crate) fn run(args: &TrainFeaturesArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| train_features(args, group))
}

fn train_features(args: &TrainFeaturesArgs, group: &Arc<dyn Group>) -> anyhow::Result<ExitCode> {
    let leads = group.rank() == 0;
    if args.out == Path::new("-") {
        bail!("--out -: expected the name of a folder; ./- is one");
    }
    if args.source == Path::new(STDIN) && group.size() > 1 {
        bail!("-: standard input keeps the other processes waiting; name a file");
    }
    // Rank 0 decides, and alone reads a text; the others get it from there.
    let is_store = group.any(leads && args.source.join(INDEX).exists())?;
    if !is_store && args.point.is_none() && (args.source == Path::new(STDIN) || args.source.exists()) {
        bail!(
            "{}: is no folder that gpt2 record wrote; if it is a text, name the value to learn from with --point",
            args.source.display()
        );
    }
    let by = By::new(&args.text.documents.options(), &args.source, Spelling::Flags)?;
    let corpus = (leads && !is_store)
        .then(|| Corpus::open(&args.source, by.clone(), Spelling::Flags, &TERMINAL))
        .transpose()?;
    let files = corpus.iter().flat_map(|corpus| corpus.files.iter().cloned()).collect::<Vec<_>>();
    inputs(args, &files).spare_folder(&format!("--out {}", args.out.display()), &args.out)?;
    let state = args.out.join(STATE);
    if leads {
        check_state(args, &state)?;
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
        TrainingValues::recorded(args)?
    } else {
        opened = args.model.open_for(inputs(args, &files), &Outputs::new(false))?;
        TrainingValues::Live(LiveValues::read(args, &opened, &by, corpus, &**group)?)
    };
    let (name, point) = values.point()?;
    if point.width(&Config::gpt2()).is_none() {
        bail!("--point {name}: is no vector for each token, as a dictionary needs; take another point");
    }

    let steps = steps_of(args, values.tokens())?;
    let sample = values.sample(args)?;
    let d = sample.dim(1)?;
    let features = args.features.map_or(FEATURES_OF_ONE * d, |features| features as usize);
    let trainer = DictionaryTrainer::new(&sample, options(args, features, steps));
    let trainer = trainer.map_err(|error| values.blamed(error.into()))?;
    let given = agreed(args, &values)?;
    let mut trainer = trainer.in_group(Arc::clone(group), &given)?;
    let _folder = leads.then(|| NewFolder::make(&args.out).context("--out")).transpose()?;
    outputs.check(&inputs(args, &files))?;
    let mut found = vec![];
    let mut done = 0;
    if args.resume {
        done = trainer.resume(&state, &given).map_err(worded)?;
        note(&format!("going on after step {done}"));
    }
    let stop = Stop::listen();
    let trained = train(args, &values, &mut trainer, &stop, done..steps, &mut found);
    let ended = done + found.len();
    // After a failed exchange, a rank may have some of the new weights and not the others.
    let is_saved = !found.is_empty()
        && !trained.as_ref().is_err_and(|error| matches!(error.downcast_ref(), Some(TrainError::Group(_))));
    if leads && is_saved {
        let (tensors, selection) = trainer.dictionary()?;
        let made_by = made_by(args, &values, features, ended);
        save_dictionary(&args.out, &tensors, &selection, &about(values.facts(), point, made_by))?;
    }
    // Beside the dictionary, so that the run can go on; a finished one needs none.
    if is_saved && trained.is_ok() && ended < steps {
        trainer.save_state(&state, &given)?;
    } else if leads && trained.is_ok() {
        let _ = std::fs::remove_file(&state);
    }
    if is_saved && !trained.as_ref().is_err_and(anyhow::Error::is::<gpt2_parallel::Error>) {
        group.any(false)?; // until it is written
    }
    if is_saved {
        trained.with_context(|| {
            format!("stopped after {ended} of {steps} steps; what was learned before is saved")
        })?;
    } else {
        trained?;
    }
    if leads {
        output::report(args.json, &Report::new(args, name, (d, features), ended, &found), print)?;
    }
    if ended < steps {
        note(&format!(
            "stopped after {ended} of {steps} steps; what has been learned is saved; run the same command with --resume to continue"
        ));
        return Ok(ExitCode::from(stop.code()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The file of a stopped run's state, beside the dictionary.
const STATE: &str = "training-state.safetensors";

/// Refuses to resume where there is no run, and to begin where one waits to go on.
fn check_state(args: &TrainFeaturesArgs, state: &Path) -> anyhow::Result<()> {
    if args.resume && !state.exists() {
        bail!("--resume: there is no {}; the run has finished, or never started", state.display());
    }
    if state.exists() && !args.resume && !args.overwrite {
        bail!(
            "--out {}: a run stopped there; continue it with --resume, or start anew with --overwrite",
            args.out.display()
        );
    }
    Ok(())
}

/// An error of resuming, in this command's words.
fn worded(error: TrainError) -> anyhow::Error {
    match error {
        TrainError::Setting { name, before, now } => anyhow::anyhow!(
            "--resume: {name} was {before} and is {now}; give what the run began with, or start anew with --overwrite"
        ),
        other => other.into(),
    }
}

/// The number of steps over all epochs. Error for fewer tokens than a step takes.
fn steps_of(args: &TrainFeaturesArgs, tokens: usize) -> anyhow::Result<usize> {
    let rows = tokens_of_step(args);
    let steps = tokens / rows * args.epochs as usize;
    if steps == 0 {
        bail!(
            "--batch {}: {} has {}, and a step takes {rows}; take smaller or fewer batches (--accumulate), or more text",
            args.batch,
            args.source.display(),
            count(tokens, "token")
        );
    }
    Ok(steps)
}

fn options(args: &TrainFeaturesArgs, features: usize, steps: usize) -> DictionaryOptions {
    let mut options = DictionaryOptions::new(features, args.k as usize, steps);
    (options.sparsity, options.lr, options.seed) = (args.sparsity, args.lr, args.model.run.seed);
    options.silent_after = args.silent_after as usize;
    options
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

/// The facts that must agree on every rank: what the values of the steps depend on. Paths and GPUs may differ.
fn agreed(args: &TrainFeaturesArgs, values: &TrainingValues) -> anyhow::Result<serde_json::Value> {
    let mut facts = values.facts().clone();
    if let Some(facts) = facts.as_object_mut() {
        facts.remove("provenance");
    }
    Ok(json!({
        "point": values.point()?.0, "epochs": args.epochs, "batch": args.batch, "accumulate": args.accumulate, "values": facts,
    }))
}

/// The facts about the run for `cfg.json`.
fn made_by(
    args: &TrainFeaturesArgs,
    values: &TrainingValues,
    features: usize,
    steps: usize,
) -> serde_json::Value {
    let TrainFeaturesArgs { sparsity, k, epochs, batch, accumulate, lr, silent_after, .. } = args;
    let from = if matches!(values, TrainingValues::Recorded { .. }) { "store" } else { "text" };
    json!({
        "gpt2": env!("CARGO_PKG_VERSION"),
        from: values.facts(),
        "training": {
            "sparsity": name_of(SPARSITIES, sparsity), "features": features, "k": k, "epochs": epochs, "batch": batch,
            "accumulate": accumulate, "lr": lr, "silent_after": silent_after, "seed": args.model.run.seed, "steps": steps,
        },
    })
}

/// Takes steps until the last one, or until someone asks to stop.
fn train(
    args: &TrainFeaturesArgs,
    values: &TrainingValues,
    trainer: &mut DictionaryTrainer,
    stop: &Stop,
    steps: Range<usize>,
    found: &mut Vec<DictionaryStep>,
) -> anyhow::Result<()> {
    let bar = bar(Some(steps.end as u64), "{bar:30} step {pos}/{len}, {eta} left{msg}");
    bar.set_position(steps.start as u64);
    bar.reset_eta();
    let rank = trainer.group().rank();
    let ranks = trainer.group().size();
    for batches in values.steps(args, steps.end, move |place| place % ranks == rank).skip(steps.start) {
        // All ranks leave together, before anything has changed.
        if trainer.group().any(batches.is_err())? {
            batches?;
            bail!("another process could not read or compute its values");
        }
        let step = trainer.step(&batches?).map_err(|error| values.blamed(error.into()))?;
        bar.inc(1);
        bar.set_message(format!(", explains {:.3}, L0 {:.1}", 1.0 - step.unexplained, step.l0));
        found.push(step);
        if trainer.group().any(stop.is_asked())? {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The fields of `cfg.json` besides sizes.
fn about(facts: &serde_json::Value, hook: Point, made_by: serde_json::Value) -> NewDictionary {
    NewDictionary {
        hook,
        model_name: facts["provenance"]["model"].as_str().map(str::to_owned),
        prepend_bos: facts["bos"].as_bool().unwrap_or(false),
        context_size: facts["window"].as_u64(),
        made_by,
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let Report { out, point, d, features, steps, tokens, explained_variance, l0, silent } = report;
    let mut out_stream = output::stdout();
    let out = visible_text(&out.display().to_string());
    writeln!(out_stream, "{out}: {features} features of {point} ({d} numbers)")?;
    writeln!(
        out_stream,
        "{} of {}: explained variance {explained_variance:.3}, L0 {l0:.1}, {silent} silent",
        count(*steps, "step"),
        count(tokens / steps.max(&1), "token"),
    )?;
    Ok(())
}
