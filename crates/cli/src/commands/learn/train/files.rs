//! The files that a training run writes. Refuses them before the run starts if they would do harm.

use super::args::TrainArgs;
use crate::model::hub;
use crate::output::written_files::Outputs;
use anyhow::{Context, bail};
use gpt2_engine::ReadFiles;
use gpt2_engine::open::device_name;
use gpt2_files::folder::OwnFolder;
use gpt2_files::open_regular;
use gpt2_loader::{Files, stale_settings};
use gpt2_train::{METRICS_HEADER, MetricsFormat, Trainer};
use gpt2_view::{Frame, PictureFormat, Provenance};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A run's state, beside the model.
pub(super) const STATE: &str = "training-state.safetensors";
/// The picture of the losses.
pub(super) const PICTURE: &str = "loss.png";
/// The files that a run leaves in its folder.
const FILES: [&str; 5] = ["config.json", "model.safetensors", "tokenizer.json", STATE, PICTURE];
/// The files of a run that trains an adapter.
pub(super) const FILES_OF_ADAPTER: [&str; 4] =
    ["adapter_config.json", "adapter_model.safetensors", STATE, PICTURE];

fn names(args: &TrainArgs) -> &'static [&'static str] {
    if args.lora.rank.is_some() { &FILES_OF_ADAPTER } else { &FILES }
}

pub(super) fn metrics_format(path: &Path) -> anyhow::Result<MetricsFormat> {
    MetricsFormat::from_path(path)
        .with_context(|| format!("--metrics {}: expected a name that ends in .csv or .jsonl", path.display()))
}

/// Whether the file begins as a table of metrics does, so that a resumed run may continue it.
fn is_metrics(path: &Path, format: MetricsFormat) -> anyhow::Result<bool> {
    let mut line = vec![];
    BufReader::new(open_regular(path)?).take(1 << 12).read_until(b'\n', &mut line)?;
    let mut columns = METRICS_HEADER.split(',');
    Ok(match format {
        _ if line.is_empty() => true,
        MetricsFormat::JsonLines => serde_json::from_slice::<Map<String, Value>>(&line).is_ok_and(|row| {
            row.len() == columns.clone().count() && columns.all(|name| row.contains_key(name))
        }),
        _ => line.trim_ascii_end() == METRICS_HEADER.as_bytes(),
    })
}

/// Refuses an `--out` that holds a model, or, with `--resume`, one that holds no run.
fn check_out(args: &TrainArgs) -> anyhow::Result<()> {
    let state = args.out.join(STATE);
    if args.resume {
        if !state.exists() {
            bail!("--resume: there is no {}; the run has finished, or never started", state.display());
        }
        return Ok(());
    }
    // A dangling link also counts.
    let is_there = |name: &str| args.out.join(name).symlink_metadata().is_ok();
    let own = names(args);
    if let Some(name) = own.iter().find(|name| !args.overwrite && is_there(name)) {
        bail!(
            "{}: holds {name} already; choose another --out, continue a stopped run with --resume, \
             or replace it with --overwrite",
            args.out.display()
        );
    }
    // Neither kind of run adds its files to the other's.
    let mut others = FILES.iter().chain(&FILES_OF_ADAPTER).filter(|name| !own.contains(name));
    if let Some(name) = others.find(|name| is_there(name)) {
        let (what, other) =
            if args.lora.rank.is_some() { ("a model", "an adapter") } else { ("an adapter", "a model") };
        bail!("{}: holds {name}, of {what}; choose another --out for {other}", args.out.display());
    }
    // A replaced run may have left the first, which is written again.
    if let Some(name) = stale_settings(&args.out, args.overwrite).filter(|_| args.lora.rank.is_none()) {
        bail!(
            "{}: holds {name}, which would change the trained model; remove it, or choose another --out",
            args.out.display()
        );
    }
    Ok(())
}

/// Refuses files of a run that cannot be written, or that would harm the text, the model that the run starts from, the
/// Hub's cache or another file. Leaves no folder that was not there.
pub(super) fn check(args: &TrainArgs, files: Option<&Files>) -> anyhow::Result<()> {
    let mut inputs = ReadFiles::default();
    inputs.file("the text", args.source().1);
    args.val_text.iter().for_each(|text| inputs.file("the validation text", text));
    args.interventions.inputs(&mut inputs);
    hub::inputs(&args.hub, &mut inputs);
    args.model.iter().for_each(|model| inputs.named(model));
    if let Some(files) = files {
        inputs.model(files)?;
    }
    // Before what --overwrite allows to replace: it never allows this.
    let named = format!("--out {}", args.out.display());
    inputs.spare_folder(&named, &args.out)?;
    check_out(args)?;
    let _folder = OwnFolder::make(&args.out).context("--out")?;
    // This decides for all files of the run together whether they may be replaced.
    let mut outputs = Outputs::new(true);
    for name in names(args) {
        outputs.add("--out", &args.out.join(name));
    }
    if let Some(path) = &args.picture {
        let named = format!("--picture {}", path.display());
        PictureFormat::from_path(path).with_context(|| named.clone())?;
        if path.exists() && !args.resume && !args.overwrite {
            bail!("{named}: already exists; choose another name, or give --overwrite");
        }
        outputs.add("--picture", path);
    }
    let Some(path) = &args.metrics else { return outputs.check(&inputs) };
    let named = format!("--metrics {}", path.display());
    let format = metrics_format(path)?;
    if path.exists() && args.resume && !is_metrics(path, format).with_context(|| named.clone())? {
        bail!("{named}: is not a table of metrics that `gpt2` wrote; choose another name");
    }
    if path.exists() && !args.resume && !args.overwrite {
        bail!("{named}: already exists; choose another name, or give --overwrite");
    }
    outputs.add("--metrics", path);
    outputs.check(&inputs)
}

/// Draws the losses so far into `--out`, and into `--picture`.
pub(super) fn draw(args: &TrainArgs, trainer: &Trainer) -> anyhow::Result<()> {
    let history = trainer.history();
    let training: Vec<(u64, f32)> = (1..).zip(history.training().iter().copied()).collect();
    #[allow(clippy::cast_possible_truncation)] // a picture
    let validation: Vec<(u64, f32)> =
        history.validation().iter().map(|&(step, loss)| (step, loss as f32)).collect();
    let title = title(&args.out);
    let made_by = made_by(trainer);
    let standard = args.out.join(PICTURE);
    for path in [&standard].into_iter().chain(&args.picture) {
        let frame = Frame::new(PictureFormat::from_path(path)?, &title, &made_by);
        let drawn = gpt2_view::loss_curve(&frame, &training, &validation)?;
        gpt2_files::atomic::write_bytes(path, &drawn)?;
    }
    Ok(())
}

fn made_by(trainer: &Trainer) -> Provenance {
    let version = env!("CARGO_PKG_VERSION");
    let device = device_name(trainer.model().device());
    let options = trainer.settings().options();
    let steps = options.steps;
    let window = trainer.window();
    let seed = options.seed;
    let batches = usize::from(options.batch) * usize::from(options.accumulate);
    Provenance {
        caption: format!("f32 on {device}; {steps} steps of {batches} x {window} tokens; seed {seed}"),
        facts: json!({ "gpt2": version, "dtype": "f32", "device": device, "training": trainer.settings() }),
    }
}

/// The folder's own name; empty for a folder without one, such as the root.
fn title(out: &Path) -> String {
    let path = std::path::absolute(out).unwrap_or_else(|_| out.to_path_buf());
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
