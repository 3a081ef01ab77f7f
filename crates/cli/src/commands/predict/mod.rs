//! The commands that show what a model predicts, and how well.

pub(super) mod compare;
pub(super) mod eval;
pub(super) mod forward;
pub(super) mod generate;
pub(super) mod score;
