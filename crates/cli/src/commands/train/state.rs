//! What a run needs to go on as if it had never stopped: weights, the optimiser's moments and the step. Data,
//! dropout and learning rate are functions of the step and of the settings, which are kept to be compared.

use super::Best;
use crate::args::TrainArgs;
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use candle_nn::VarMap;
use gpt2_model::Config;
use gpt2_model::training::AdamW;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All that a run's numbers depend on.
#[derive(Serialize)]
pub(super) struct Settings {
    config: Config,
    model: Option<String>,
    data: u64,
    recompute: bool,
    window: usize,
    batch: u16,
    accumulate: u16,
    steps: u32,
    lr: f64,
    warmup: u32,
    weight_decay: f64,
    clip: f64,
    eval_every: u32,
    seed: u64,
}

impl Settings {
    pub(super) fn new(args: &TrainArgs, config: &Config, window: usize, data: u64) -> Self {
        Self {
            config: config.clone(),
            model: args.model.clone(),
            data,
            recompute: args.recompute,
            window,
            batch: args.batch,
            accumulate: args.accumulate,
            steps: args.steps,
            lr: args.lr,
            warmup: args.warmup,
            weight_decay: args.weight_decay,
            clip: args.clip,
            eval_every: args.eval_every,
            seed: args.run.seed,
        }
    }
}

/// Where a run's state lies, beside the model.
pub(super) fn path(out: &Path) -> PathBuf {
    out.join("training-state.safetensors")
}

/// Writes the state under a temporary name, then renames it.
pub(super) fn save(
    out: &Path,
    settings: &Settings,
    variables: &VarMap,
    optimiser: &AdamW,
    best: Option<Best>,
) -> anyhow::Result<()> {
    let mut tensors = optimiser.state();
    for (name, var) in super::held(variables)?.iter() {
        tensors.insert(format!("p.{name}"), var.as_tensor().clone());
    }
    let numbers =
        [optimiser.steps() as f64, best.map_or(f64::NAN, |b| b.loss), best.map_or(0.0, |b| b.step as f64)];
    tensors.insert("progress".into(), Tensor::new(&numbers, &Device::Cpu)?);
    tensors.insert("settings".into(), Tensor::new(serde_json::to_vec(settings)?, &Device::Cpu)?);
    let list: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gpt2_loader::atomic::write(&path(out), |temporary| gpt2_view::write_safetensors(temporary, &list, &[]))?;
    Ok(())
}

/// Reads the state into the variables and the optimiser, and gives the best validation so far.
pub(super) fn restore(
    out: &Path,
    settings: &Settings,
    variables: &VarMap,
    optimiser: &mut AdamW,
) -> anyhow::Result<Option<Best>> {
    let path = path(out);
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu)
        .with_context(|| format!("{}: not a training run's state; train without --resume", path.display()))?;
    let tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
    let part = |name: &str| tensors.get(name).with_context(|| format!("{}: it lacks {name}", path.display()));
    let saved: serde_json::Value = serde_json::from_slice(&part("settings")?.to_vec1::<u8>()?)?;
    // Through the same text as what was saved: a number read back may differ in its last digit.
    let now: serde_json::Value = serde_json::from_slice(&serde_json::to_vec(settings)?)?;
    if let (Some(saved), Some(now)) = (saved.as_object(), now.as_object()) {
        for (name, value) in now {
            let before = saved.get(name).unwrap_or(&serde_json::Value::Null);
            if before != value {
                bail!(
                    "--resume: {name} was {before} and is {value}; a run goes on with the settings that it had"
                );
            }
        }
    }
    for (name, var) in super::held(variables)?.iter() {
        var.set(&part(&format!("p.{name}"))?.to_device(var.device())?)?;
    }
    let progress: Vec<f64> = part("progress")?.to_vec1()?;
    let [steps, loss, step] = progress[..] else { bail!("{}: its progress is damaged", path.display()) };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts, written above
    let (steps, step) = (steps as u64, step as usize);
    optimiser.restore(&tensors, steps)?;
    Ok((!loss.is_nan()).then_some(Best { loss, step }))
}
