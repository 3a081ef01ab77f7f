//! Attention: `softmax(q·kᵀ·scale + mask)·v`. Every caller goes through this interface.
//!
//! Scaled dot-product attention of Vaswani et al. 2017, §3.2.1. A [`Window`] says which keys a query sees by its position:
//! all before it in a causal model, some of them in a sliding window, or all. With S keys and T queries (a cache holds the
//! other keys), query `i` sits at position `S - T + i`: masks are aligned at their bottom right corner. The same rule covers
//! a whole prompt, a chunk of a prompt and a single decoded token.

mod bias;
mod cpu;
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
mod cuda;
mod drop_weights;
mod eager;
mod gpu;
mod gpu_kernel;
mod heads;
mod mask;
#[cfg(feature = "metal")]
mod metal;
mod packed;
mod parts;
mod polarity;
mod request;
mod scores;
mod sdpa;
mod softmax;
mod summary;
#[cfg(test)]
mod tests;
mod varlen;
mod weights;
mod window;

pub use bias::{CausalBias, causal_bias};
pub use heads::HeadLayout;
pub use mask::{Hidden, Mask};
pub use packed::packed_part;
pub use polarity::{added_from_hidden, added_from_visible, padding_from_hidden, padding_from_visible};
pub use request::{Chosen, Wanted};
pub use sdpa::{Attended, Sdpa};
pub use summary::Summary;
pub use varlen::Lengths;
pub use window::Window;
