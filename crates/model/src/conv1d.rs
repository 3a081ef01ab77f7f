//! `Conv1D`, GPT-2's linear layer: `y = x·W + b` with W stored (in, out).
//!
//! The name is the original's (a convolution of width 1); the layout is the transpose of PyTorch's
//! `Linear`. `c_proj` is square, so a wrong transpose would load without a word.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use gpt2_kernels::Implementation;

/// A linear layer in GPT-2's layout.
#[derive(Debug, Clone)]
pub struct Conv1D {
    /// (in, out)
    pub weight: Tensor,
    /// (out)
    pub bias: Tensor,
    /// What may run on a GPU, see [`gpt2_kernels::linear`].
    pub implementation: Implementation,
}

impl Conv1D {
    /// Loads `weight` (`n_in`, `n_out`) and `bias` (`n_out`); where `vb` creates variables, the weight is
    /// drawn from a normal distribution of deviation `stdev` and the bias is 0.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, n_in: usize, n_out: usize, stdev: f64) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints((n_in, n_out), "weight", Init::Randn { mean: 0., stdev })?,
            bias: vb.get_with_hints(n_out, "bias", Init::Const(0.))?,
            implementation: Implementation::default(),
        })
    }

    /// The same layer, computed on a GPU by `implementation`.
    #[must_use]
    pub fn with_implementation(self, implementation: Implementation) -> Self {
        Self { implementation, ..self }
    }
}

impl Conv1D {
    /// `residual + x·W + b`.
    ///
    /// # Shapes
    /// `residual` (.., out), `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward_onto(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        gpt2_kernels::linear_onto(residual, x, &self.weight, &self.bias, self.implementation)
    }

    /// GELU (tanh form) of `x·W + b`.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward_gelu(&self, x: &Tensor) -> Result<Tensor> {
        gpt2_kernels::linear_gelu(x, &self.weight, &self.bias, self.implementation)
    }

    /// The outputs `start..start + len` alone.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., `len`)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub(crate) fn forward_columns(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        let (weight, bias) = (self.weight.narrow(1, start, len)?, self.bias.narrow(0, start, len)?);
        gpt2_kernels::linear(x, &weight, &bias, self.implementation)
    }
}

impl Module for Conv1D {
    /// `x·W + b`.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        gpt2_kernels::linear(x, &self.weight, &self.bias, self.implementation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn multiplies_from_the_left_without_a_transpose() -> Result<()> {
        // A square weight, so that x·Wᵀ would have the right shape and the wrong values.
        let layer = Conv1D {
            weight: Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?,
            bias: Tensor::new(&[10f32, 20.], &Device::Cpu)?,
            implementation: Implementation::default(),
        };
        let x = Tensor::new(&[[[1f32, 0.], [0., 1.]]], &Device::Cpu)?;
        assert_eq!(layer.forward(&x)?.to_vec3::<f32>()?, [[[11., 22.], [13., 24.]]]);
        Ok(())
    }
}
