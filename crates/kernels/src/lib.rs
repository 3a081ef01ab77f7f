//! Tensor operations that GPT-2 is made of, for [Candle](https://github.com/huggingface/candle).
//!
//! This crate knows shapes, not models: nothing here reads a config, a name or a file.
//!
//! | letter | meaning | | letter | meaning |
//! |---|---|---|---|---|
//! | B | batch | | C | embedding width, `H * D` |
//! | T | query length | | H | heads |
//! | S | key length, `S >= T` | | D | width of a head |
//!
//! The plain ("eager") operations are built from differentiable Candle operations only, so a gradient
//! reaches every input. They are the definition that any faster path is held against.

// Vector code is only fast where it is compiled into the function that enables its instructions.
#![allow(clippy::inline_always)]

pub mod adamw;
pub mod attention;
mod columns;
mod cross_entropy;
// The emulation is for Linux.
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
mod cuda;
mod dispatch;
pub mod dropout;
mod element;
mod epilogue;
mod gelu;
mod gpu;
mod layer_norm;
mod linear;
mod product;
pub mod roofline;
pub mod stopwatch;
mod streams;
mod vector;

pub use attention::{CausalBias, CausalMask, CausalSdpa};
pub use candle_core;
pub use cross_entropy::{cross_entropy, linear_cross_entropy};
pub use dispatch::{Dispatch, Implementation};
pub use dropout::Dropout;
pub use epilogue::Epilogue;
pub use gelu::gelu;
pub use gpu::keep_freed_memory;
pub use layer_norm::layer_norm;
pub use linear::{linear, linear_transposed};

use candle_core::DType;

/// The dtype in which sums over `dtype` values are taken: f32 for the halves, the dtype itself otherwise.
#[must_use]
pub fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        wide => wide,
    }
}

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
