//! Training: a new model, a model to fine-tune, or an adapter.
//!
//! It is no [`Study`](crate::studies::study::Study): it needs no model to begin with, and its caller decides after each step what becomes of it: the
//! command writes folders that a later run goes on from, Python keeps the model.

mod data;
mod options;

pub use data::TrainingData;
pub use options::{Options, Start, TRAIN_DTYPES};
