//! Checks of the tensors that a norm reads, and the norm of a product's input.

use candle_core::{D, Result, Tensor};

/// The layer norm of a product's input, for a kernel that computes both.
#[derive(Debug, Clone, Copy)]
pub struct InputNorm<'a> {
    /// (in)
    pub weight: &'a Tensor,
    /// (in)
    pub bias: &'a Tensor,
    /// Added to the variance: not negative, finite.
    pub eps: f64,
}

impl InputNorm<'_> {
    /// Fails if it does not fit rows of `x`.
    pub(crate) fn check(&self, x: &Tensor) -> Result<()> {
        check("layer_norm", x, self.weight, Some(self.bias), self.eps)
    }
}

/// Fails if a norm's weight and bias do not fit rows of `x`, or `eps` is negative or not finite.
pub(super) fn check(what: &str, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<()> {
    if !(eps.is_finite() && eps >= 0.0) {
        candle_core::bail!("{what}: eps is {eps}, expected a finite number of at least 0")
    }
    let width = x.dim(D::Minus1)?;
    match [Some(weight), bias].into_iter().flatten().find(|t| t.dims() != [width]) {
        None => Ok(()),
        Some(other) => candle_core::bail!(
            "{what}: x {:?} needs weight and bias of shape [{width}], got {:?}",
            x.dims(),
            other.dims()
        ),
    }
}
