//! Attention: `softmax(q·kᵀ·scale + mask)·v`. Every caller goes through this interface.
//!
//! Scaled dot-product attention of Vaswani et al. 2017, §3.2.1. A [`Window`] says which keys a query sees by its position:
//! all before it in a causal model, some of them in a sliding window, or all. With S keys and T queries (a cache holds the
//! other keys), query `i` sits at position `S - T + i`: masks are aligned at their bottom right corner. The same rule covers
//! a whole prompt, a chunk of a prompt and a single decoded token.

mod attend;
mod codes;
mod cpu;
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
mod cuda;
mod eager;
mod heads;
mod mask;
mod merge;
#[cfg(feature = "metal")]
mod metal;
mod paged;
mod polarity;
mod ranges;
mod request;
mod scores;
mod sdpa;
mod summary;
mod varlen;
mod window;

pub use attend::Attended;
pub use codes::{SCALE_BYTES, quantize_rows, widen_rows};
pub use cpu::FEW_QUERIES;
pub use heads::HeadLayout;
pub use mask::{Hidden, Mask};
pub use merge::merge;
pub use paged::Pages;
pub use polarity::{added_from_hidden, added_from_visible, padding_from_hidden, padding_from_visible};
pub use ranges::KeyRanges;
pub use request::{Chosen, Inputs, Wanted};
pub use sdpa::Sdpa;
pub use summary::Summary;
pub use varlen::Lengths;
pub use window::{CausalBias, Window, causal_bias};
