//! Linear layers with quantized weights, in the formats of GGUF files.
//!
//! [`format`] describes the blocks of the files, [`panels`] the layout that the product reads, and [`product`] the work of its
//! threads. [`tile`] is the innermost part, written with the operations of an instruction set in [`vectors`]. A new format touches
//! [`format`], [`encode`] and [`panels`].

#![allow(unsafe_code)]

mod activations;
mod encode;
pub(crate) mod format;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod panels;
mod portable;
pub(crate) mod product;
#[cfg(test)]
mod tests;
mod tile;
mod vectors;
#[cfg(target_arch = "wasm32")]
mod wasm;
#[cfg(target_arch = "x86_64")]
mod x86;
