//! Fast attention for [Candle](https://github.com/huggingface/candle) models on the CPU, with gradients, and the other
//! operations of a transformer.
//!
//! This crate knows shapes, not models: it reads no config, no parameter names and no files.
//!
//! | letter | meaning | | letter | meaning |
//! |---|---|---|---|---|
//! | B | batch | | C | embedding width, `H * D` |
//! | T | query length | | H | heads |
//! | S | key length | | D, Dv | width of a head of queries and keys, and of values |
//!
//! The plain ("eager") operations use only differentiable Candle operations, so a gradient reaches
//! every input. They are the reference for every faster path.

// Vector code is only fast if it is inlined into the function that enables its instructions.
#![allow(clippy::inline_always)]

pub mod attention;
pub mod cache;
mod cpu;
mod gpu;
mod linear;
#[doc(hidden)]
pub mod measure;
pub mod nn;
mod pointwise;

pub use candle_core;
pub use cpu::allocator::KeepLarge;
pub use cpu::dispatch::{Dispatch, Implementation};
pub use cpu::element::accumulator;
pub use cpu::explain::{Explained, Explanation, explain};
pub use cpu::isa::Isa;
pub use gpu::{keep_freed_memory, open_cuda};
pub use linear::quantized::format::BlockFormat;
pub use linear::weight::frozen::WeightDType;
pub use linear::weight::linear_cross_entropy::linear_cross_entropy;
pub use linear::weight::{Weight, WeightLayout};
pub use linear::{linear, linear_transposed};
#[doc(inline)]
pub use nn::{cpu_flash, flash};
pub use pointwise::activation::Activation;
pub use pointwise::cross_entropy::{cross_entropies, cross_entropy};
pub use pointwise::dropout::Dropout;
pub use pointwise::epilogue::Epilogue;
pub use pointwise::norm::{layer_norm, rms_norm};
#[doc(inline)]
pub use pointwise::{adamw, dropout};

// Run the examples of the README and of docs/candle.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/candle.md")]
mod page {}
