//! Training: a new model, a model to fine-tune, or an adapter.
//!
//! It is no [`Study`](crate::studies::study::Study): it needs no model to begin with, and its caller decides after each step what becomes of it: the
//! command writes folders that a later run goes on from, Python keeps the model.

mod data;
mod options;
mod samples;

pub use data::TrainingData;
pub use options::{
    LR_OF_ADAPTER, LR_OF_MODEL, LR_OF_NEW, Options, STEPS, Start, TRAIN_DTYPES, WARMUP, WINDOW,
};
pub use samples::{Samples, bits_per_byte, bytes_per_token};
