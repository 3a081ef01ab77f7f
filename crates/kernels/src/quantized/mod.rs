//! Linear layers with quantized weights, in the formats of GGUF files.
//!
//! [`format`] says what the files hold, [`panels`] how the product reads it, and [`product`] how it is computed.
//! [`tile`] is its innermost part, and [`vectors`] what an instruction set offers for that.

#![allow(unsafe_code)]

mod activations;
mod codes;
mod dispatch;
mod encode;
mod format;
mod panels;
mod product;
#[cfg(test)]
mod tests;
mod tile;
mod vectors;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use codes::PANEL;
pub use format::BlockFormat;
pub(crate) use panels::Panels;
pub(crate) use product::product;
