//! The commands that train models and dictionaries, and fetch or record what they learn from.

pub(super) mod data;
pub(super) mod record;
pub(super) mod train;
pub(super) mod train_features;
