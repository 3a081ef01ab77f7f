//! Low-rank adapters (LoRA, Hu et al. 2021): small updates of a model's linear layers, trained while the model itself
//! stays as it is. The names and numbers are PEFT's; the crate `gpt2-loader` reads and writes its files, and `gpt2-train`
//! trains an adapter with [`Gpt2LMHeadModel`](crate::Gpt2LMHeadModel).
//!
//! [`Conv1D::with_update`](crate::Conv1D::with_update) puts an update on a layer, also in a model of your own, whatever its
//! weight is, quantized or not:
//!
//! ```
//! use candle_core::{DType, Device, Module, Result, Tensor, Var};
//! use gpt2_model::lora::Update;
//! use gpt2_model::{Conv1D, init};
//!
//! # fn main() -> Result<()> {
//! let device = &Device::Cpu;
//! let layer = Conv1D::load(init::seeded(1, DType::F32, device), 6, 4, 0.02)?; // constants: frozen
//! let a = Var::randn(0f32, 0.4, (2, 6), device)?; // lora_A (r, in)
//! let b = Var::zeros((4, 2), DType::F32, device)?; // lora_B (out, r)
//! let update = Update::new(a.as_tensor().clone(), b.as_tensor().clone(), 8. / 2., 0.)?;
//! let adapted = layer.with_update("style", update, 0)?;
//!
//! let (x, target) = (Tensor::randn(0f32, 1., (10, 6), device)?, Tensor::randn(0f32, 1., (10, 4), device)?);
//! let loss = || (adapted.forward(&x)? - &target)?.sqr()?.mean_all();
//! let before = loss()?.to_scalar::<f32>()?;
//! for _ in 0..20 {
//!     let gradients = loss()?.backward()?; // of a and b alone
//!     for var in [&a, &b] {
//!         let gradient = gradients.get(var).expect("a variable");
//!         var.set(&(var.as_tensor() - (gradient * 0.02)?)?)?;
//!     }
//! }
//! assert!(loss()?.to_scalar::<f32>()? < before);
//! # Ok(())
//! # }
//! ```
//!
//! An [`Adapter`] has the updates of a whole GPT-2. [`with_adapter`](crate::Gpt2LMHeadModel::with_adapter) puts one or
//! several on a model, [`without_adapters`](crate::Gpt2LMHeadModel::without_adapters) takes them off, and
//! [`merged`](crate::Gpt2LMHeadModel::merged) adds them to the weights. To take one out of weights that it was merged into,
//! merge it once more with the weight -1; only the rounding of the two sums stays.

pub use super::adapter::{Adapter, LoraOptions, linear_layers, tables};
pub use super::layers::low_rank_update::Update;
