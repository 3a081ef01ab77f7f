//! `Conv1D`, GPT-2's linear layer: `y = x·W + b` with W stored (in, out); gpt_bigcode stores it (out, in).
//!
//! The name is the original's (a convolution of width 1); the layout is the transpose of PyTorch's
//! `Linear`. `c_proj` is square, so a transposed weight would load without an error.

use crate::linear::{Dense, Epilogue, LinearLayer, Packed, WeightLayout};
use crate::parameters::Visitor;
use crate::training::Training;
use candle_core::{Module, Result, Tensor};
use candle_fused::{Dispatch, Dropout, Implementation, PackedWeight};
use candle_nn::{Init, VarBuilder};
use std::ops::Range;
use std::sync::Arc;

/// A linear layer of a block. Clones share the weight.
#[derive(Debug, Clone)]
pub struct Conv1D {
    layer: Arc<dyn LinearLayer>,
}

impl Conv1D {
    /// Loads `weight` (`n_in`, `n_out`) and `bias` (`n_out`). If `vb` creates variables, the weight is
    /// drawn from a normal distribution with standard deviation `stdev` and the bias is 0. If it does not, the weight of
    /// a layer on the CPU is a copy, packed for the matrix product, see [`PackedWeight`].
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, n_in: usize, n_out: usize, stdev: f64) -> Result<Self> {
        let dispatch = Dispatch::new(Implementation::Auto, vb.device());
        Self::load_for(vb, (n_in, n_out), WeightLayout::InOut, stdev, dispatch)
    }

    /// As [`load`](Self::load), from a weight stored in `layout`, for the code that `dispatch` names.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load_for(
        vb: VarBuilder,
        (n_in, n_out): (usize, usize),
        layout: WeightLayout,
        stdev: f64,
        dispatch: Dispatch,
    ) -> Result<Self> {
        let shape = layout.shape(n_in, n_out);
        let weight = vb.get_with_hints(shape, "weight", Init::Randn { mean: 0., stdev })?;
        Self::stored(weight, layout, vb.get_with_hints(n_out, "bias", Init::Const(0.))?, dispatch)
    }

    /// A layer with a weight as stored in `layout`, packed if it does not change.
    pub(crate) fn stored(
        weight: Tensor,
        layout: WeightLayout,
        bias: Tensor,
        dispatch: Dispatch,
    ) -> Result<Self> {
        if PackedWeight::suits(&[&weight, &bias]) {
            return Ok(Self { layer: Arc::new(Packed::new(&weight, layout, bias)?) });
        }
        Ok(Self { layer: Arc::new(Dense::new(weight, layout, bias, dispatch)?) })
    }

    /// A layer of any kind, see [`crate::linear`].
    #[must_use]
    pub fn from_layer(layer: Arc<dyn LinearLayer>) -> Self {
        Self { layer }
    }

    /// A dense layer.
    ///
    /// # Shapes
    /// `weight` (in, out), `bias` (out)
    ///
    /// # Errors
    /// When the two do not fit each other.
    pub fn new(weight: Tensor, bias: Tensor) -> Result<Self> {
        let dispatch = Dispatch::of(Implementation::Auto, &weight);
        Ok(Self { layer: Arc::new(Dense::new(weight, WeightLayout::InOut, bias, dispatch)?) })
    }

    /// The same layer of the model, computed by `layer`; see [`crate::linear`]. To be saved, `layer` must visit its weight as
    /// the model's checkpoints store it, see [`WeightLayout`].
    ///
    /// # Errors
    /// When `layer` has another shape.
    pub fn with_layer(&self, layer: impl LinearLayer + 'static) -> Result<Self> {
        if layer.shape() != self.shape() {
            candle_core::bail!(
                "Conv1D: the layer must be {:?} (in, out), got {:?}",
                self.shape(),
                layer.shape()
            )
        }
        Ok(Self { layer: Arc::new(layer) })
    }

    /// What computes the layer.
    #[must_use]
    pub fn layer(&self) -> &Arc<dyn LinearLayer> {
        &self.layer
    }

    /// (in, out)
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        self.layer.shape()
    }

    /// W, (in, out).
    ///
    /// # Errors
    /// When the layer cannot produce a dense weight.
    pub fn weight(&self) -> Result<Tensor> {
        self.layer.weight()
    }

    /// b, (out), if the layer has a bias; the layers of GPT-2's checkpoints do.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.layer.bias()
    }

    /// `residual + x·W + b`.
    ///
    /// # Shapes
    /// `residual` (.., out), `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward_onto(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.layer.forward(x, Epilogue::Residual(residual))
    }

    /// GELU (tanh form) of `x·W + b`.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward_gelu(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.forward(x, Epilogue::Gelu)
    }

    /// `x·W + b`, then `epilogue`, with the layer's own dropout in a training pass: (.., in) -> (.., out)
    pub(crate) fn run(&self, x: &Tensor, epilogue: Epilogue, training: Option<Training>) -> Result<Tensor> {
        self.layer.forward_training(x, epilogue, training)
    }

    /// `x·W + b`, then dropout if there is any: (.., in) -> (.., out)
    pub(crate) fn forward_dropped(
        &self,
        x: &Tensor,
        training: Option<Training>,
        dropout: Option<Dropout>,
    ) -> Result<Tensor> {
        let output = self.run(x, Epilogue::None, training)?;
        match dropout {
            Some(dropout) => dropout.apply(&output),
            None => Ok(output),
        }
    }

    /// `residual` plus [`forward_dropped`](Self::forward_dropped): (.., out), (.., in) -> (.., out)
    pub(crate) fn forward_dropped_onto(
        &self,
        residual: &Tensor,
        x: &Tensor,
        training: Option<Training>,
        dropout: Option<Dropout>,
    ) -> Result<Tensor> {
        match dropout.filter(|dropout| dropout.rate() > 0.0) {
            Some(_) => residual + self.forward_dropped(x, training, dropout)?,
            None => self.run(x, Epilogue::Residual(residual), training),
        }
    }

    /// Computes only some of the outputs: (.., in) -> (.., `columns.len()`)
    pub(crate) fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        self.layer.forward_columns(x, columns)
    }

    /// How the layer's weight is reported to a visitor.
    pub(crate) fn layout(&self) -> WeightLayout {
        self.layer.layout()
    }

    /// Visits the layer's parameters.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.layer.visit(visitor);
    }
}

