//! The weights of GPT-2's heads as circuits (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").
//!
//! Vectors are rows. A head reads `x·W_Q` and `x·W_K` to decide where to attend, and adds `x·W_V·W_O` of what it attends to to the
//! residual stream. By token, the QK circuit is `W_E·W_Q·W_Kᵀ·W_Eᵀ·scale`, a row for each query's token and a column for each
//! key's; the OV circuit is `W_E·W_V·W_O·W_U`, a row for the token that is attended to and a column for each token's logit.
//!
//! All matrices are processed as TransformerLens does by default, so that what layer norm removes does not count: weights after
//! a layer norm are multiplied by its γ and lose each column's mean over C; what is added to the stream, embeddings included,
//! loses each row's mean over C; `W_U` loses its mean over the vocabulary. Biases play no part.
//!
//! | letter | meaning | | letter | meaning |
//! |---|---|---|---|---|
//! | C | `n_embd` | | L | layers |
//! | D | width of a head | | H | heads of a layer |
//! | V | `vocab_size` | | | |

pub mod attribution_graph;
mod by_token;
mod circuits;
pub mod discovery;
pub mod features;
mod matrices;

pub use by_token::{Entry, PromotedTokens};
pub use circuits::{Circuit, Circuits};
pub use matrices::{Composition, Eigenvalue, Singular};

// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
