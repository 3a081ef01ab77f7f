//! Trains GPT-2 on [Candle](https://github.com/huggingface/candle), from scratch or from an existing model: data,
//! learning rate, AdamW or Muon, and a [`Trainer`]. Stop and resume it, and the run still ends with the same bytes. The crate
//! prints nothing: it reports every step and every validation to a callback, which may stop the run.
//!
//! ```
//! use candle_core::{DType, Device};
//! use gpt2_model::{Config, Gpt2LMHeadModel, init};
//! use gpt2_train::{Dataset, TrainingEvent, TrainOptions, Trainer};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> gpt2_train::Result<()> {
//! let text = "To be, or not to be, that is the question. ".repeat(20);
//! let ids = text.bytes().map(u32::from).collect(); // or a tokenizer's ids
//! let config = Config { vocab_size: 128, n_positions: 16, n_embd: 16, n_layer: 1, n_head: 2, ..Config::gpt2() };
//! // Or a pretrained one, loaded by gpt2-loader.
//! let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
//!
//! let mut options = TrainOptions::new(60); // steps
//! (options.lr, options.warmup, options.eval_every) = (1e-2, 5, 20);
//! let mut trainer = Trainer::from_model(&model, Dataset::split(ids, 0.1)?, options)?;
//! let mut losses = vec![];
//! trainer.run(|_, event| {
//!     if let TrainingEvent::Validated(_, validation) = event {
//!         losses.push(validation.loss); // nats per token
//!     }
//!     Ok(ControlFlow::Continue(()))
//! })?;
//! assert!(losses.len() == 3 && losses[2] < losses[0], "{losses:?}");
//! let trained: &Gpt2LMHeadModel = trainer.model(); // to run, or for gpt2_loader::save
//! # assert_eq!(trained.config(), &config);
//! # Ok(())
//! # }
//! ```
//!
//! [`Trainer::adapter`] trains a LoRA adapter (`gpt2_model::lora`) of a frozen model, and [`Dataset::from_documents`] takes prompts
//! and completions. [`Trainer::in_group`] shares the work out over the processes of a [`gpt2_parallel::Group`], with the same result, byte
//! for byte. [`Trainer::save_state`] writes everything needed to resume a run, [`Trainer::resume`] reads it, and [`Metrics`]
//! writes a line per step. For a loop of your own, use [`AdamW`], [`MuonStep`], [`LearningRate`] and [`gpt2_model::training`].

mod data;
mod dictionary;
mod documents;
mod error;
mod exchange;
mod muon;
mod optimizer;
mod options;
mod report;
mod schedule;
mod sharded;
mod state;
mod trainer;

pub use candle_core;
pub use data::Dataset;
pub use dictionary::{DictionaryOptions, DictionaryStep, DictionaryTrainer, Sparsity};
pub use documents::Document;
pub use error::{BoxError, Result, TrainError};
pub use gpt2_model;
pub use gpt2_model::training::variables_of;
pub use gpt2_parallel;
pub use muon::{HiddenMatrices, MuonStep, orthogonalized};
pub use optimizer::{AdamW, AdamWParams};
pub use options::{MUON_LR, Optimizer, RunSettings, TrainDType, TrainOptions};
pub use report::{Estimate, METRICS_HEADER, Metrics, MetricsFormat, StepReport, TrainingEvent, Validation};
pub use schedule::{LearningRate, Schedule};
pub use state::{Best, History};
pub use trainer::Trainer;
