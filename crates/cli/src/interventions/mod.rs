//! Applied inside the model: the options.

pub(crate) mod args;
