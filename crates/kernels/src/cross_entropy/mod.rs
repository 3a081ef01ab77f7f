//! Cross-entropy: the mean over rows of `log Σ exp(logits) - logits[target]`, in one pass over the logits.
//!
//! Its gradient is `(softmax(logits) - onehot(target)) / rows`, recomputed from the logits. A language
//! model's logits are large, and nothing else of their size is kept.

mod chunks;
mod frozen;
mod linear;
mod logits;
mod rows;

pub(crate) use frozen::frozen_cross_entropy;
pub use linear::linear_cross_entropy;
pub use logits::{cross_entropies, cross_entropy};
