//! Everything that can go wrong between a source and a model, in words and as data.

mod causes;
mod load_error;
mod problem;
mod remedy;

pub use load_error::LoadError;
pub use remedy::Remedy;
