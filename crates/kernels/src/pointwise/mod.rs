//! Operations on each number, or on each row, by itself: activations, norms, dropout, cross-entropy, AdamW, and what follows
//! a product.

pub(crate) mod activation;
pub mod adamw;
pub(crate) mod cross_entropy;
pub mod dropout;
pub(crate) mod epilogue;
pub(crate) mod norm;
#[cfg(test)]
mod tests;
