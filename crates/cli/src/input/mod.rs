//! Input for the model: prompts, pairs of prompts, files of texts and corpora, cut into windows.

pub(crate) mod corpus;
pub(crate) mod pairs;
pub(crate) mod point_values;
pub(crate) mod prompt;
pub(crate) mod text_lines;
pub(crate) mod windows;
