//! Causal self-attention, attention over an encoder, and what goes into both besides the activations.

pub mod cache;
pub mod causal_self_attention;
pub(crate) mod cross_attention;
pub(crate) mod hooked_heads;
mod hooked_output;
pub mod mask;
pub(crate) mod pass;
pub(crate) mod qkv;
