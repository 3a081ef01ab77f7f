//! A dense weight and a bias, as a float checkpoint has them.

use super::layer::LinearLayer;
use super::weight_layout::WeightLayout;
use crate::parameters::{Role, Visitor};
use candle_core::{Result, Tensor};
use candle_fused::{Dispatch, Epilogue};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Dense {
    /// As the checkpoint stores it.
    weight: Tensor,
    layout: WeightLayout,
    bias: Tensor,
    /// (in, out)
    shape: (usize, usize),
    dispatch: Dispatch,
}

impl Dense {
    pub(crate) fn new(
        weight: Tensor,
        layout: WeightLayout,
        bias: Tensor,
        dispatch: Dispatch,
    ) -> Result<Self> {
        let shape = layout.in_out(&weight)?.dims2()?;
        if bias.dims() != [shape.1] {
            candle_core::bail!(
                "a weight {:?} needs a bias of [{}], got {:?}",
                weight.dims(),
                shape.1,
                bias.dims()
            )
        }
        Ok(Self { weight, layout, bias, shape, dispatch })
    }
}

impl LinearLayer for Dense {
    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        match self.layout {
            WeightLayout::InOut => candle_fused::linear(x, &self.weight, &self.bias, epilogue, self.dispatch),
            WeightLayout::OutIn => {
                let product = candle_fused::linear_transposed(x, &self.weight)?;
                epilogue.apply(product.broadcast_add(&self.bias)?)
            }
        }
    }

    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        if self.layout == WeightLayout::OutIn {
            let weight = self.weight.narrow(0, columns.start, columns.len())?;
            let bias = self.bias.narrow(0, columns.start, columns.len())?;
            return candle_fused::linear_transposed(x, &weight)?.broadcast_add(&bias);
        }
        let weight = self.weight.narrow(1, columns.start, columns.len())?;
        let bias = self.bias.narrow(0, columns.start, columns.len())?;
        candle_fused::linear(x, &weight, &bias, Epilogue::None, self.dispatch)
    }

    fn weight(&self) -> Result<Tensor> {
        self.layout.in_out(&self.weight)
    }

    fn bias(&self) -> Option<&Tensor> {
        Some(&self.bias)
    }

    fn layout(&self) -> WeightLayout {
        self.layout
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.parameter("weight", Role::LinearWeight, &self.weight);
        visitor.parameter("bias", Role::LinearBias, &self.bias);
    }
}
