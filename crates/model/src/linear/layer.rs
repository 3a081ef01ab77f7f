//! [`LinearLayer`]: what a linear layer must be able to do.

use crate::parameters::Visitor;
use candle_core::{D, Result, Tensor};
use gpt2_kernels::Epilogue;
use std::fmt::Debug;
use std::ops::Range;

/// `y = x·W + b` and what follows it in the same pass.
pub trait LinearLayer: Debug + Send + Sync {
    /// (in, out)
    fn shape(&self) -> (usize, usize);

    /// `x·W + b`, then `epilogue`; [`Epilogue::apply`] does that where no fused code does.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor>;

    /// Some of the outputs, for layers that can compute them alone. The default computes all.
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
    /// When it cannot be made.
    fn weight(&self) -> Result<Tensor>;

    /// b (out), where there is one.
    fn bias(&self) -> Option<&Tensor>;

    /// Names each parameter, such as `weight` and `bias`. What is not named here is neither counted, saved nor trained.
    fn visit(&self, visitor: &mut Visitor);
}
