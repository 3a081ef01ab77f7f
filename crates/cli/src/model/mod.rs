//! The options of the model that a command runs.

pub(crate) mod args;
pub(crate) mod hub;
