//! `gpt2 train-features`: trains a sparse autoencoder on values that `gpt2 record` has written.

use crate::device::ThreadsArg;
use crate::inputs::Inputs;
use crate::output::{self, note};
use crate::outputs::{NewFolder, Outputs};
use crate::progress::{Stop, bar};
use crate::values::{above_0, count, name_of, one_of};
use anyhow::{Context, bail};
use candle_core::Tensor;
use gpt2_files::{INDEX, Store};
use gpt2_loader::{DictionaryCheckpoint, NewDictionary, save_dictionary};
use gpt2_model::hooks::Point;
use gpt2_train::{DictionaryOptions, DictionaryStep, DictionaryTrainer, Sparsity};
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The folder that it writes is a dictionary in SAELens' form, which gpt2 features and SAELens read. Ctrl-C saves what has been
learned. The same seed gives the same files, on any number of threads. --features, --k and --lr matter most: more features that
fire explain more, and say less each.

Examples:
  gpt2 record notes.txt --points blocks.2.hook_resid_post --out activations
  gpt2 train-features activations --features 768 --k 16 --out sae-new
  gpt2 train-features activations --features 768 --k 16 --sparsity jumprelu --epochs 2 --out sae-jump --json")]
pub(crate) struct TrainFeaturesArgs {
    /// The folder that gpt2 record wrote
    #[arg(value_name = "STORE")]
    pub(crate) store: PathBuf,
    /// The folder for cfg.json and sae_weights.safetensors
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The value to learn from, if the store has several
    #[arg(long, value_name = "POINT")]
    pub(crate) point: Option<String>,
    /// How many features to learn [default: 8 for each number of a value]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) features: Option<u32>,
    /// How many features fire at a token
    #[arg(short, long, default_value_t = 32, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) k: u32,
    /// How features are kept few: topk takes the k largest, jumprelu learns a threshold for each, so that about k fire
    #[arg(long, default_value = "topk", value_name = "HOW", value_parser = one_of(SPARSITIES))]
    pub(crate) sparsity: Sparsity,
    /// How often to go through the store
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: u32,
    /// How many tokens a step takes
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 16))]
    pub(crate) batch: u32,
    /// The largest learning rate
    #[arg(long, default_value_t = 1e-3, value_name = "RATE", value_parser = above_0)]
    pub(crate) lr: f64,
    /// Revive features that have not fired for N tokens
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) silent_after: u32,
    /// Seed of the weights at the start and of the order of tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Replace a dictionary that is already in --out
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
}

const SPARSITIES: &[(&str, Sparsity)] = &[("topk", Sparsity::TopK), ("jumprelu", Sparsity::JumpRelu)];

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

