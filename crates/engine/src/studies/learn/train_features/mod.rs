//! Training a sparse autoencoder or transcoder on the values of a store, or on those that a model computes as it reads a text, by one process or by
//! many.
//!
//! It is no [`Study`](crate::studies::study::Study): it needs no model if there is a store, writes a folder of its own, and shares the work with the
//! other processes of a group.

mod live;
mod options;
mod training;
mod values;

pub use live::LiveValues;
pub use options::{Options, Report, SPARSITIES, TrainingRun, ValueNames};
pub use training::FeatureTraining;
pub use values::TrainingValues;
