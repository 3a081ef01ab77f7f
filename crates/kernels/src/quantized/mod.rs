//! Linear layers with quantized weights, in the formats of GGUF files.
//!
//! [`format`] says what the files hold, [`panels`] how the product reads it, and [`product`] how it is computed.
//! [`tile`] is its innermost part, and [`vectors`] what an instruction set offers for that. A new format touches
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
