//! `lm_head`, which turns the last hidden state into logits: `x·Wᵀ` with W (V, C).

use super::embedding::Embedding;
use super::linear::{Epilogue, Layer, Linear, LinearLayer, Weight, WeightLayout};
use super::parameters::{Role, Visitor};
use candle_core::{D, Module, Result, Tensor};
use std::sync::Arc;

/// The output projection. Clones share the weight.
#[derive(Debug, Clone)]
pub struct LmHead {
    layer: Layer,
}

impl LmHead {
    /// A projection with this table, frozen if it does not change.
    ///
    /// # Shapes
    /// `table` (V, C)
    ///
    /// # Errors
    /// When `table` does not have rank 2.
    pub fn new(table: Tensor) -> Result<Self> {
        Ok(Self::from_weight(Weight::new(table, WeightLayout::OutIn)?))
    }

    /// A projection with this weight from C to V; it is tied if `wte` has the same.
    #[must_use]
    pub fn from_weight(weight: Weight) -> Self {
        Self { layer: Layer::Linear(Linear::without_bias(weight)) }
    }

    /// A projection with a bias, as that of a [processed](crate::Gpt2LMHeadModel::processed) model is.
    ///
    /// # Shapes
    /// `weight` from C to V, `bias` (V)
    ///
    /// # Errors
    /// When the two do not fit each other.
    pub fn with_bias(weight: Weight, bias: Tensor) -> Result<Self> {
        Ok(Self { layer: Layer::Linear(Linear::new(weight, Some(bias))?) })
    }

    /// This projection with another weight, and with its own bias if it has one.
    ///
    /// # Errors
    /// When the weight does not fit the bias.
    pub(crate) fn with_weight(&self, weight: Weight) -> Result<Self> {
        Ok(Self { layer: Layer::Linear(Linear::new(weight, self.bias().cloned())?) })
    }

    /// A layer of your own from C to V, see [`crate::linear`].
    #[must_use]
    pub fn from_layer(layer: Arc<dyn LinearLayer>) -> Self {
        Self { layer: Layer::Own(layer) }
    }

    /// (in, out), which is (C, V).
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        self.layer.get().shape()
    }

    /// The table, (V, C), as it is held; a copy if it is frozen.
    ///
    /// # Errors
    /// When the layer cannot produce a dense weight.
    pub fn weight(&self) -> Result<Tensor> {
        self.layer.get().weight()?.t()
    }

    /// The direction of a token's logit, (C): its row of the table.
    ///
    /// # Errors
    /// When the token is not below V, or the layer cannot produce a dense weight.
    pub fn direction(&self, token: u32) -> Result<Tensor> {
        match self.layer.weight() {
            Some(weight) => weight.columns(&Tensor::new(&[token], weight.device())?)?.squeeze(0),
            None => self.weight()?.get(token as usize),
        }
    }

    /// The numbers that the projection adds to every position's logits, (V), if there are any.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.layer.get().bias()
    }

    /// The weight of a projection without a bias, unless this is a layer of your own.
    pub(crate) fn own_weight(&self) -> Option<&Weight> {
        self.layer.weight().filter(|_| self.bias().is_none())
    }

    /// Whether the projection has the weight of this table.
    pub(crate) fn is_tied_to(&self, wte: &Embedding) -> bool {
        self.layer.weight().is_some_and(|weight| weight.is(&wte.weight))
    }

    /// The mean cross-entropy in nats of predicting `targets` from `x`. Only the logits of some rows are in memory at a time where there is a
    /// kernel, see [`Weight::cross_entropy`].
    ///
    /// # Shapes
    /// `x` (B, T, C), `targets` (B, T) -> scalar
    ///
    /// # Errors
    /// When a shape does not fit, or a target is not below V.
    pub fn cross_entropy(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        match self.layer.weight().filter(|_| self.bias().is_none()) {
            Some(weight) => weight.cross_entropy(x, targets),
            None => cross_entropy_of_rows(&self.forward(x)?, targets),
        }
    }

    /// Names the parameters.
    pub fn visit(&self, visitor: &mut Visitor) {
        match self.layer.weight() {
            Some(weight) => {
                visitor.weight("weight", Role::OutputProjection, weight);
                if let Some(bias) = self.bias() {
                    visitor.parameter("bias", Role::LinearBias, bias);
                }
            }
            None => self.layer.get().visit(visitor),
        }
    }
}

/// The mean cross-entropy in nats of predicting `targets` (..) from logits (.., V).
pub(crate) fn cross_entropy_of_rows(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let rows = logits.reshape(((), logits.dim(D::Minus1)?))?; // (rows, V)
    candle_fused::cross_entropy(
        &rows.to_dtype(candle_fused::accumulator(rows.dtype()))?,
        &targets.flatten_all()?,
    )
}

impl Module for LmHead {
    /// Logits.
    ///
    /// # Shapes
    /// `x` (.., C) -> (.., V)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.get().forward(x, Epilogue::None)
    }
}
