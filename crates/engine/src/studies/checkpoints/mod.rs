//! Checkpoints: looked into, quantized, merged, imported. They run no model.

pub mod import;
pub mod inspect;
pub mod merge;
mod new_model;
pub mod quantize;

pub use new_model::NewModel;