impl Module for Conv1D {
    /// `x·W + b`.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.forward(x, Epilogue::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn multiplies_from_the_left_without_a_transpose() -> Result<()> {
        // A square weight, so that x·Wᵀ would have the right shape but the wrong values.
        let layer = Conv1D::new(
            Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?,
            Tensor::new(&[10f32, 20.], &Device::Cpu)?,
        )?;
        let x = Tensor::new(&[[[1f32, 0.], [0., 1.]]], &Device::Cpu)?;
        assert_eq!(layer.forward(&x)?.to_vec3::<f32>()?, [[[11., 22.], [13., 24.]]]);
        Ok(())
    }

    /// A layer that always computes all of its outputs, as a user's own layer might.
    #[derive(Debug)]
    struct Doubled(Tensor, Tensor);

    impl LinearLayer for Doubled {
        fn shape(&self) -> (usize, usize) {
            self.0.dims2().expect("a matrix")
        }
        fn forward(&self, x: &Tensor, epilogue: Epilogue) -> Result<Tensor> {
            epilogue.apply((x.broadcast_matmul(&self.weight()?)?.broadcast_add(&self.1))?)
        }
        fn weight(&self) -> Result<Tensor> {
            &self.0 * 2.0
        }
        fn bias(&self) -> Option<&Tensor> {
            Some(&self.1)
        }
        fn visit(&self, _: &mut Visitor) {}
    }

    #[test]
    fn a_layer_of_ones_own_serves_every_epilogue_and_some_columns() -> Result<()> {
        let numbers = |shape: (usize, usize), step: f32| {
            let values = (0..shape.0 * shape.1).map(|i| ((i * 7 % 11) as f32 - 5.0) * step);
            Tensor::from_iter(values, &Device::Cpu)?.reshape(shape)
        };
        let (w, b) = (numbers((3, 4), 0.1)?, numbers((1, 4), 0.3)?.squeeze(0)?);
        let dense = Conv1D::new((&w * 2.0)?, b.clone())?;
        let own = Conv1D::from_layer(Arc::new(Doubled(w, b)));
        let (x, residual) = (numbers((5, 3), 0.2)?, numbers((5, 4), 0.5)?);
        for (got, expected) in [
            (own.forward(&x)?, dense.forward(&x)?),
            (own.forward_gelu(&x)?, dense.forward_gelu(&x)?),
            (own.forward_onto(&residual, &x)?, dense.forward_onto(&residual, &x)?),
            (own.forward_columns(&x, 1..3)?, dense.forward_columns(&x, 1..3)?),
        ] {
            assert_eq!(got.dims(), expected.dims());
            assert!((got - expected)?.abs()?.max_all()?.to_scalar::<f32>()? < 1e-6);
        }
        let narrow = Conv1D::new(numbers((3, 3), 1.0)?, numbers((1, 3), 1.0)?.squeeze(0)?)?;
        let wide = Doubled(numbers((3, 4), 1.0)?, numbers((1, 4), 1.0)?.squeeze(0)?);
        let message = narrow.with_layer(wide).expect_err("(3, 4) is not (3, 3)").to_string();
        assert!(message.contains("(3, 3)") && message.contains("(3, 4)"), "{message}");
        Ok(())
    }
}
