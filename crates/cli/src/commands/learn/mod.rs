//! The commands that train models and dictionaries, and record values to learn from.

pub(super) mod record;
pub(super) mod train;
pub(super) mod train_features;
