//! A dense weight (in, out) and a bias, as in the `Conv1D` layers of a float checkpoint.

use super::layer::LinearLayer;
use crate::parameters::{Role, Visitor};
use candle_core::{Result, Tensor};
use gpt2_kernels::{Dispatch, Epilogue};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Dense {
    weight: Tensor,
    bias: Tensor,
    shape: (usize, usize),
    dispatch: Dispatch,
}

impl Dense {
    pub(crate) fn new(weight: Tensor, bias: Tensor, dispatch: Dispatch) -> Result<Self> {
        let shape = weight.dims2()?;
        if bias.dims() != [shape.1] {
            candle_core::bail!(
                "a weight {:?} needs a bias of [{}], got {:?}",
                weight.dims(),
                shape.1,
                bias.dims()
            )
        }
        Ok(Self { weight, bias, shape, dispatch })
    }
}

impl LinearLayer for Dense {
    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        gpt2_kernels::linear(x, &self.weight, &self.bias, epilogue, self.dispatch)
    }

    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        let weight = self.weight.narrow(1, columns.start, columns.len())?;
        let bias = self.bias.narrow(0, columns.start, columns.len())?;
        gpt2_kernels::linear(x, &weight, &bias, Epilogue::None, self.dispatch)
    }

    fn weight(&self) -> Result<Tensor> {
        Ok(self.weight.clone())
    }

    fn bias(&self) -> Option<&Tensor> {
        Some(&self.bias)
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.parameter("weight", Role::LinearWeight, &self.weight);
        visitor.parameter("bias", Role::LinearBias, &self.bias);
    }
}
