//! [`Linear`], the linear layer of the model: a [`Weight`] of any kind and a bias.
//!
//! [`Conv1D`](crate::Conv1D) and [`LmHead`](crate::LmHead) each hold one, or a layer of your own that implements
//! [`LinearLayer`]:
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
//! assert_eq!(attn.forward(&x)?.dims(), [4, 12, 6]);
//! # Ok(())
//! # }
//! ```

use super::parameters::{Role, Visitor};
use crate::learn::training::Training;
use candle_core::{D, Result, Tensor};
pub use candle_fused::{Activation, BlockFormat, Epilogue, Weight, WeightDType, WeightLayout};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// `y = x·W + b`, and the epilogue that follows in the same pass.
pub trait LinearLayer: Debug + Send + Sync {
    /// (in, out)
    fn shape(&self) -> (usize, usize);

    /// `x·W + b`, then `epilogue`. Layers without fused code for it can call [`Epilogue::apply`].
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor>;

    /// [`forward`](Self::forward) in a training pass, for layers with dropout of their own. The default has none.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward_training(&self, x: &Tensor, epilogue: Epilogue, training: Option<Training>) -> Result<Tensor> {
        let _ = training;
        self.forward(x, epilogue)
    }

    /// Some of the outputs. The default computes all of them; override it if the layer can compute a part.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., `columns.len()`)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        self.forward(x, Epilogue::None)?.narrow(D::Minus1, columns.start, columns.len())
    }

    /// W as a dense tensor (in, out), for analyses and conversions: in the dtype of the bias, if there is one.
    ///
    /// # Errors
    /// When the layer cannot produce it.
    fn weight(&self) -> Result<Tensor>;

    /// b (out), if there is one.
    fn bias(&self) -> Option<&Tensor>;

    /// Reports each parameter, such as `weight` and `bias`, to the visitor. A parameter that it does not report is neither
    /// counted, saved nor trained. Report a weight that is to be saved with [`Visitor::weight`], which knows how a checkpoint
    /// stores it.
    fn visit(&self, visitor: &mut Visitor);
}

/// A weight and a bias. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct Linear {
    pub(crate) weight: Weight,
    /// In the dtype of the inputs.
    pub(crate) bias: Option<Tensor>,
}

impl Linear {
    /// A layer with this weight.
    ///
    /// # Shapes
    /// `weight` (in, out), `bias` (out)
    ///
    /// # Errors
    /// When the two do not fit each other.
    pub fn new(weight: Weight, bias: Option<Tensor>) -> Result<Self> {
        let shape = weight.shape();
        let n_out = shape.1;
        match bias.as_ref().filter(|bias| bias.dims() != [n_out]) {
            Some(bias) => {
                candle_core::bail!("a weight {shape:?} needs a bias of [{n_out}], got {:?}", bias.dims())
            }
            None => Ok(Self { weight, bias }),
        }
    }

    /// `x·W` alone.
    #[must_use]
    pub fn without_bias(weight: Weight) -> Self {
        Self { weight, bias: None }
    }
}

impl LinearLayer for Linear {
    fn shape(&self) -> (usize, usize) {
        self.weight.shape()
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        self.weight.forward(x, self.bias.as_ref(), epilogue)
    }

    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        self.weight.forward_columns(x, self.bias.as_ref(), columns)
    }

    fn weight(&self) -> Result<Tensor> {
        let weight = self.weight.in_out()?;
        self.bias.as_ref().map_or_else(|| Ok(weight.clone()), |bias| weight.to_dtype(bias.dtype()))
    }

    fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.weight("weight", Role::LinearWeight, &self.weight);
        if let Some(bias) = &self.bias {
            visitor.parameter("bias", Role::LinearBias, bias);
        }
    }
}

/// A linear layer of the model: the library's or a user's.
#[derive(Debug, Clone)]
pub(crate) enum Layer {
    Linear(Linear),
    /// A user's implementation.
    Own(Arc<dyn LinearLayer>),
}

impl Layer {
    pub(crate) fn get(&self) -> &dyn LinearLayer {
        match self {
            Self::Linear(linear) => linear,
            Self::Own(layer) => &**layer,
        }
    }

    /// Whether a weight of the layer is quantized.
    pub(crate) fn is_quantized(&self) -> bool {
        let mut quantized = false;
        self.get().visit(&mut Visitor::new(&mut |_, values| {
            quantized |= matches!(values.dtype(), WeightDType::Blocks(_));
        }));
        quantized
    }

    /// The weight, unless the layer is a user's.
    pub(crate) fn weight(&self) -> Option<&Weight> {
        match self {
            Self::Linear(linear) => Some(&linear.weight),
            Self::Own(_) => None,
        }
    }

    /// `x·W + b + u·Bᵀ`: the layer and a low-rank update of it: (.., in), (.., r), (out, r) -> (.., out)
    pub(crate) fn forward_low_rank(
        &self,
        x: &Tensor,
        u: &Tensor,
        b: &Tensor,
        training: Option<Training>,
    ) -> Result<Tensor> {
        match self {
            Self::Linear(Linear { weight, bias }) => weight.forward_low_rank(x, bias.as_ref(), u, b),
            Self::Own(layer) => {
                let update = candle_fused::linear_transposed(u, b)?;
                layer.forward_training(x, Epilogue::Residual(&update), training)
            }
        }
    }
}
