//! Cross-entropy: the mean over rows of `log Σ exp(logits) - logits[target]`, in one pass over the logits.
//!
//! Its gradient is `(softmax(logits) - onehot(target)) / rows`, computed from the logits again: beside the
//! logits themselves, which for a language model are large, nothing of their size is kept.

mod linear;
mod logits;
mod rows;

pub use linear::linear_cross_entropy;
pub use logits::cross_entropy;
