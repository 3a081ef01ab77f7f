//! Initial weights, and what a training step needs from a model.

pub mod init;
pub mod training;
