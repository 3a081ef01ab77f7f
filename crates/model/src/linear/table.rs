//! `x·Wᵀ` with W (out, in) and no bias: an output projection stored like the embedding table.

use super::layer::LinearLayer;
use crate::parameters::{Role, Visitor};
use candle_core::{Result, Tensor};
use gpt2_kernels::Epilogue;

#[derive(Debug)]
pub(crate) struct Table {
    weight: Tensor, // (V, C)
    shape: (usize, usize),
}

impl Table {
    pub(crate) fn new(weight: Tensor) -> Result<Self> {
        let (n_out, n_in) = weight.dims2()?;
        Ok(Self { weight, shape: (n_in, n_out) })
    }
}

impl LinearLayer for Table {
    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        epilogue.apply(gpt2_kernels::linear_transposed(x, &self.weight)?)
    }

    fn weight(&self) -> Result<Tensor> {
        self.weight.t()
    }

    fn bias(&self) -> Option<&Tensor> {
        None
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.parameter("weight", Role::OutputProjection, &self.weight);
    }
}
