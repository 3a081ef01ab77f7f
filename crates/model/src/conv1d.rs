//! `Conv1D`, GPT-2's linear layer: `y = x·W + b` with W stored (in, out).
//!
//! The name is the original's (a convolution of width 1); the layout is the transpose of PyTorch's
//! `Linear`. `c_proj` is square, so a wrong transpose would load without a word.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// A linear layer in GPT-2's layout.
#[derive(Debug, Clone)]
pub struct Conv1D {
    /// (in, out)
    pub weight: Tensor,
    /// (out)
    pub bias: Tensor,
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
        })
    }
}

impl Module for Conv1D {
    /// `x·W + b`.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (n_in, n_out) = self.weight.dims2()?;
        if x.dim(D::Minus1)? != n_in || n_in == 0 {
            candle_core::bail!("Conv1D: x {:?} does not end in the {n_in} inputs of the weight", x.dims())
        }
        let mut shape = x.dims().to_vec();
        let rows = x.elem_count() / n_in;
        *shape.last_mut().unwrap_or(&mut 0) = n_out;
        x.reshape((rows, n_in))?
            .matmul(&self.weight)? // (rows, out)
            .broadcast_add(&self.bias)?
            .reshape(shape)
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
        };
        let x = Tensor::new(&[[[1f32, 0.], [0., 1.]]], &Device::Cpu)?;
        assert_eq!(layer.forward(&x)?.to_vec3::<f32>()?, [[[11., 22.], [13., 24.]]]);
        Ok(())
    }
}
