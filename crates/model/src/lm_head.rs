//! `lm_head`, which turns the last hidden state into logits: `x·Wᵀ` with W (V, C).

use crate::linear::{Epilogue, LinearLayer};
use crate::parameters::{Role, Visitor};
use candle_core::{Module, Result, Tensor};
use std::sync::Arc;

/// The output projection. Clones share the weight.
#[derive(Debug, Clone)]
pub struct LmHead(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// W, (V, C)
    Table(Tensor),
    Layer(Arc<dyn LinearLayer>),
}

impl LmHead {
    /// A dense projection with this table; it is tied if the table is `wte` itself.
    ///
    /// # Shapes
    /// `weight` (V, C)
    ///
    /// # Errors
    /// When `weight` does not have rank 2.
    pub fn new(weight: Tensor) -> Result<Self> {
        weight.dims2()?;
        Ok(Self(Kind::Table(weight)))
    }

    /// A layer of any kind from C to V, see [`crate::linear`].
    #[must_use]
    pub fn from_layer(layer: Arc<dyn LinearLayer>) -> Self {
        Self(Kind::Layer(layer))
    }

    /// (in, out), which is (C, V).
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        match &self.0 {
            Kind::Table(table) => (table.dims()[1], table.dims()[0]),
            Kind::Layer(layer) => layer.shape(),
        }
    }

    /// W, (V, C).
    ///
    /// # Errors
    /// When the layer cannot produce a dense weight.
    pub fn weight(&self) -> Result<Tensor> {
        match &self.0 {
            Kind::Table(table) => Ok(table.clone()),
            Kind::Layer(layer) => layer.weight()?.t(),
        }
    }

    /// Whether the table is this very tensor.
    pub(crate) fn shares(&self, wte: &Tensor) -> bool {
        matches!(&self.0, Kind::Table(table) if table.id() == wte.id())
    }

    /// The mean cross-entropy in nats of predicting `targets` from `x`. With a dense table, the logits are never all in
    /// memory at once; see [`gpt2_kernels::linear_cross_entropy`].
    ///
    /// # Shapes
    /// `x` (B, T, C), `targets` (B, T) -> scalar
    ///
    /// # Errors
    /// When a shape does not fit, or a target is not below V.
    pub fn cross_entropy(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Table(table) => gpt2_kernels::linear_cross_entropy(x, table, targets),
            Kind::Layer(_) => crate::training::cross_entropy(&self.forward(x)?, targets),
        }
    }

    /// Names the parameters.
    pub fn visit(&self, visitor: &mut Visitor) {
        match &self.0 {
            Kind::Table(table) => visitor.parameter("weight", Role::OutputProjection, table),
            Kind::Layer(layer) => layer.visit(visitor),
        }
    }
}

impl Module for LmHead {
    /// Logits.
    ///
    /// # Shapes
    /// `x` (.., C) -> (.., V)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Kind::Table(table) => gpt2_kernels::linear_transposed(x, table),
            Kind::Layer(layer) => layer.forward(x, Epilogue::None),
        }
    }
}
