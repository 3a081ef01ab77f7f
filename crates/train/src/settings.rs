//! The settings that a run's numbers depend on: saved with its state, and compared when it resumes.

use crate::options::TrainOptions;
use gpt2_model::Config;
use gpt2_model::lora::LoraOptions;
use serde::Serialize;

/// The settings of a run, in the form in which they are saved.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    config: Config,
    model: Option<String>,
    data: u64,
    recompute: bool,
    repeat_fraction: f64,
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
    /// Of the adapter that is trained, if one is.
    lora: Option<LoraOptions>,
    /// The fingerprint of the frozen model behind it.
    #[serde(rename = "frozen_model_fingerprint")]
    base: Option<u64>,
}

impl Settings {
    /// The settings of a run with these options, over windows of data with this fingerprint.
    pub(crate) fn new(options: &TrainOptions, config: &Config, window: usize, data: u64) -> Self {
        Self {
            config: config.clone(),
            model: options.model.clone(),
            data,
            recompute: options.recompute,
            repeat_fraction: options.repeat_fraction,
            window,
            batch: options.batch,
            accumulate: options.accumulate,
            steps: options.steps,
            lr: options.lr,
            warmup: options.warmup,
            weight_decay: options.weight_decay,
            clip: options.clip,
            eval_every: options.eval_every,
            seed: options.seed,
            lora: None,
            base: None,
        }
    }

    /// The same with another config.
    pub(crate) fn of_config(self, config: &Config) -> Self {
        Self { config: config.clone(), ..self }
    }

    /// The same for an adapter with these options, of a model with this fingerprint.
    pub(crate) fn of_adapter(self, lora: &LoraOptions, base: u64) -> Self {
        Self { lora: Some(lora.clone()), base: Some(base), ..self }
    }
}
