//! A linear layer that is not GPT-2's own.

use candle_core::{Module, Result, Tensor};
use gpt2_model::Conv1D;
use gpt2_model::linear::{Epilogue, LinearLayer};
use gpt2_model::parameters::{Role, Visitor};
use std::sync::Arc;

/// Gives the same output as another layer, and reports one parameter under this name, or none.
#[derive(Debug)]
struct Other(Conv1D, Option<&'static str>);

/// `layer` with all its parameters hidden, except one under this name.
pub(crate) fn other_layer(layer: &Conv1D, name: Option<&'static str>) -> Conv1D {
    Conv1D::from_layer(Arc::new(Other(layer.clone(), name)))
}

impl LinearLayer for Other {
    fn shape(&self) -> (usize, usize) {
        self.0.shape()
    }

    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
        epilogue.apply(self.0.forward(x)?)
    }

    fn weight(&self) -> Result<Tensor> {
        self.0.weight()
    }

    fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }

    fn visit(&self, visitor: &mut Visitor) {
        if let (Some(name), Ok(weight)) = (self.1, self.0.weight()) {
            visitor.parameter(name, Role::LinearWeight, &weight);
        }
    }
}
