//! Hooks read and change the model's values while it runs, at points named as in TransformerLens (Nanda &
//! Bloom 2022).
//!
//! A hook says which points it wants and gets the value at each; whatever it returns replaces the value. Parts
//! of the model that no hook wants keep their fused code, and a hook that only reads changes no bit of the
//! result. [`Interventions`] are ready-made changes. To get exact weights and summaries you need no hook: ask
//! for them as data ([`ForwardArgs::weights`](crate::ForwardArgs::weights)).
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use gpt2_model::hooks::{Point, on};
//! use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
//!
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
//! # let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
//! # let input_ids = Tensor::new(&[[3u32, 1, 4, 1, 5]], &Device::Cpu)?;
//! let halve = on([Point::MlpOut(1)], |_, x| Ok(Some((x * 0.5)?)));
//! let output = model.forward(&input_ids, ForwardArgs { hooks: Some(&halve), ..Default::default() })?;
//! # Ok(())
//! # }
//! ```
//!
//! With a cache, a hook sees the new positions of each pass: [`At::past`] says how many came before them. With
//! `last_logits_only`, the last block still processes all positions if a hook wants one of its points; the
//! result is the same.

mod features;
mod hook;
mod intervention;
mod intervention_text;
mod interventions;
mod point;
mod recorder;

pub use features::{Activity, FeatureChange, FeatureSite};
pub(crate) use hook::PassHooks;
pub use hook::{At, Chain, Hooks, KnockOut, error, on};
pub(crate) use intervention::mean;
pub use intervention::{CustomHooks, Head, Intervention, Patch, Place};
pub use interventions::Interventions;
pub use point::{ParseError, Point};
pub use recorder::{Recorder, WeightRows};
