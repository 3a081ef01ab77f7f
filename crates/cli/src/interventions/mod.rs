//! Changes inside the model: the options, and the interventions that they make.

pub(crate) mod args;
pub(crate) mod changes;
pub(crate) mod checks;
pub(crate) mod circuit;
mod features;
