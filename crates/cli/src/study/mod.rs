//! A command that looks into a model while it runs, over one prompt or many texts.

pub(crate) mod args;
pub(crate) mod over_texts;
