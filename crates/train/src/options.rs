//! The options of a training run, and the settings that its numbers depend on.

use crate::error::{Result, TrainError};
use crate::schedule::Schedule;
use gpt2_model::lora::LoraOptions;
use gpt2_model::{Config, Gpt2LMHeadModel};
use serde::{Deserialize, Serialize};

/// The optimizer of the blocks' matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// AdamW, as for everything else.
    #[default]
    AdamW,
    /// Muon; embeddings, norms, biases and heads take AdamW.
    Muon,
}

/// Muon's learning rate where none is given.
pub const MUON_LR: f64 = 0.02;

/// The dtype of the factors of products with weights, forward and backward. Weights, sums, norms, softmax, loss, gradients and the
/// optimizer are in f32 with both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainDType {
    /// Unchanged.
    #[default]
    F32,
    /// Rounded to bf16, on processors with instructions for such products.
    Bf16,
}

impl TrainDType {
    /// A model whose weights are variables, with products of this dtype.
    ///
    /// # Errors
    /// See [`Gpt2LMHeadModel::with_bf16_products`].
    pub fn of(self, model: Gpt2LMHeadModel) -> candle_core::Result<Gpt2LMHeadModel> {
        match self {
            Self::F32 => Ok(model),
            Self::Bf16 => model.with_bf16_products(),
        }
    }
}

/// The options of a training run. [`new`](Self::new) sets the defaults; you may change every field.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TrainOptions {
    /// Steps of the optimizer.
    pub steps: u32,
    /// Sequences per batch: 8.
    pub batch: u16,
    /// Batches whose gradients are summed for one step: 1.
    pub accumulate: u16,
    /// Tokens per sequence: `None` for the model's `n_positions`.
    pub window: Option<usize>,
    /// The optimizer of the blocks' matrices: `AdamW`.
    pub optimizer: Optimizer,
    /// Highest learning rate, reached after the warm-up: 1e-3.
    pub lr: f64,
    /// Highest learning rate of the matrices that Muon steps: `None` for [`MUON_LR`].
    pub muon_lr: Option<f64>,
    /// The course of both rates after the warm-up: a cosine down to a tenth.
    pub schedule: Schedule,
    /// Steps of linear warm-up: 100.
    pub warmup: u32,
    /// The weight decay, on matrices and embeddings only, times the learning rate of each, which is [`MUON_LR`] for Muon's: 0.1.
    pub weight_decay: f64,
    /// The largest norm of all gradients together; larger ones are scaled down: 1; 0 is off.
    pub clip: f64,
    /// Dropout on embeddings, attention weights and residuals: `None` for the config's rates.
    #[serde(skip)] // the config has it
    pub dropout: Option<f64>,
    /// The part of the training rows, 0 to 1, that are random tokens repeated instead of text: 0. They teach heads to
    /// look for earlier copies of the present token (induction).
    pub repeat_fraction: f64,
    /// Whether to keep only one block's activations at a time and run each block again in the backward pass: less
    /// memory, more time, the same numbers. `false`.
    pub recompute: bool,
    /// The dtype of the factors of products with weights: f32.
    pub train_dtype: TrainDType,
    /// Steps between validations: 100. The last step is always validated.
    pub eval_every: u32,
    /// Seed of the initial weights, the order of the data and dropout: 0.
    pub seed: u64,
    /// The name of the model to fine-tune. A run only resumes with the same name.
    pub model: Option<String>,
}

impl TrainOptions {
    /// The defaults, for this many steps.
    #[must_use]
    pub fn new(steps: u32) -> Self {
        Self {
            steps,
            batch: 8,
            accumulate: 1,
            window: None,
            optimizer: Optimizer::AdamW,
            lr: 1e-3,
            muon_lr: None,
            schedule: Schedule::Cosine,
            warmup: 100,
            weight_decay: 0.1,
            clip: 1.0,
            dropout: None,
            repeat_fraction: 0.0,
            recompute: false,
            train_dtype: TrainDType::F32,
            eval_every: 100,
            seed: 0,
            model: None,
        }
    }

    /// Tokens per sequence, for a model with this context length.
    ///
    /// # Errors
    /// When the number is 0 or larger than the context.
    pub fn window_for(&self, n_positions: usize) -> Result<usize> {
        let window = self.window.unwrap_or(n_positions);
        if window == 0 || window > n_positions {
            return Err(TrainError::Window { window, n_positions });
        }
        Ok(window)
    }

