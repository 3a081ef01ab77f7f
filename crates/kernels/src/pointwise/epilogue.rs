//! The fused epilogue of a linear layer: an activation, a residual or a gate, in the same pass as the product and its bias.

use super::activation::Activation;
use candle_core::{Result, Tensor};

/// The operation that follows `x·W + b`.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub enum Epilogue<'a> {
    /// Nothing.
    #[default]
    None,
    /// A function of each number.
    Activation(Activation),
    /// Adds this residual stream, which has the result's shape.
    Residual(&'a Tensor),
    /// Multiplies the result by the activation of this tensor, which has the result's shape: `act(gate)·(x·W + b)` with
    /// `gate = x·G` is SwiGLU, or GeGLU (Shazeer 2020, "GLU Variants Improve Transformer").
    Gated(Activation, &'a Tensor),
}

impl<'a> Epilogue<'a> {
    /// The second tensor, if there is one.
    pub(crate) fn join(self) -> Option<ResidualOrGate<&'a Tensor>> {
        match self {
            Self::Residual(residual) => Some(ResidualOrGate::Add(residual)),
            Self::Gated(activation, gate) => Some(ResidualOrGate::Gate(activation, gate)),
            Self::None | Self::Activation(_) => None,
        }
    }

    /// With this second tensor.
    pub(crate) fn of_join(join: &'a ResidualOrGate<Tensor>) -> Self {
        match join {
            ResidualOrGate::Add(residual) => Self::Residual(residual),
            ResidualOrGate::Gate(activation, gate) => Self::Gated(*activation, gate),
        }
    }

    /// The activation of the result itself, if there is one.
    pub(crate) fn activation(self) -> Option<Activation> {
        match self {
            Self::Activation(activation) => Some(activation),
            _ => None,
        }
    }

    /// The text that [`explain`](crate::explain()) shows for it.
    pub(crate) fn shown(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Activation(activation) => format!(", then {activation:?}"),
            Self::Residual(_) => ", then a residual".to_owned(),
            Self::Gated(activation, _) => format!(", then a gate of {activation:?}"),
        }
    }

    /// Applies it to `y`, which is `x·W + b`, in a separate pass: for layers without a kernel that fuses it.
    ///
    /// # Errors
    /// When a residual or a gate has another shape.
    pub fn apply(self, y: Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(y),
            Self::Activation(activation) => activation.run(&y),
            Self::Residual(residual) => residual + y,
            Self::Gated(activation, gate) => activation.run(gate)? * y,
        }
    }
}

/// The operation that joins a second tensor of the result's shape to the result y.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ResidualOrGate<T> {
    /// `y + tensor`
    Add(T),
    /// `activation(tensor)·y`
    Gate(Activation, T),
}

impl<T> ResidualOrGate<T> {
    /// The tensor.
    pub(crate) fn get(&self) -> &T {
        match self {
            Self::Add(tensor) | Self::Gate(_, tensor) => tensor,
        }
    }

    /// Converts the tensor to another form.
    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> U) -> ResidualOrGate<U> {
        match self {
            Self::Add(tensor) => ResidualOrGate::Add(f(tensor)),
            Self::Gate(activation, tensor) => ResidualOrGate::Gate(activation, f(tensor)),
        }
    }

    /// Converts the tensor to another form, or fails with the error of the conversion.
    pub(crate) fn try_map<U>(self, f: impl FnOnce(T) -> Result<U>) -> Result<ResidualOrGate<U>> {
        Ok(match self {
            Self::Add(tensor) => ResidualOrGate::Add(f(tensor)?),
            Self::Gate(activation, tensor) => ResidualOrGate::Gate(activation, f(tensor)?),
        })
    }
}
