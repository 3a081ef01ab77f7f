//! Linear layers with quantized weights, in the formats of GGUF files.
//!
//! [`format`] says what the files hold, [`panels`] how the product reads it, and [`product`] how it is computed.
//! [`tile`] is its innermost part, and [`vectors`] what an instruction set offers for that. A new format touches
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
