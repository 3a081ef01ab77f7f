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
pub mod config;
mod decode;
pub mod dictionary;
mod gpt2;
pub mod hooks;
mod interrupt;
mod learn;

pub use analysis::finite;
pub use analysis::mean_ablation::MeanOver;
pub use candle_core;
pub use candle_fused::attention::{CausalBias, Chosen, HeadLayout, Summary};
pub use candle_fused::{Dispatch, Implementation};
pub use candle_nn;
pub use config::Config;
pub use decode::generation::{Generation, Paused};
pub use decode::sampling::{Sampler, Sampling};
pub use decode::{beams, draft, generation};
pub use gpt2::args_and_outputs::{CausalLMOutput, ChosenWeights, ForwardArgs, ModelOutput, Start};
pub use gpt2::attention::cache::{CacheDType, KvCache, LayerCache};
pub use gpt2::attention::causal_self_attention::{CausalSelfAttention, HeadWeights};
pub use gpt2::attention::cross_attention::CrossAttention;
pub use gpt2::attention::pass::{Encoder, Pass};
pub use gpt2::attention::{cache, causal_self_attention as attention, mask};
pub use gpt2::block::{Block, BlockOutput};
pub use gpt2::layers::conv1d::Conv1D;
pub use gpt2::layers::embedding::Embedding;
pub use gpt2::layers::layer_norm::LayerNorm;
pub use gpt2::layers::lm_head::LmHead;
pub use gpt2::layers::loading::WeightSource;
pub use gpt2::layers::{conv1d, linear, parameters};
pub use gpt2::lm_head_model::Gpt2LMHeadModel;
pub use gpt2::mlp::Mlp;
pub use gpt2::model::Gpt2Model;
pub use gpt2::stacked_weights::STACKED_WEIGHTS;
pub use gpt2::{block, lora, mlp, model};
pub use interrupt::interruptible;
pub use learn::training::Training;
pub use learn::{init, training};

// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
