//! A weight that does not change, packed for the CPU's matrix product.

use super::layer::LinearLayer;
use super::weight_layout::WeightLayout;
use crate::parameters::{Role, Values, Visitor};
use candle_core::{DType, Result, Tensor};
use candle_fused::{Epilogue, PackedWeight};
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Packed {
    weight: PackedWeight,
    /// How the checkpoint stores the weight.
    layout: WeightLayout,
    bias: Tensor,
}

impl Packed {
    /// `weight` as stored, `bias` (out), for which [`PackedWeight::suits`].
    pub(crate) fn new(weight: &Tensor, layout: WeightLayout, bias: Tensor) -> Result<Self> {
        Ok(Self { weight: PackedWeight::new(&layout.in_out(weight)?)?, layout, bias })
    }
}

impl LinearLayer for Packed {
    fn shape(&self) -> (usize, usize) {
        self.weight.shape()
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        self.weight.forward(x, Some(&self.bias), epilogue)
    }

    fn forward_low_rank(&self, x: &Tensor, u: &Tensor, b: &Tensor) -> Result<Tensor> {
        if self.weight.dtype() == DType::F32 && (u.track_op() || b.track_op() || x.track_op()) {
            return self.weight.forward_low_rank(x, Some(&self.bias), u, b);
        }
        self.forward(x, Epilogue::Residual(&candle_fused::linear_transposed(u, b)?))
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

    fn layout(&self) -> WeightLayout {
        self.layout
    }

    fn visit(&self, visitor: &mut Visitor) {
        let weight = match self.layout {
            WeightLayout::InOut => Values::Packed(self.weight.clone()),
            WeightLayout::OutIn => Values::PackedTransposed(self.weight.clone()),
        };
        visitor.values("weight", Role::LinearWeight, &weight);
        visitor.parameter("bias", Role::LinearBias, &self.bias);
    }
}
