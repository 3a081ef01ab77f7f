//! Recorded values, and training on texts and on values.

pub mod record;
pub mod train;
pub mod train_features;
