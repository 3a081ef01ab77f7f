//! The road to [`CausalSelfAttention`](crate::CausalSelfAttention), one type a step.
//!
//! | step | formula | in |
//! |---|---|---|
//! | no weights | `softmax(x·xᵀ)·x` | [`simple`] |
//! | one head | `softmax(q·kᵀ/√d)·v`, `q = x·W_query`, .. | [`SelfAttention`] |
//! | no future | hidden weights 0 and renormalised, or hidden scores -inf | [`causal_mask`] |
//! | one causal head | `dropout(softmax(mask(q·kᵀ)/√d))·v` | [`CausalAttention`] |
//! | several, stacked | `Concat(head_1(x), .., head_H(x))` | [`MultiHeadAttentionWrapper`] |
//! | several, in one | split, attend, merge, `out_proj` | [`MultiHeadAttention`] |
//! | as papers write it | `Concat(head_1, .., head_H)·W_O` | [`PerHeadAttention`] |
//! | GPT-2 | `W_query`, `W_key`, `W_value` side by side in `c_attn` | [`convert`] |
//!
//! These are for reading: each `forward` is its formula in plain Candle operations, all of which have a
//! gradient, and holds every (T, T) tensor in memory. What they compute, `CausalSelfAttention` computes
//! without; [`convert`] leads there and back. Layers are named as PyTorch's state dicts name them
//! (`W_query.weight`, `out_proj.bias`), with weights (out, in); d, `d_in`, `d_out` are widths, other letters
//! are [the crate's](crate). Dropout is in `forward_with` alone, never in `forward`.

pub mod causal_attention;
pub mod causal_mask;
pub mod convert;
pub mod multi_head;
pub mod per_head;
mod projections;
pub mod self_attention;
pub mod simple;
pub mod wrapper;

pub use causal_attention::CausalAttention;
pub use multi_head::MultiHeadAttention;
pub use per_head::{Head, PerHeadAttention, PerHeadSizes};
pub use self_attention::SelfAttention;
pub use wrapper::MultiHeadAttentionWrapper;
