//! Operations that follow a matrix product and its bias in the same pass.

use crate::gelu::gelu;
use candle_core::{Result, Tensor};

/// The operation that follows `x·W + b`.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub enum Epilogue<'a> {
    /// Nothing.
    #[default]
    None,
    /// GELU in its tanh form, see [`gelu`](crate::gelu()).
    Gelu,
    /// Adds this residual stream, which has the result's shape.
    Residual(&'a Tensor),
}

impl<'a> Epilogue<'a> {
    /// The residual that it adds, if any.
    pub(crate) fn residual(self) -> Option<&'a Tensor> {
        match self {
            Self::Residual(residual) => Some(residual),
            Self::None | Self::Gelu => None,
        }
    }

    /// Applies it to `y`, which is `x·W + b`, in a separate pass: for layers without a kernel that fuses it.
    ///
    /// # Errors
    /// When a residual has another shape.
    pub fn apply(self, y: Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(y),
            Self::Gelu => gelu(&y),
            Self::Residual(residual) => residual + y,
        }
    }
}
