//! GPT-2 for [Candle](https://github.com/huggingface/candle): [`CausalSelfAttention`] with the fused
//! `c_attn`/`c_proj` layout and the `bias` triangle of the original, and the model around it.
//!
//! Fields have the checkpoint's names, and [`Conv1D`] keeps its (in, out) layout, so loading and
//! saving transpose and rename nothing. The crate reads and writes no files: it builds a model from
//! a [`VarBuilder`](candle_nn::VarBuilder), wherever the tensors come from.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
//!
//! # fn main() -> candle_core::Result<()> {
//! let config = Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
//! let model = Gpt2LMHeadModel::load(init::seeded(299_792_458, DType::F32, &Device::Cpu), &config)?;
//!
//! let input_ids = Tensor::new(&[[3u32, 1, 4, 1, 5]], &Device::Cpu)?; // (B, T)
//! let output = model.forward(&input_ids, ForwardArgs::default())?;
//! assert_eq!(output.logits.dims(), [1, 5, 11]); // (B, T, V)
//! # Ok(())
//! # }
//! ```
//!
//! | letter | meaning | | letter | meaning |
//! |---|---|---|---|---|
//! | B | batch | | H | heads, `n_head` |
//! | T | query length | | D | width of a head, `n_embd / n_head` |
//! | S | key length, cache included | | V | `vocab_size` |
//! | C | `n_embd` | | L, N | `n_layer`, `n_positions` |

pub mod analysis;
pub mod attention;
pub mod beams;
pub mod block;
pub mod cache;
pub mod config;
pub mod conv1d;
mod cross_attention;
pub mod dictionary;
pub mod draft;
mod embedding;
pub mod finite;
mod forward;
pub mod generation;
pub mod hooks;
pub mod init;
mod inputs;
mod layer_norm;
pub mod linear;
mod lm;
mod lm_head;
mod loading;
pub mod lora;
pub mod mask;
mod mean_ablation;
pub mod mlp;
pub mod model;
mod parameter_list;
pub mod parameters;
mod pass;
mod recompute;
mod sampling;
pub mod training;

pub use attention::{CausalSelfAttention, HeadWeights};
pub use block::{Block, BlockOutput};
pub use cache::{CacheDType, KvCache, LayerCache};
pub use candle_core;
pub use candle_fused::attention::{CausalBias, Chosen, HeadLayout, Summary};
pub use candle_fused::{Dispatch, Implementation};
pub use candle_nn;
pub use config::Config;
pub use conv1d::Conv1D;
pub use cross_attention::CrossAttention;
pub use embedding::Embedding;
pub use forward::{CausalLMOutput, ChosenWeights, ForwardArgs, ModelOutput};
pub use generation::{Generation, Paused};
pub use layer_norm::LayerNorm;
pub use lm::Gpt2LMHeadModel;
pub use lm_head::LmHead;
pub use loading::WeightSource;
pub use mean_ablation::MeanOver;
pub use mlp::Mlp;
pub use model::Gpt2Model;
pub use pass::{Encoder, Pass};
pub use sampling::{Sampler, Sampling};
pub use training::Training;

// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
