//! [`QuantizedLinear`]: a weight of a few bits a number.

use super::layer::LinearLayer;
use super::weight_layout::WeightLayout;
use crate::parameters::{Role, Values, Visitor};
use candle_core::{Result, Tensor};
use candle_fused::{Epilogue, QuantizedWeight};
use std::ops::Range;

/// A linear layer on the CPU whose weight is quantized; its bias is in f32.
#[derive(Debug, Clone)]
pub struct QuantizedLinear {
    weight: QuantizedWeight,
    /// How a checkpoint of the model stores the weight.
    layout: WeightLayout,
    bias: Option<Tensor>,
}

impl QuantizedLinear {
    /// A layer with this weight.
    ///
    /// # Shapes
    /// `weight` (in, out), `bias` (out)
    ///
    /// # Errors
    /// When the two do not fit each other.
    pub fn new(weight: QuantizedWeight, bias: Option<Tensor>) -> Result<Self> {
        let n_out = weight.shape().1;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [n_out]) {
            candle_core::bail!(
                "a weight {:?} needs a bias of [{n_out}], got {:?}",
                weight.shape(),
                bias.dims()
            )
        }
        Ok(Self { weight, layout: WeightLayout::InOut, bias })
    }

    /// The same layer in a model whose checkpoints store weights in `layout`.
    #[must_use]
    pub fn with_layout(self, layout: WeightLayout) -> Self {
        Self { layout, ..self }
    }

    /// The quantized weight.
    #[must_use]
    pub fn quantized(&self) -> &QuantizedWeight {
        &self.weight
    }
}

impl LinearLayer for QuantizedLinear {
    fn shape(&self) -> (usize, usize) {
        self.weight.shape()
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        self.weight.forward(x, self.bias.as_ref(), epilogue)
    }

    fn forward_low_rank(&self, x: &Tensor, u: &Tensor, b: &Tensor) -> Result<Tensor> {
        if u.track_op() || b.track_op() || x.track_op() {
            return self.weight.forward_low_rank(x, self.bias.as_ref(), u, b);
        }
        self.forward(x, Epilogue::Residual(&candle_fused::linear_transposed(u, b)?))
    }

    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        self.weight.forward_columns(x, self.bias.as_ref(), columns)
    }

    fn weight(&self) -> Result<Tensor> {
        self.weight.to_tensor()
    }

    fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    fn layout(&self) -> WeightLayout {
        self.layout
    }

    fn visit(&self, visitor: &mut Visitor) {
        let weight = match self.layout {
            WeightLayout::InOut => Values::Quantized(self.weight.clone()),
            WeightLayout::OutIn => Values::QuantizedTransposed(self.weight.clone()),
        };
        visitor.values("weight", Role::LinearWeight, &weight);
        if let Some(bias) = &self.bias {
            visitor.parameter("bias", Role::LinearBias, bias);
        }
    }
}
