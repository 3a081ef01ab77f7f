//! The options of input for the model: prompts, pairs of prompts, corpora.

pub(crate) mod corpus;
pub(crate) mod pairs;
pub(crate) mod prompt;
