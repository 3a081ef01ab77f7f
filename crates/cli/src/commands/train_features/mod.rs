//! `gpt2 train-features`: trains a sparse autoencoder on values that `gpt2 record` has written, or that a model computes as it reads a
//! text, on one process or on many.

mod args;
mod live;
mod values;

use crate::corpus::{By, Corpus};
use crate::hub;
use crate::inputs::Inputs;
use crate::output::{self, note};
use crate::outputs::{NewFolder, Outputs};
use crate::parallel;
use crate::progress::{Stop, bar};
use crate::text_lines::STDIN;
use crate::values::{count, name_of};
use anyhow::{Context, bail};
use args::SPARSITIES;
pub(crate) use args::TrainFeaturesArgs;
use gpt2_files::INDEX;
use gpt2_loader::{DictionaryCheckpoint, NewDictionary, save_dictionary};
use gpt2_model::hooks::Point;
use gpt2_parallel::Group;
use gpt2_train::{DictionaryOptions, DictionaryStep, DictionaryTrainer};
use live::Live;
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use values::Values;

/// How many features to learn for each number of a value, if nobody says otherwise.
const FEATURES_OF_ONE: usize = 8;
/// Steps over which the last figures are averaged.
const LAST: usize = 20;

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    point: String,
    d: usize,
    features: usize,
    /// Steps taken; fewer than asked for if one was asked to stop.
    steps: usize,
    tokens: usize,
    /// Over the last steps: how much of the values' variance is explained, and how many features fire.
    explained_variance: f64,
    l0: f64,
    silent: usize,
}

impl Report {
    fn new(
        args: &TrainFeaturesArgs,
        point: &str,
        d: usize,
        features: usize,
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
            steps: found.len(),
            tokens: found.len() * tokens_of_step(args),
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
    let is_store = args.source.join(INDEX).exists();
    let is_stdin = args.source == Path::new(STDIN);
    if is_stdin && group.size() > 1 {
        bail!("-: standard input keeps the other processes waiting; name a file");
    }
    if !is_store && args.point.is_none() && (is_stdin || args.source.exists()) {
        bail!(
            "{}: is no folder that gpt2 record wrote; if it is a text, name the value to learn from with --point",
            args.source.display()
        );
    }
    let mut inputs = Inputs::default();
    let by = By::new(args.text.by, args.text.field.as_deref(), &args.source)?;
    // Rank 0 alone reads a text; the others get it from there.
    let corpus = (leads && !is_store).then(|| Corpus::open(&args.source, by.clone())).transpose()?;
    if is_store {
        inputs.file("the store", args.source.join(INDEX));
        inputs.named(&args.source.display().to_string());
    }
    for file in corpus.iter().flat_map(|corpus| &corpus.files).filter(|_| !is_stdin) {
        inputs.file("the text", file);
    }
    args.model.model.iter().for_each(|model| inputs.named(model));
    inputs.spare_folder(&format!("--out {}", args.out.display()), &args.out)?;
    let _folder = leads.then(|| NewFolder::make(&args.out).context("--out")).transpose()?;
    let mut outputs = Outputs::new(args.overwrite);
    for path in DictionaryCheckpoint::paths_in(&args.out).iter().filter(|_| leads) {
        outputs.add("--out", path);
    }
    let session;
    let values = if is_store {
        outputs.check(&inputs)?;
        Values::recorded(args)?
    } else {
        hub::inputs(&args.model.hub, &mut inputs);
        session = args.model.session_for(inputs, &outputs)?;
        Values::Live(Live::read(args, &session, &by, corpus, &**group)?)
    };

    let (rows, tokens) = (tokens_of_step(args), values.tokens());
    let steps = tokens / rows * args.epochs as usize;
    if steps == 0 {
        bail!(
            "--batch {}: {} has {}, and a step takes {rows}; take smaller batches, or more text",
            args.batch,
            args.source.display(),
            count(tokens, "token")
        );
    }
    let sample = values.sample(args)?;
    let d = sample.dim(1)?;
    let features = args.features.map_or(FEATURES_OF_ONE * d, |features| features as usize);
    let mut options = DictionaryOptions::new(features, args.k as usize, steps);
    (options.sparsity, options.lr, options.seed) = (args.sparsity, args.lr, args.model.run.seed);
    options.silent_after = args.silent_after as usize;
    let settings = settings(args, &values, steps)?;
    let mut trainer = DictionaryTrainer::new(&sample, options)?.in_group(Arc::clone(group), &settings)?;
    let stop = Stop::listen()?;
    let mut found = vec![];
    let trained = train(args, &values, &mut trainer, &stop, steps, &mut found);
    if !leads {
        trained?;
        return Ok(if found.len() < steps { ExitCode::from(stop.code()) } else { ExitCode::SUCCESS });
    }
    if found.is_empty() {
        trained?;
        bail!("{}: stopped before the first step; nothing was learned", args.source.display());
    }
    let (name, point) = values.point()?;
    let (tensors, selection) = trainer.dictionary()?;
    let made_by = json!({
        "gpt2": env!("CARGO_PKG_VERSION"),
        if is_store { "store" } else { "text" }: values.facts(),
        "training": settings["training"],
        "steps": found.len(),
    });
    save_dictionary(&args.out, &tensors, &selection, &about(values.facts(), point, made_by))?;
    trained.with_context(|| {
        format!("stopped after {} of {steps} steps; what was learned before is saved", found.len())
    })?;

    let report = Report::new(args, name, d, features, &found);
    output::report(args.json, &report, print)?;
    if found.len() < steps {
        note(&format!("stopped after {} of {steps} steps; what has been learned is saved", found.len()));
        return Ok(ExitCode::from(stop.code()));
    }
    Ok(ExitCode::SUCCESS)
}

/// What the dictionary depends on: the same on every rank.
fn settings(args: &TrainFeaturesArgs, values: &Values, steps: usize) -> anyhow::Result<serde_json::Value> {
    let TrainFeaturesArgs { sparsity, k, epochs, batch, accumulate, lr, silent_after, .. } = args;
    Ok(json!({
        "point": values.point()?.0,
        "steps": steps,
        "values": values.facts(),
        "training": {
            "sparsity": name_of(SPARSITIES, sparsity), "k": k, "epochs": epochs, "batch": batch, "accumulate": accumulate, "lr": lr,
            "silent_after": silent_after, "features": args.features, "seed": args.model.run.seed,
        },
    }))
}

/// Takes steps until the last one, or until someone asks to stop.
fn train(
    args: &TrainFeaturesArgs,
    values: &Values,
    trainer: &mut DictionaryTrainer,
    stop: &Stop,
    steps: usize,
    found: &mut Vec<DictionaryStep>,
) -> anyhow::Result<()> {
    let bar = bar(Some(steps as u64), "{bar:30} step {pos}/{len}, {eta} left{msg}");
    let (rank, ranks) = (trainer.group().rank(), trainer.group().size());
    for batches in values.steps(args, move |place| place % ranks == rank).take(steps) {
        let step = trainer.step(&batches?)?;
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

/// What `cfg.json` says besides sizes.
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
    writeln!(out_stream, "{}: {features} features of {point} ({d} numbers)", out.display())?;
    writeln!(
        out_stream,
        "{} of {}: explained variance {explained_variance:.3}, L0 {l0:.1}, {silent} silent",
        count(*steps, "step"),
        count(tokens / steps.max(&1), "token"),
    )?;
    Ok(())
}
