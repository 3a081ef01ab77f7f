//! What a run needs to go on as if it had never stopped: weights, the optimiser's moments, the step and
//! the losses. Data,
//! dropout and learning rate are functions of the step and of the settings, which are kept to be compared.

use super::history::History;
use crate::args::TrainArgs;
use crate::provenance::device_name;
use anyhow::{Context, bail};
use candle_core::{Device, Tensor};
use candle_nn::VarMap;
use gpt2_model::Config;
use gpt2_model::training::AdamW;
use gpt2_view::{Provenance, write_safetensors};
use serde::Serialize;
use serde_json::json;
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

impl Settings {
    /// What made the run's picture.
    pub(super) fn made_by(&self, device: &Device) -> Provenance {
        let (version, device) = (env!("CARGO_PKG_VERSION"), device_name(device));
        let Self { steps, batch, accumulate, window, seed, .. } = self;
        let batches = usize::from(*batch) * usize::from(*accumulate);
        Provenance {
            caption: format!("f32 on {device}; {steps} steps of {batches} x {window} tokens; seed {seed}"),
            facts: json!({ "gpt2": version, "dtype": "f32", "device": device, "training": self }),
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
    let metadata = [("gpt2", env!("CARGO_PKG_VERSION").to_owned())];
    let list: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gpt2_files::atomic::write(&path(out), |temporary| write_safetensors(temporary, &list, &metadata))?;
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
    gpt2_files::open_regular(&path).with_context(|| path.display().to_string())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::train::tests::train_args;

    #[test]
    fn every_setting_that_changed_is_refused_by_its_name() -> anyhow::Result<()> {
        let out = tempfile::tempdir()?;
        let (config, variables) = (Config::gpt2(), VarMap::new());
        let mut optimiser = AdamW::new(&variables, gpt2_model::training::AdamWParams::default())?;
        let settings = |options: &[&str]| -> anyhow::Result<Settings> {
            Ok(Settings::new(&train_args(options)?, &config, 16, 1))
        };
        let history = History::default();
        save(out.path(), &settings(&[])?, &variables, &optimiser, &history)?;
        restore(out.path(), &settings(&[])?, &variables, &mut optimiser)?;
        let mut others = vec![
            ("config", Settings::new(&train_args(&[])?, &Config { n_embd: 780, ..config.clone() }, 16, 1)),
            ("window", Settings::new(&train_args(&[])?, &config, 17, 1)),
            ("data", Settings::new(&train_args(&[])?, &config, 16, 2)),
        ];
        for (name, options) in [
            ("model", &["--model", "gpt2"][..]),
            ("recompute", &["--recompute"]),
            ("batch", &["--batch", "3"]),
            ("accumulate", &["--accumulate", "3"]),
            ("steps", &["--steps", "3"]),
            ("lr", &["--lr", "0.3"]),
            ("warmup", &["--warmup", "3"]),
            ("weight_decay", &["--weight-decay", "0.3"]),
            ("clip", &["--clip", "0.3"]),
            ("eval_every", &["--eval-every", "3"]),
            ("seed", &["--seed", "3"]),
        ] {
            others.push((name, settings(options)?));
        }
        others.retain(|(name, other)| {
            let refused = restore(out.path(), other, &variables, &mut optimiser).err();
            !refused.is_some_and(|e| e.to_string().starts_with(&format!("--resume: {name} was ")))
        });
        let accepted: Vec<_> = others.into_iter().map(|(name, _)| name).collect();
        assert!(accepted.is_empty(), "not refused by their names: {accepted:?}");
        Ok(())
    }
}