    /// Refuses invalid values.
    pub(crate) fn check(&self) -> Result<()> {
        for (option, value) in [
            ("steps", self.steps),
            ("batch", self.batch.into()),
            ("accumulate", self.accumulate.into()),
            ("eval_every", self.eval_every),
        ] {
            if value == 0 {
                return Err(TrainError::option(option, 0, "at least 1"));
            }
        }
        let muon_lr = self.muon_lr.unwrap_or(MUON_LR);
        let numbers =
            [("lr", self.lr), ("muon_lr", muon_lr), ("weight_decay", self.weight_decay), ("clip", self.clip)];
        for (option, value) in numbers {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(TrainError::option(option, value, "a finite number of at least 0"));
            }
        }
        if self.muon_lr.is_some() && self.optimizer != Optimizer::Muon {
            return Err(TrainError::option("muon_lr", muon_lr, "no number without Muon"));
        }
        if !(0.0..=1.0).contains(&self.repeat_fraction) {
            let value = self.repeat_fraction;
            return Err(TrainError::option("repeat_fraction", value, "a number between 0 and 1"));
        }
        match self.dropout {
            Some(rate) if !(0.0..1.0).contains(&rate) => {
                Err(TrainError::option("dropout", rate, "a number of at least 0 and below 1"))
            }
            _ => Ok(()),
        }
    }
}

/// The settings that a run's numbers depend on: saved with its state, and compared when it resumes.
#[derive(Debug, Clone, Serialize)]
pub struct RunSettings {
    pub(crate) config: Config,
    /// The fingerprint of the data.
    pub(crate) data: u64,
    /// With the window that the config decides if they name none.
    #[serde(flatten)]
    pub(crate) options: TrainOptions,
    /// Of the adapter that is trained, if one is.
    pub(crate) lora: Option<LoraOptions>,
    /// The fingerprint of the frozen model behind it.
    #[serde(rename = "frozen_model_fingerprint")]
    pub(crate) base: Option<u64>,
}

impl RunSettings {
    /// The options, with the numbers that the model and the optimizer decide if they name none.
    #[must_use]
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_no_run_can_have_is_refused_by_its_name() {
        type Change = fn(&mut TrainOptions);
        let changes: [(&str, Change); 13] = [
            ("steps", |o| o.steps = 0),
            ("batch", |o| o.batch = 0),
            ("accumulate", |o| o.accumulate = 0),
            ("eval_every", |o| o.eval_every = 0),
            ("lr", |o| o.lr = f64::NAN),
            ("muon_lr", |o| o.muon_lr = Some(0.1)),
            ("muon_lr", |o| (o.optimizer, o.muon_lr) = (Optimizer::Muon, Some(-0.1))),
            ("weight_decay", |o| o.weight_decay = -0.1),
            ("clip", |o| o.clip = f64::INFINITY),
            ("dropout", |o| o.dropout = Some(1.0)),
            ("dropout", |o| o.dropout = Some(f64::NAN)),
            ("repeat_fraction", |o| o.repeat_fraction = 1.1),
            ("repeat_fraction", |o| o.repeat_fraction = f64::NAN),
        ];
        assert!(TrainOptions::new(1).check().is_ok());
        for (name, change) in changes {
            let mut options = TrainOptions::new(1);
            change(&mut options);
            let refused = options.check().map_err(|e| e.to_string());
            assert!(
                refused.as_ref().is_err_and(|e| e.starts_with(&format!("{name} is "))),
                "{name}: {refused:?}"
            );
        }
    }

    #[test]
    fn the_defaults_are_those_that_the_fields_name() -> std::result::Result<(), Box<dyn std::error::Error>> {
        let expected = serde_json::json!({
            "steps": 7, "batch": 8, "accumulate": 1, "window": null, "lr": 1e-3, "warmup": 100,
            "optimizer": "adamw", "muon_lr": null, "schedule": "cosine",
            "weight_decay": 0.1, "clip": 1.0, "repeat_fraction": 0.0, "recompute": false,
            "train_dtype": "f32", "eval_every": 100, "seed": 0, "model": null,
        });
        assert_eq!(serde_json::to_value(TrainOptions::new(7))?, expected);
        assert_eq!(TrainOptions::new(7).dropout, None);
        Ok(())
    }

    #[test]
    fn a_window_is_one_token_to_the_whole_context() {
        let window = |window| TrainOptions { window, ..TrainOptions::new(1) }.window_for(16).ok();
        assert_eq!([None, Some(1), Some(16)].map(window), [Some(16), Some(1), Some(16)]);
        assert_eq!([Some(0), Some(17)].map(window), [None, None]);
    }

    #[test]
    fn limits_of_the_options_are_allowed() {
        let options = TrainOptions {
            lr: 0.0,
            weight_decay: 0.0,
            clip: 0.0,
            dropout: Some(0.0),
            repeat_fraction: 1.0,
            ..TrainOptions::new(1)
        };
        assert!(options.check().is_ok());
    }
}
