//! The way to [`CausalSelfAttention`](gpt2_model::CausalSelfAttention), one type per step.
//!
//! | step | formula | in |
//! |---|---|---|
//! | no weights | `softmax(x·xᵀ)·x` | [`simple`] |
//! | one head | `softmax(q·kᵀ/√d)·v`, `q = x·W_query`, .. | [`SelfAttention`] |
//! | no future | hidden weights 0 and renormalized, or hidden scores -inf | [`causal_mask`] |
//! | one causal head | `dropout(softmax(mask(q·kᵀ)/√d))·v` | [`CausalAttention`] |
//! | several, stacked | `Concat(head_1(x), .., head_H(x))` | [`MultiHeadAttentionWrapper`] |
//! | several, in one | split, attend, merge, `out_proj` | [`MultiHeadAttention`] |
//! | as papers write it | `Concat(head_1, .., head_H)·W_O` | [`PerHeadAttention`] |
//! | GPT-2 | `W_query`, `W_key`, `W_value` side by side in `c_attn` | [`convert`] |
//!
//! These types are for reading: each `forward` is its formula in plain Candle operations, all of which have a
//! gradient, and holds every (T, T) tensor in memory. `CausalSelfAttention` computes the same without these tensors;
//! [`convert`] converts to it and back. Layers have the names of PyTorch's state dicts
//! (`W_query.weight`, `out_proj.bias`), with weights (out, in); d, `d_in`, `d_out` are widths, and other letters
//! mean the same as in [`gpt2_model`]. Only `forward_with` has dropout, never `forward`.
//!
//! The steps follow five texts on attention, which are not part of this repository; its tests are named after these
//! documents. From the same inputs, the types here reproduce the printed numbers to the last of their four decimals:
//!
//! | document | mechanism | type | printed numbers reproduced |
//! |---|---|---|---|
//! | `000_4b640e2881ba5b39` | GPT-2's block | [`CausalSelfAttention`](gpt2_model::CausalSelfAttention) | 11 of 11 shapes; it prints no result, so PyTorch's replaces it |
//! | `001_3b936f420483d060` | without weights | [`simple`] | 201 of 205; 4 weights in the text differ from its own cells |
//! | `001_3b936f420483d060` | one head | [`SelfAttention`] | 64 of 64 |
//! | `001_3b936f420483d060` | causal masks, dropout | [`causal_mask`], [`CausalAttention`] | 327 of 367; 36 are a random mask, 4 an error message |
//! | `001_3b936f420483d060` | several heads | [`MultiHeadAttentionWrapper`], [`MultiHeadAttention`] | 150 of 150 |
//! | `002_4cdd2acc7d76054e` | matrices for each head | [`PerHeadAttention`] | 2 of 41; 39 are vectors of an embedding that is not given |
//! | `003_fa08c9926b7972e4` | the same, causal; the scale | [`PerHeadAttention`], [`self_attention::scale`] | none printed; its claims are tested |
//! | `004_a3b10401148b1338` | all but the stack, with biases | all but the wrapper | none printed; PyTorch's results replace them |

pub mod causal_attention;
pub mod causal_mask;
pub mod convert;
pub mod multi_head;
pub mod per_head;
mod projections;
pub mod self_attention;
pub mod simple;
pub mod wrapper;

pub use candle_core;
pub use causal_attention::CausalAttention;
pub use multi_head::MultiHeadAttention;
pub use per_head::{PerHeadAttention, PerHeadProjections, PerHeadSizes};
pub use self_attention::SelfAttention;
pub use wrapper::MultiHeadAttentionWrapper;
