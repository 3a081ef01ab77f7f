//! Linear layers with any kind of weight: dense, packed for the CPU if it does not change, or quantized; low-rank or
//! sharded in future code, or in yours.
//!
//! [`Conv1D`](crate::Conv1D) and [`LmHead`](crate::LmHead) each hold one. [`LinearLayer`] is the interface
//! that a layer implements.
//!
//! ```
//! use candle_core::{DType, Device, Module, Result, Tensor};
//! use gpt2_model::linear::{Epilogue, LinearLayer};
//! use gpt2_model::parameters::{Role, Visitor};
//! use gpt2_model::{CausalSelfAttention, Config, Conv1D, init};
//!
//! /// `x·diag(d) + b`: a square layer of C numbers instead of C².
//! #[derive(Debug)]
//! struct Diagonal {
//!     d: Tensor,
//!     bias: Tensor,
//! }
//!
//! impl LinearLayer for Diagonal {
//!     fn shape(&self) -> (usize, usize) {
//!         (self.d.elem_count(), self.d.elem_count())
//!     }
//!     fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
//!         epilogue.apply(x.broadcast_mul(&self.d)?.broadcast_add(&self.bias)?)
//!     }
//!     fn weight(&self) -> Result<Tensor> {
//!         Tensor::eye(self.d.elem_count(), self.d.dtype(), self.d.device())?.broadcast_mul(&self.d)
//!     }
//!     fn bias(&self) -> Option<&Tensor> {
//!         Some(&self.bias)
//!     }
//!     fn visit(&self, visitor: &mut Visitor) {
//!         visitor.parameter("d", Role::LinearWeight, &self.d);
//!         visitor.parameter("bias", Role::LinearBias, &self.bias);
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let config = Config { n_embd: 6, n_head: 3, n_positions: 12, ..Config::gpt2() };
//! let vb = init::seeded(1, DType::F32, &Device::Cpu);
//! let mut attn = CausalSelfAttention::load(vb, &config, 0)?;
//! let (d, bias) = (Tensor::ones(6, DType::F32, &Device::Cpu)?, Tensor::zeros(6, DType::F32, &Device::Cpu)?);
//! attn.c_proj = attn.c_proj.with_layer(Diagonal { d, bias })?; // fails if the shape differs
//! let x = Tensor::randn(0f32, 1., (4, 12, 6), &Device::Cpu)?;
//! assert_eq!(Module::forward(&attn, &x)?.dims(), [4, 12, 6]);
//! # Ok(())
//! # }
//! ```

mod dense;
mod layer;
mod packed;
mod quantized;
mod weight_layout;

pub use candle_fused::{BlockFormat, Epilogue, QuantizedWeight};
pub(crate) use dense::Dense;
pub use layer::LinearLayer;
pub(crate) use packed::Packed;
pub use quantized::QuantizedLinear;
pub use weight_layout::WeightLayout;
