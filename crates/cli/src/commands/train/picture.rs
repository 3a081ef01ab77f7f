//! `loss.png`: a plot of a run's losses that records how it was made.

use super::files;
use crate::args::TrainArgs;
use crate::provenance::device_name;
use candle_core::Device;
use gpt2_train::Trainer;
use gpt2_view::{PictureFormat, Provenance};
use serde_json::json;
use std::path::Path;

/// Draws the losses so far into `--out`.
pub(super) fn draw(args: &TrainArgs, trainer: &Trainer, device: &Device) -> anyhow::Result<()> {
    let history = trainer.history();
    let training: Vec<(u64, f32)> = (1..).zip(history.training().iter().copied()).collect();
    #[allow(clippy::cast_possible_truncation)] // a picture
    let validation: Vec<(u64, f32)> =
        history.validation().iter().map(|&(step, loss)| (step, loss as f32)).collect();
    let made_by = made_by(args, trainer, device);
    let picture =
        gpt2_view::loss_curve(PictureFormat::Png, &title(&args.out), &training, &validation, &made_by)?;
    Ok(gpt2_files::atomic::write_bytes(&files::picture(&args.out), &picture)?)
}

fn made_by(args: &TrainArgs, trainer: &Trainer, device: &Device) -> Provenance {
    let (version, device) = (env!("CARGO_PKG_VERSION"), device_name(device));
    let (steps, window, seed) = (args.steps, trainer.window(), args.run.seed);
    let batches = usize::from(args.batch) * usize::from(args.accumulate);
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
