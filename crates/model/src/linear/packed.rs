//! A weight that does not change, packed for the CPU's matrix product.

use super::layer::LinearLayer;
use crate::parameters::{Role, Values, Visitor};
use candle_core::{Result, Tensor};
use gpt2_kernels::{Epilogue, PackedWeight};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Packed {
    weight: PackedWeight,
    bias: Tensor,
}

impl Packed {
    /// `weight` (in, out), `bias` (out), for which [`PackedWeight::suits`].
    pub(crate) fn new(weight: &Tensor, bias: Tensor) -> Result<Self> {
        Ok(Self { weight: PackedWeight::new(weight)?, bias })
    }
}

impl LinearLayer for Packed {
    fn shape(&self) -> (usize, usize) {
        self.weight.shape()
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        self.weight.forward(x, Some(&self.bias), epilogue)
    }

    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        self.weight.forward_columns(x, Some(&self.bias), columns)
    }

    fn weight(&self) -> Result<Tensor> {
        self.weight.to_tensor()
    }

    fn bias(&self) -> Option<&Tensor> {
        Some(&self.bias)
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.values("weight", Role::LinearWeight, &Values::Packed(self.weight.clone()));
        visitor.parameter("bias", Role::LinearBias, &self.bias);
    }
}
