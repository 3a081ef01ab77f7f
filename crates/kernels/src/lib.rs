//! Fast attention for [Candle](https://github.com/huggingface/candle) models on the CPU, with gradients, and the other
//! operations of a transformer, under `candle_nn`'s names where it has them. A model of Candle 0.11 takes them up by changing a `use` and
//! a few accessors, and needs about half of the time for a prompt: the [`guide`] has measured eight.
//!
//! A layer of a decoder in Llama's style, whose projections hold weights packed for the processor, and whose attention has fewer
//! heads of keys than of queries and no (T, S) tensor in memory:
//!
//! ```
//! use candle_core::{DType, Device, Module, Result, Tensor};
//! use candle_fused::attention::{Mask, Sdpa};
//! use candle_fused::cache::KvCache;
//! use candle_fused::nn::{Linear, linear_no_bias};
//! use candle_fused::{Epilogue, explain};
//! use candle_nn::VarBuilder;
//!
//! struct Attention {
//!     q: Linear,
//!     k: Linear,
//!     v: Linear,
//!     o: Linear,
//! }
//!
//! impl Attention {
//!     /// 4 heads of queries over 2 of keys and values, 16 wide.
//!     fn load(vb: VarBuilder) -> Result<Self> {
//!         let linear = |n_in, n_out, name: &str| linear_no_bias(n_in, n_out, vb.pp(name));
//!         Ok(Self {
//!             q: linear(64, 64, "q")?,
//!             k: linear(64, 32, "k")?,
//!             v: linear(64, 32, "v")?,
//!             o: linear(64, 64, "o")?,
//!         })
//!     }
//!
//!     /// `x` (B, T, 64), after the tokens in the cache -> `x` and what attention adds to it
//!     fn forward(&self, x: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
//!         let (b, t, _) = x.dims3()?;
//!         let heads = |x: Tensor, heads: usize| x.reshape((b, t, heads, 16))?.transpose(1, 2); // (B, heads, T, 16)
//!         let q = heads(self.q.forward(x)?, 4)?;
//!         let (k, v) = cache.append(&heads(self.k.forward(x)?, 2)?, &heads(self.v.forward(x)?, 2)?)?;
//!         let context = Sdpa::default().forward(&q, &k, &v, Mask::default())?; // (B, T, 4, 16)
//!         self.o.forward_with(&context.flatten_from(2)?, Epilogue::Residual(x))
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let attention = Attention::load(VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! let mut cache = KvCache::new(512, DType::F32);
//! let prompt = Tensor::randn(0f32, 1., (1, 5, 64), &Device::Cpu)?;
//! assert_eq!(attention.forward(&prompt, &mut cache)?.dims(), [1, 5, 64]);
//!
//! let token = Tensor::randn(0f32, 1., (1, 1, 64), &Device::Cpu)?;
//! let (_, explanation) = explain(|| attention.forward(&token, &mut cache))?;
//! assert_eq!((cache.len(), explanation.0.len()), (6, 5)); // four products and attention
//! print!("{explanation}"); // which code ran, and why none was faster
//! # Ok(())
//! # }
//! ```
//!
//! | begin with | for |
//! |---|---|
//! | [`guide`] | a model that exists: what to exchange first, what does not fit at once, what it gains |
//! | [`attention::Sdpa`] | attention of any kind: shared heads, windows, ALiBi, soft cap, sinks, [masks](attention::Mask), [packed sequences](attention::Sdpa::forward_varlen) |
//! | [`nn`] | `candle_nn`'s layers by their names, [rotary positions](nn::rotary_emb), [weights in fewer bytes](nn::hold_weights_in) |
//! | [`cache`] | keys and values for decoding, whole, in a window or in pages |
//! | [`cpu_flash`], [`flash`] | the functions of `candle_nn::attention` and of `candle-flash-attn` |
//! | [`explain`](explain()) | which code each operation took |
//! | [`Weight`], [`linear()`], [`layer_norm()`], [`rms_norm()`], [`Activation`], [`Dropout`], [`cross_entropy()`], [`adamw`] | the operations under these layers |
//! | [`CudaGraph`], [`TokenSearch`] | decoding on CUDA: a step as one launch, and what choosing a token needs from the logits |
//! | [`KeepLarge`] | an allocator that gives the tensors of one pass to the next |
//!
//! | feature, none on by default | what it adds |
//! |---|---|
//! | `x86-v4` | AVX-512, also for bf16 on AMD, and AMX for bf16 on Linux, if the processor has them |
//! | `cuda`, `cudnn`, `metal`, `mkl`, `accelerate` | Candle's features of the same names; on Metal, fused attention runs only if [`Implementation::Fused`] asks for it |
//!
//! The environment variable `CANDLE_FUSED_ISA` holds a process to an instruction set ([`Isa`]), and
//! `CANDLE_FUSED_CUDA_PRODUCTS=cublas` leaves products of a few rows on CUDA to cuBLAS, to test or time them. This crate knows
//! shapes, not models: it reads no config, no parameter names and no files.
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
pub use gpu::graph::CudaGraph;
pub use gpu::token_search::{FoundTokens, TokenSearch};
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
pub use pointwise::norm::input::InputNorm;
pub use pointwise::norm::{layer_norm, rms_norm};
#[doc(inline)]
pub use pointwise::{adamw, dropout};

/// The guide of this package, GUIDE.md.
#[cfg(any(doc, doctest))]
#[doc = include_str!("../GUIDE.md")]
pub mod guide {}

// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
