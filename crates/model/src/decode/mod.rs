//! Writing text: generation token by token, sampling, drafts and beam search.

pub mod beams;
mod captured_step;
pub mod draft;
pub mod generation;
mod outcome;
mod passes;
mod ranked;
pub(crate) mod sampling;
