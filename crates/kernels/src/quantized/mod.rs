//! Linear layers with quantized weights, in the formats of GGUF files.
//!
//! [`format`] describes the blocks of the files, [`panels`] the layout that the product reads, and [`product`] the work of its
//! threads. [`tile`] is the innermost part, written with the operations of an instruction set in [`vectors`]. A new format touches
//! [`format`], [`encode`] and [`panels`].

#![allow(unsafe_code)]

mod activations;
mod encode;
mod format;
mod panels;
mod product;
#[cfg(test)]
mod tests;
mod tile;
mod vectors;

pub use format::BlockFormat;
pub(crate) use panels::BlockPanels;
pub(crate) use product::product;
