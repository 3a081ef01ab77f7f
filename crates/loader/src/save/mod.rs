//! Writes models, adapters and dictionaries of features.

pub(crate) mod adapter;
pub(crate) mod dictionary;
pub(crate) mod gguf;
pub(crate) mod import;
pub(crate) mod model;
