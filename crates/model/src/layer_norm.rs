//! `ln_1`, `ln_2`, `ln_f`: layer norm with GPT-2's names.

use crate::parameters::{Role, Visitor};
use candle_core::{Module, Result, Tensor};
use candle_fused::{Dispatch, Implementation};
use candle_nn::{Init, VarBuilder};

/// Layer normalisation over C, see [`candle_fused::layer_norm`].
#[derive(Debug, Clone)]
pub struct LayerNorm {
    /// (C)
    pub weight: Tensor,
    /// (C)
    pub bias: Tensor,
    eps: f64,
    dispatch: Dispatch,
}

impl LayerNorm {
    /// Loads `weight` (`width`), initially 1, and `bias` (`width`), initially 0.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, width: usize, eps: f64) -> Result<Self> {
        let dispatch = Dispatch::new(Implementation::Auto, vb.device());
        Self::load_for(vb, width, eps, dispatch)
    }

    /// As [`load`](Self::load), for the code that `dispatch` names.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load_for(vb: VarBuilder, width: usize, eps: f64, dispatch: Dispatch) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints(width, "weight", Init::Const(1.))?,
            bias: vb.get_with_hints(width, "bias", Init::Const(0.))?,
            eps,
            dispatch,
        })
    }

    /// Visits `weight` and `bias`.
    pub fn visit(&self, visitor: &mut Visitor) {
        visitor.parameter("weight", Role::NormWeight, &self.weight);
        visitor.parameter("bias", Role::NormBias, &self.bias);
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_fused::layer_norm(x, &self.weight, &self.bias, self.eps, self.dispatch)
    }
}
