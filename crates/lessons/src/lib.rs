//! The way to [`CausalSelfAttention`](gpt2_model::CausalSelfAttention), one type per step.
//!
//! | step | formula | in |
//! |---|---|---|
//! | no weights | `softmax(x·xᵀ)·x` | [`simple`] |
//! | one head | `softmax(q·kᵀ/√d)·v`, `q = x·W_query`, .. | [`SelfAttention`] |
//! | no future | hidden weights 0 and renormalized, or hidden scores -inf | [`causal_attention`] |
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
//! The steps follow five texts on attention, which are not part of this repository: "Coding Attention Mechanisms" (chapter 3 of
//! the notebooks `llm-from-scratch`), "The Mechanics of Causal Self Attention" (Nathaniel Thomas, 2024), "Implementing GPT-Style
//! Attention: A Step-by-Step Guide with PyTorch", and two without a title: one on the path from theory to code of GPT's attention,
//! and one that starts from the question "What is the capital of France?". From the same inputs, the types here reproduce the
//! printed numbers to the last of their four decimals:
//!
//! | text | mechanism | type | printed numbers reproduced |
//! |---|---|---|---|
//! | From theory to code | GPT-2's block | [`CausalSelfAttention`](gpt2_model::CausalSelfAttention) | 11 of 11 shapes; it prints no result, so PyTorch's replaces it |
//! | Coding Attention Mechanisms | without weights | [`simple`] | 201 of 205; 4 weights in the text differ from its own cells |
//! | Coding Attention Mechanisms | one head | [`SelfAttention`] | 64 of 64 |
//! | Coding Attention Mechanisms | causal masks, dropout | [`CausalAttention`] | 327 of 367; 36 are a random mask, 4 an error message |
//! | Coding Attention Mechanisms | several heads | [`MultiHeadAttentionWrapper`], [`MultiHeadAttention`] | 150 of 150 |
//! | The capital of France | matrices for each head | [`PerHeadAttention`] | 2 of 41; 39 are vectors of an embedding that is not given |
//! | The Mechanics of Causal Self Attention | the same, causal; the scale | [`PerHeadAttention`], [`self_attention::scale`] | none printed; its claims are tested |
//! | Implementing GPT-Style Attention | all but the stack, with biases | all but the wrapper | none printed; PyTorch's results replace them |

pub mod causal_attention;
pub mod convert;
pub mod multi_head;
pub mod per_head;
pub mod self_attention;
pub mod simple;

pub use candle_core;
pub use causal_attention::CausalAttention;
pub use multi_head::{MultiHeadAttention, MultiHeadAttentionWrapper};
pub use per_head::{PerHeadAttention, PerHeadProjections, PerHeadSizes};
pub use self_attention::SelfAttention;
