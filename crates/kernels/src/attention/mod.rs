//! Attention: `softmax(q·kᵀ·scale + mask)·v`. Every caller goes through this interface.
//!
//! Scaled dot-product attention of Vaswani et al. 2017, §3.2.1. A [`Window`] says which keys a query sees by its position:
//! all before it in a causal model, some of them in a sliding window, or all. With S keys and T queries (a cache holds the
//! other keys), query `i` sits at position `S - T + i`: masks are aligned at their bottom right corner. The same rule covers
//! a whole prompt, a chunk of a prompt and a single decoded token.

mod cpu;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // launches are planned, and not made
mod cuda;
pub(crate) mod heads;
pub(crate) mod inputs;
pub(crate) mod key_ranges;
pub(crate) mod mask;
pub(crate) mod quantized_rows;
mod row_summary;
pub(crate) mod run;
mod scores;
pub(crate) mod sdpa;
pub(crate) mod window;

pub use crate::nn::mask_conversion::{
    added_from_hidden, added_from_visible, padding_from_hidden, padding_from_visible,
};
pub use cpu::blocks::FEW_QUERIES;
pub use heads::HeadLayout;
pub use inputs::{Chosen, Inputs, Wanted};
pub use key_ranges::KeyRanges;
pub use mask::{Hidden, Mask};
pub use quantized_rows::{SCALE_BYTES, quantize_rows, widen_rows};
pub use run::attend::Attended;
pub use run::merge::merge;
pub use run::paged::Pages;
pub use run::summary::Summary;
pub use run::varlen::Lengths;
pub use sdpa::Sdpa;
pub use window::{CausalBias, Window, causal_bias};