pub(crate) fn run(args: &TrainFeaturesArgs) -> anyhow::Result<ExitCode> {
    if args.out == Path::new("-") {
        bail!("--out -: expected the name of a folder; ./- is one");
    }
    let store = Store::open(&args.store)?;
    let (name, point) = point(args, &store)?;
    let mut inputs = Inputs::default();
    inputs.file("the store", args.store.join(INDEX));
    inputs.named(&args.store.display().to_string());
    inputs.spare_folder(&format!("--out {}", args.out.display()), &args.out)?;
    let mut outputs = Outputs::new(args.overwrite);
    for path in DictionaryCheckpoint::paths_in(&args.out) {
        outputs.add("--out", &path);
    }

    let rows = args.batch as usize;
    let first = batches(&store, &name, rows, args.seed)?.next().context("the store is empty")??;
    let d = first.dim(1)?;
    let steps = store.tokens() / rows * args.epochs as usize;
    if steps == 0 {
        bail!(
            "--batch {rows}: the store has {}; take smaller batches, or record more",
            count(store.tokens(), "token")
        );
    }
    let features = args.features.map_or(FEATURES_OF_ONE * d, |features| features as usize);
    let mut options = DictionaryOptions::new(features, args.k as usize, steps);
    (options.sparsity, options.lr, options.seed) = (args.sparsity, args.lr, args.seed);
    options.silent_after = args.silent_after as usize;
    let mut trainer = DictionaryTrainer::new(&first, options)?;
    let _folder = NewFolder::make(&args.out).context("--out")?;
    outputs.check(&inputs)?;
    let stop = Stop::listen()?;
    let mut found = vec![];
    let trained = train(args, &store, &name, &mut trainer, &stop, steps, &mut found);
    if found.is_empty() {
        trained?;
        bail!("{}: no batch of {rows} tokens came", args.store.display());
    }
    let (tensors, selection) = trainer.dictionary()?;
    let about = about(args, &store, point, &found);
    save_dictionary(&args.out, &tensors, &selection, &about)?;
    trained.with_context(|| {
        format!("stopped after {} of {steps} steps; what was learned before is saved", found.len())
    })?;

    let last = &found[found.len().saturating_sub(LAST)..];
    let mean = |of: fn(&DictionaryStep) -> f64| last.iter().map(of).sum::<f64>() / last.len().max(1) as f64;
    let report = Report {
        out: args.out.clone(),
        point: name,
        d,
        features,
        steps: found.len(),
        tokens: found.len() * rows,
        explained_variance: 1.0 - mean(|step| step.unexplained),
        l0: mean(|step| step.l0),
        silent: last.last().map_or(0, |step| step.silent),
    };
    output::report(args.json, &report, print)?;
    if found.len() < steps {
        note(&format!("stopped after {} of {steps} steps; what has been learned is saved", found.len()));
        return Ok(ExitCode::from(stop.code()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The value to learn from: its name in the store, and its point.
fn point(args: &TrainFeaturesArgs, store: &Store) -> anyhow::Result<(String, Point)> {
    let names = &store.index().values;
    let name = match (&args.point, &names[..]) {
        (Some(name), _) if names.contains(name) => name,
        (Some(name), _) => bail!("--point {name}: the store has {}", names.join(", ")),
        (None, [only]) => only,
        (None, _) => bail!("the store has {}; choose one with --point", names.join(", ")),
    };
    let point = name.parse().with_context(|| format!("{}: {name}", args.store.display()))?;
    Ok((name.clone(), point))
}

/// The store's rows as matrices, in an order that a seed decides; heads are one row.
fn batches<'a>(
    store: &'a Store,
    name: &'a str,
    rows: usize,
    seed: u64,
) -> anyhow::Result<impl Iterator<Item = candle_core::Result<Tensor>> + 'a> {
    Ok(store.shuffled(name, rows, seed)?.map(|batch| batch?.flatten_from(1)))
}

fn train(
    args: &TrainFeaturesArgs,
    store: &Store,
    name: &str,
    trainer: &mut DictionaryTrainer,
    stop: &Stop,
    steps: usize,
    found: &mut Vec<DictionaryStep>,
) -> anyhow::Result<()> {
    let bar = bar(Some(steps as u64), "{bar:30} step {pos}/{len}, {eta} left{msg}");
    let rows = args.batch as usize;
    for epoch in 0..u64::from(args.epochs) {
        for batch in batches(store, name, rows, args.seed.wrapping_add(epoch))? {
            let batch = batch?;
            // What is left of an epoch is too little for a step.
            if batch.dim(0)? < rows {
                continue;
            }
            let step = trainer.step(&batch)?;
            bar.inc(1);
            bar.set_message(format!(", explains {:.3}, L0 {:.1}", 1.0 - step.unexplained, step.l0));
            found.push(step);
            if stop.is_asked() {
                bar.finish_and_clear();
                return Ok(());
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// What `cfg.json` says besides sizes.
fn about(args: &TrainFeaturesArgs, store: &Store, point: Point, found: &[DictionaryStep]) -> NewDictionary {
    let facts = &store.index().facts;
    let TrainFeaturesArgs { sparsity, k, epochs, batch, lr, silent_after, seed, .. } = args;
    NewDictionary {
        hook: point,
        model_name: facts["provenance"]["model"].as_str().map(str::to_owned),
        prepend_bos: facts["bos"].as_bool().unwrap_or(false),
        context_size: facts["window"].as_u64(),
        made_by: json!({
            "gpt2": env!("CARGO_PKG_VERSION"),
            "store": facts,
            "training": { "sparsity": name_of(SPARSITIES, sparsity), "k": k, "epochs": epochs, "batch": batch, "lr": lr, "silent_after": silent_after, "seed": seed, "steps": found.len() },
        }),
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
