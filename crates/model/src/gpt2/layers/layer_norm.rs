//! `ln_1`, `ln_2`, `ln_f`: layer norm with GPT-2's names.

use super::parameters::{Role, Visitor};
use crate::hooks::{PassHooks, Point};
use candle_core::{D, Module, Result, Tensor};
use candle_fused::{Dispatch, Implementation, InputNorm, Weight};
use candle_nn::{Init, VarBuilder};

/// The residual stream (B, T, C), and the output of the layer norm that reads it next, if the kernel that made the stream has computed
/// that as well.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) x: Tensor,
    pub(crate) normed: Option<Tensor>,
}

impl From<Tensor> for Stream {
    fn from(x: Tensor) -> Self {
        Self { x, normed: None }
    }
}

/// The input of a layer: a tensor (B, T, C), or the layer norm of one, which a kernel may compute together with the layer.
#[derive(Debug)]
pub(crate) struct LayerInput<'a> {
    x: Tensor,
    norm: Option<&'a LayerNorm>,
}

impl From<Tensor> for LayerInput<'_> {
    fn from(x: Tensor) -> Self {
        Self { x, norm: None }
    }
}

impl<'a> LayerInput<'a> {
    /// (B, T, C), before the norm if it is yet to be computed.
    pub(crate) fn before_norm(&self) -> &Tensor {
        &self.x
    }

    /// The norm, if it is yet to be computed and there are kernels for it with a layer.
    pub(crate) fn norm(&self) -> Option<InputNorm<'a>> {
        let norm = self.norm.filter(|norm| norm.is_fused(&self.x))?;
        Some(InputNorm { weight: &norm.weight, bias: &norm.bias, eps: norm.eps })
    }

    /// The tensor, by itself: a norm is computed once.
    pub(crate) fn tensor(&mut self) -> Result<&Tensor> {
        if let Some(norm) = self.norm.take() {
            self.x = norm.forward(&self.x)?;
        }
        Ok(&self.x)
    }
}

/// Layer normalization over C, see [`candle_fused::layer_norm`].
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
    /// When a tensor is missing or has another shape, or `eps` is negative or not finite.
    pub fn load(vb: VarBuilder, width: usize, eps: f64) -> Result<Self> {
        if !(eps.is_finite() && eps >= 0.0) {
            candle_core::bail!("LayerNorm: eps is {eps}, expected a finite number of at least 0")
        }
        Ok(Self {
            weight: vb.get_with_hints(width, "weight", Init::Const(1.))?,
            bias: vb.get_with_hints(width, "bias", Init::Const(0.))?,
            eps,
            implementation: Implementation::Auto,
        })
    }

    /// Sets the implementation.
    #[must_use]
    pub fn with_implementation(self, implementation: Implementation) -> Self {
        Self { implementation, ..self }
    }

    /// Returns the input of the layer that reads this norm: the tensor of [`forward_hooked`](Self::forward_hooked), or, if nobody has
    /// computed it and no hook wants any of it, `x` and the norm.
    pub(crate) fn before_layer(
        &self,
        x: &Tensor,
        normed: Option<Tensor>,
        points: [Point; 3],
        hooks: PassHooks,
    ) -> Result<LayerInput<'_>> {
        if normed.is_none() && !hooks.wants_any(&points) {
            return Ok(LayerInput { x: x.clone(), norm: Some(self) });
        }
        Ok(self.forward_hooked(x, normed, points, hooks)?.into())
    }

    /// [`forward`](Self::forward) under hooks that may want the standard deviation, the stream that it normalizes, and the
    /// output. If another kernel has computed it, `normed` is what the norm makes of `x`, and no hook wants the first two.
    pub(crate) fn forward_hooked(
        &self,
        x: &Tensor,
        normed: Option<Tensor>,
        [scale, normalized, output]: [Point; 3],
        hooks: PassHooks,
    ) -> Result<Tensor> {
        if let Some(normed) = normed {
            return hooks.pass(output, normed);
        }
        let replaced_scale = hooks.read(scale, || self.scale(x))?;
        let divided = || self.divided(x, replaced_scale.as_ref());
        let replaced = match hooks.read(normalized, divided)? {
            None if replaced_scale.is_some() => Some(divided()?),
            replaced => replaced,
        };
        let out = match replaced {
            Some(normalized) => normalized.broadcast_mul(&self.weight)?.broadcast_add(&self.bias)?,
            None => self.forward(x)?,
        };
        hooks.pass(output, out)
    }

    /// `residual + x·W + bias` and the norm of that by one kernel, if there is one for both: (.., C), (.., in) -> (.., C)
    pub(crate) fn after_product(
        &self,
        residual: &Tensor,
        weight: &Weight,
        bias: Option<&Tensor>,
        x: &Tensor,
    ) -> Result<Option<Stream>> {
        if !self.is_fused(x) {
            return Ok(None);
        }
        let both = weight.forward_and_norm(x, bias, residual, [&self.weight, &self.bias], self.eps)?;
        Ok(both.map(|(x, normed)| Stream { x, normed: Some(normed) }))
    }

    fn is_fused(&self, x: &Tensor) -> bool {
        Dispatch::of(self.implementation, x).implementation() == Implementation::Fused
    }

    /// `sqrt(var(x) + eps)`: (.., C) -> (.., 1)
    fn scale(&self, x: &Tensor) -> Result<Tensor> {
        self.wide_scale(x)?.to_dtype(x.dtype())
    }

    /// `sqrt(var(x) + eps)` in f32 or wider.
    fn wide_scale(&self, x: &Tensor) -> Result<Tensor> {
        (centered(x)?.sqr()?.mean_keepdim(D::Minus1)? + self.eps)?.sqrt()
    }

    /// `(x - mean(x)) / scale`, by x's own scale unless another is given: (.., C) -> (.., C)
    fn divided(&self, x: &Tensor, scale: Option<&Tensor>) -> Result<Tensor> {
        let wide = |scale: &Tensor| scale.to_dtype(candle_fused::accumulator(x.dtype()));
        let scale = scale.map_or_else(|| self.wide_scale(x), wide)?;
        centered(x)?.broadcast_div(&scale)?.to_dtype(x.dtype())
    }

    /// Visits `weight` and `bias`.
    pub fn visit(&self, visitor: &mut Visitor) {
        visitor.parameter("weight", Role::NormWeight, &self.weight);
        visitor.parameter("bias", Role::NormBias, &self.bias);
    }
}

/// `x - mean(x)` in f32 or wider: (.., C) -> (.., C)
fn centered(x: &Tensor) -> Result<Tensor> {
    let x = x.to_dtype(candle_fused::accumulator(x.dtype()))?;
    x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let dispatch = Dispatch::of(self.implementation, x);
        candle_fused::layer_norm(x, &self.weight, Some(&self.bias), self.eps, dispatch)
    }
}
