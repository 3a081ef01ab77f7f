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

mod activation;
pub mod adamw;
pub mod attention;
pub mod cache;
mod columns;
pub mod cpu_flash;
mod cpu_op;
mod cross_entropy;
// The emulator needs Linux.
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
mod cuda;
mod dispatch;
pub mod dropout;
mod element;
mod epilogue;
mod explain;
pub mod flash;
mod frozen;
mod gpu;
mod isa;
mod keep_large;
mod linear;
mod linear_cross_entropy;
#[doc(hidden)]
pub mod measure;
mod memory;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod nn;
mod norm;
mod product;
mod quantized;
mod streams;
mod team;
#[cfg(test)]
mod test_numbers;
mod vector;
mod weight;

pub use activation::Activation;
pub use candle_core;
pub use cross_entropy::{cross_entropies, cross_entropy};
pub use dispatch::{Dispatch, Implementation};
pub use dropout::Dropout;
pub use element::accumulator;
pub use epilogue::Epilogue;
pub use explain::{Explained, Explanation, explain};
pub use frozen::WeightDType;
pub use gpu::{keep_freed_memory, open_cuda};
pub use isa::Isa;
pub use keep_large::KeepLarge;
pub use linear::{linear, linear_transposed};
pub use linear_cross_entropy::linear_cross_entropy;
pub use norm::{layer_norm, rms_norm};
pub use quantized::BlockFormat;
pub use weight::{Weight, WeightLayout};

// Run the examples of the README and of docs/candle.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/candle.md")]
mod page {}
