//! Predictions: of the next token, of a text, of two models.

pub mod compare;
pub mod eval;
pub mod forward;
pub mod generate;
pub mod published;
pub mod score;
