//! [`LinearLayer`], the interface of a linear layer.

use super::weight_layout::WeightLayout;
use crate::parameters::Visitor;
use crate::training::Training;
use candle_core::{D, Result, Tensor};
use candle_fused::Epilogue;
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;

/// `y = x·W + b`, and the epilogue that follows in the same pass.
pub trait LinearLayer: Any + Debug + Send + Sync {
    /// (in, out)
    fn shape(&self) -> (usize, usize);

    /// `x·W + b`, then `epilogue`. Layers without fused code for it can call [`Epilogue::apply`].
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor>;

    /// [`forward`](Self::forward) in a training pass, for layers with dropout of their own. The default has none.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward_training(&self, x: &Tensor, epilogue: Epilogue, training: Option<Training>) -> Result<Tensor> {
        let _ = training;
        self.forward(x, epilogue)
    }

    /// `x·W + b + u·Bᵀ`: the layer and a low-rank update of it. The default adds the update as a residual; override it if the
    /// layer can do so without keeping it for the backward pass.
    ///
    /// # Shapes
    /// `x` (.., in), `u` (.., r), `b` (out, r) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward_low_rank(&self, x: &Tensor, u: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.forward(x, Epilogue::Residual(&candle_fused::linear_transposed(u, b)?))
    }

    /// Some of the outputs. The default computes all of them; override it if the layer can compute a part.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., `columns.len()`)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        self.forward(x, Epilogue::None)?.narrow(D::Minus1, columns.start, columns.len())
    }

    /// W as a dense tensor (in, out), for analyses and conversions.
    ///
    /// # Errors
    /// When the layer cannot produce it.
    fn weight(&self) -> Result<Tensor>;

    /// b (out), if there is one.
    fn bias(&self) -> Option<&Tensor>;

    /// How [`visit`](Self::visit) reports the weight.
    fn layout(&self) -> WeightLayout {
        WeightLayout::InOut
    }

    /// Reports each parameter, such as `weight` and `bias`, to the visitor. A parameter that it does not report is neither
    /// counted, saved nor trained.
    fn visit(&self, visitor: &mut Visitor);
}
