//! `ln_1`, `ln_2`, `ln_f`: layer norm with GPT-2's names.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use gpt2_kernels::Implementation;

/// Layer normalisation over C, see [`gpt2_kernels::layer_norm`].
#[derive(Debug, Clone)]
pub struct LayerNorm {
    /// (C)
    pub weight: Tensor,
    /// (C)
    pub bias: Tensor,
    eps: f64,
    implementation: Implementation,
}

impl LayerNorm {
    /// Loads `weight` (`width`), initially 1, and `bias` (`width`), initially 0.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, width: usize, eps: f64) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints(width, "weight", Init::Const(1.))?,
            bias: vb.get_with_hints(width, "bias", Init::Const(0.))?,
            eps,
            implementation: Implementation::default(),
        })
    }

    /// The same layer, computed on a GPU by `implementation`.
    #[must_use]
    pub fn with_implementation(self, implementation: Implementation) -> Self {
        Self { implementation, ..self }
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        gpt2_kernels::layer_norm(x, &self.weight, &self.bias, self.eps, self.implementation)
    }
}
