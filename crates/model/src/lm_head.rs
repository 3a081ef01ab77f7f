//! `lm_head`, which turns the last hidden state into logits: `x·Wᵀ` with W (V, C).

use crate::linear::{Epilogue, LinearLayer, Table};
use crate::parameters::{Role, Visitor};
use candle_core::{Module, Result, Tensor};
use std::sync::Arc;

/// The output projection. Clones share the weight.
#[derive(Debug, Clone)]
pub struct LmHead {
    layer: Arc<dyn LinearLayer>,
    /// W (V, C), if the layer is a dense table.
    table: Option<Tensor>,
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
        Ok(Self { table: Some(weight.clone()), layer: Arc::new(Table::new(weight)?) })
    }

    /// The same projection, computed by `layer`; see [`crate::linear`].
    ///
    /// # Errors
    /// When `layer` does not map C to V.
    pub fn with_layer(&self, layer: impl LinearLayer + 'static) -> Result<Self> {
        if layer.shape() != self.layer.shape() {
            candle_core::bail!(
                "lm_head: the layer must be {:?} (in, out), got {:?}",
                self.layer.shape(),
                layer.shape()
            )
        }
        Ok(Self { layer: Arc::new(layer), table: None })
    }

    /// W, (V, C).
    ///
    /// # Errors
    /// When the layer cannot produce a dense weight.
    pub fn weight(&self) -> Result<Tensor> {
        match &self.table {
            Some(table) => Ok(table.clone()),
            None => self.layer.weight()?.t(),
        }
    }

    /// Whether the table is this very tensor.
    pub(crate) fn shares(&self, wte: &Tensor) -> bool {
        self.table.as_ref().is_some_and(|table| table.id() == wte.id())
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
        match &self.table {
            Some(table) => gpt2_kernels::linear_cross_entropy(x, table, targets),
            None => crate::training::cross_entropy(&self.forward(x)?, targets),
        }
    }

    /// Visits the parameters. A table that is `wte` itself is reported as tied to it.
    pub(crate) fn visit(&self, visitor: &mut Visitor, wte: (&str, &Tensor)) {
        match &self.table {
            Some(table) if self.shares(wte.1) => {
                visitor.tied("weight", Role::OutputProjection, table, wte.0);
            }
            _ => self.layer.visit(visitor),
        }
    }
}

impl Module for LmHead {
    /// Logits.
    ///
    /// # Shapes
    /// `x` (.., C) -> (.., V)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.forward(x, Epilogue::None)
    }
}
