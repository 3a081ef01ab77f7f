//! [`LayerNorm`] and [`RmsNorm`].

use crate::cpu::dispatch::{Dispatch, Implementation};
use candle_core::{Module, Result, Tensor};
use candle_nn::{LayerNormConfig, VarBuilder};

/// `candle_nn::LayerNorm`: `(x - mean) / sqrt(var + eps) * weight + bias`, with the variance of centered values, and gradients
/// for x, weight and bias. Without `remove_mean` it is RMS norm.
///
/// The residual of a layer before it costs no pass of its own: give it to that layer as
/// [`Epilogue::Residual`](crate::Epilogue::Residual).
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

impl LayerNorm {
    /// `weight` (C), `bias` (C)
    #[must_use]
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self { weight, bias: Some(bias), remove_mean: true, eps }
    }

    /// `weight` (C)
    #[must_use]
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self { weight, bias: None, remove_mean: true, eps }
    }

    /// RMS norm, which subtracts no mean: `weight` (C)
    #[must_use]
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self { weight, bias: None, remove_mean: false, eps }
    }

    /// (C)
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// (C)
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The constant added to the variance.
    #[must_use]
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Whether this is layer norm, not RMS norm.
    #[must_use]
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }
}

impl Module for LayerNorm {
    /// (.., C) -> (.., C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.remove_mean {
            let dispatch = Dispatch::of(Implementation::Auto, x);
            return crate::pointwise::norm::layer_norm(
                x,
                &self.weight,
                self.bias.as_ref(),
                self.eps,
                dispatch,
            );
        }
        let y = crate::pointwise::norm::rms_norm(x, &self.weight, self.eps)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(layer: candle_nn::LayerNorm) -> Self {
        Self {
            weight: layer.weight().clone(),
            bias: layer.bias().cloned(),
            remove_mean: layer.remove_mean(),
            eps: layer.eps(),
        }
    }
}

/// `candle_nn::RmsNorm`: `x / sqrt(mean(x²) + eps) * weight`, with gradients for x and weight.
#[derive(Debug, Clone)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// `weight` (C)
    #[must_use]
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// (C)
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.0.weight
    }

    /// Converts into a [`LayerNorm`].
    #[must_use]
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The constant added to the mean square.
    #[must_use]
    pub fn eps(&self) -> f64 {
        self.0.eps
    }

    /// Same as [`forward`](Module::forward): here both are differentiable.
    ///
    /// # Errors
    /// When the last dimension of `x` is not that of the weight.
    pub fn forward_diff(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}

impl Module for RmsNorm {
    /// (.., C) -> (.., C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}

impl From<candle_nn::RmsNorm> for RmsNorm {
    fn from(layer: candle_nn::RmsNorm) -> Self {
        Self(layer.into_inner().into())
    }
}

/// Loads `weight` and `bias` (C), or `gamma` and `beta`, as `candle_nn::layer_norm` does.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn layer_norm(size: usize, config: impl Into<LayerNormConfig>, vb: VarBuilder) -> Result<LayerNorm> {
    Ok(candle_nn::layer_norm(size, config, vb)?.into())
}

/// Loads `weight` (C).
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    Ok(candle_nn::layer_norm_no_bias(size, eps, vb)?.into())
}

/// Loads `weight` (C).
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(candle_nn::rms_norm(size, eps, vb)?.into())
}
