//! Layers under `candle_nn`'s names, on the kernels of this crate.
//!
//! A model changes its `use candle_nn::{..}` to `use candle_fused::nn::{..}`. On the CPU, weights that do not learn are laid out
//! for our products where they are loaded; variables stay as they are, and gradients reach them. On a GPU, products are Candle's
//! own, and RMS norms and rotary positions several plain operations, slower than `candle_nn`'s kernels: keep those there. A layer norm is one
//! kernel of ours on CUDA where it needs no gradient, else plain operations, too.
//!
//! | here | what it adds to `candle_nn` |
//! |---|---|
//! | [`Linear`], [`linear`], [`linear_no_bias`], [`linear_b`] | an [`Epilogue`](crate::Epilogue) in the same pass; weights in half precision or quantized blocks under activations in f32 |
//! | [`QMatMul`] | that of `candle_core::quantized`: products in 8 bits, the same bits on every instruction set; Candle's own for formats that have none here |
//! | [`Conv1d`], [`conv1d`], [`conv1d_no_bias`] | an epilogue, such as Whisper's GELU, in the same pass |
//! | [`Embedding`], [`embedding`] | one table for tokens and logits: [`Embedding::as_linear`] |
//! | [`LayerNorm`], [`layer_norm`], [`layer_norm_no_bias`], [`RmsNorm`], [`rms_norm`] | gradients for x, weight and bias; sums in f32 |
//! | [`rotary_emb`] | gradients, any strides, heads that turn in part, the angles of Llama 3 and of YaRN |
//!
//! [`hold_weights_in`] loads a whole model in quantized blocks or in half precision.
//!
//! Constructors that can fail return a `Result`, where those of `candle_nn` report the error at the first forward pass:
//! `Linear::new(weight, bias)?`. `Linear::weight` is a [`Weight`](crate::Weight), and `Embedding::embeddings` a copy.

mod conv;
pub mod cpu_flash;
mod embedding;
pub mod flash;
mod linear;
pub(crate) mod mask_conversion;
mod norm;
mod quantized;
mod rope_scaling;
pub mod rotary_emb;
#[cfg(test)]
mod rotary_tests;
#[cfg(test)]
mod tests;
mod weight_format;

pub use conv::{Conv1d, conv1d, conv1d_no_bias};
pub use embedding::{Embedding, embedding};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use norm::{LayerNorm, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use quantized::QMatMul;
pub use weight_format::hold_weights_in;
