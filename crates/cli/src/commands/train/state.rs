//! What a run needs to go on as if it had never stopped: weights, the optimiser's moments, the step and
//! the losses. Data,
//! dropout and learning rate are functions of the step and of the settings, which are kept to be compared.

use super::history::History;
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
    history: &History,
) -> anyhow::Result<()> {
    let mut tensors = optimiser.state();
    for (name, var) in super::held(variables)?.iter() {
        tensors.insert(format!("p.{name}"), var.as_tensor().clone());
    }
    for (name, tensor) in history.tensors()? {
        tensors.insert(name.into(), tensor);
    }
    let steps = u32::try_from(optimiser.steps())?;
    tensors.insert("steps".into(), Tensor::new(&[steps], &Device::Cpu)?);
    tensors.insert("settings".into(), Tensor::new(serde_json::to_vec(settings)?, &Device::Cpu)?);
    let list: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gpt2_loader::atomic::write(&path(out), |temporary| gpt2_view::write_safetensors(temporary, &list, &[]))?;
    Ok(())
}

/// Reads the state into the variables and the optimiser, and gives the losses so far.
pub(super) fn restore(
    out: &Path,
    settings: &Settings,
    variables: &VarMap,
    optimiser: &mut AdamW,
) -> anyhow::Result<History> {
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
    let [steps] = part("steps")?.to_vec1::<u32>()?[..] else {
        bail!("{}: its number of steps is damaged", path.display())
    };
    optimiser.restore(&tensors, steps.into())?;
    History::from_tensors(&tensors, steps.into()).with_context(|| path.display().to_string())
}
