//! `Conv1D`, GPT-2's linear layer: `y = x·W + b` with W stored (in, out); gpt_bigcode stores it (out, in).
//!
//! The name is the original's (a convolution of width 1); the layout is the transpose of PyTorch's
//! `Linear`. `c_proj` is square, so a transposed weight would load without an error.

use super::layer_norm::{LayerInput, LayerNorm, Stream};
use super::linear::{Epilogue, Layer, Linear, LinearLayer, Weight, WeightLayout};
use super::low_rank_update::Update;
use super::parameters::Visitor;
use super::updates_of_layer::Updates;
use crate::learn::training::Training;
use candle_core::{Module, Result, Tensor};
use candle_fused::Dropout;
use candle_fused::cache::RowCache;
use candle_nn::{Init, VarBuilder};
use std::ops::Range;
use std::sync::Arc;

/// A linear layer of a block, with any low-rank updates of it. Clones share the weight.
#[derive(Debug, Clone)]
pub struct Conv1D {
    layer: Layer,
    updates: Updates,
}

impl Conv1D {
    /// Loads `weight` (`n_in`, `n_out`) and `bias` (`n_out`). If `vb` creates variables, the weight is
    /// drawn from a normal distribution with standard deviation `stdev` and the bias is 0. If it does not, the weight of
    /// a layer on the CPU is a frozen copy, see [`Weight::new`].
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, n_in: usize, n_out: usize, stdev: f64) -> Result<Self> {
        let weight = vb.get_with_hints((n_in, n_out), "weight", Init::Randn { mean: 0., stdev })?;
        let bias = vb.get_with_hints(n_out, "bias", Init::Const(0.))?;
        Ok(Linear::new(Weight::new(weight, WeightLayout::InOut)?, Some(bias))?.into())
    }

    /// A layer of plain tensors.
    ///
    /// # Shapes
    /// `weight` (in, out), `bias` (out)
    ///
    /// # Errors
    /// When the two do not fit each other.
    pub fn new(weight: Tensor, bias: Tensor) -> Result<Self> {
        Ok(Linear::new(Weight::plain(weight, WeightLayout::InOut)?, Some(bias))?.into())
    }

    /// A layer of your own, see [`crate::linear`].
    #[must_use]
    pub fn from_layer(layer: Arc<dyn LinearLayer>) -> Self {
        Self { layer: Layer::Own(layer), updates: Updates::default() }
    }

    /// Returns a layer of the same shape that `layer` computes, without updates; see [`crate::linear`].
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
        Ok(Self::from_layer(Arc::new(layer)))
    }

    /// Returns the layer with one more low-rank update, by an adapter of this name. The update must have the dtype and
    /// the device of the layer's inputs. `stream`, below 2^20, makes the dropout of this layer differ from that of others; all updates of
    /// a layer share it, so train one at a time if they have dropout.
    ///
    /// # Errors
    /// When the update has another shape than the layer, the layer has one of that name, or `stream` is too large.
    pub fn with_update(&self, name: &str, update: Update, stream: u32) -> Result<Self> {
        if update.shape() != self.shape() {
            candle_core::bail!(
                "adapter {name}: its update is {:?} (in, out), the layer {:?}",
                update.shape(),
                self.shape()
            )
        }
        Ok(Self { layer: self.layer.clone(), updates: self.updates.with(name, update, stream)? })
    }

    /// Returns the layer without its updates.
    #[must_use]
    pub fn without_updates(&self) -> Self {
        Self { layer: self.layer.clone(), updates: Updates::default() }
    }

    /// The updates, by the names of their adapters.
    #[must_use]
    pub fn updates(&self) -> &[(String, Update)] {
        self.updates.as_slice()
    }

    /// The layer under the updates.
    pub(crate) fn layer(&self) -> &Layer {
        &self.layer
    }

    /// (in, out)
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        self.layer.get().shape()
    }

    /// W (in, out) with all updates added: what the layer multiplies by, in the dtype of its inputs.
    ///
    /// # Errors
    /// When the layer cannot produce a dense weight.
    pub fn weight(&self) -> Result<Tensor> {
        self.updates.add_to(self.layer.get().weight()?)
    }

    /// b, (out), if the layer has a bias; the layers of GPT-2's checkpoints do.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.layer.get().bias()
    }

    /// `x·W + b`, then `epilogue`, with the layer's own dropout in a training pass: (.., in) -> (.., out)
    pub(crate) fn run(&self, x: &Tensor, epilogue: Epilogue, training: Option<Training>) -> Result<Tensor> {
        match self.plain() {
            Some(Linear { weight, bias }) => weight.forward(x, bias.as_ref(), epilogue),
            None => self.updates.forward(&self.layer, x, epilogue, training),
        }
    }

    /// [`run`](Self::run) on an input that may be a layer norm.
    pub(crate) fn run_on(
        &self,
        input: &mut LayerInput,
        epilogue: Epilogue,
        training: Option<Training>,
    ) -> Result<Tensor> {
        if let (Some(norm), Some(Linear { weight, bias })) = (input.norm(), self.plain())
            && let Some(y) = weight.forward_normed(input.before_norm(), norm, bias.as_ref(), epilogue)?
        {
            return Ok(y);
        }
        self.run(input.tensor()?, epilogue, training)
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

    /// `residual` plus [`forward_dropped`](Self::forward_dropped), with what `norm` makes of the sum if one kernel computes both: (..,
    /// out), (.., in) -> (.., out)
    pub(crate) fn forward_dropped_onto(
        &self,
        residual: &Tensor,
        x: &Tensor,
        training: Option<Training>,
        dropout: Option<Dropout>,
        norm: Option<&LayerNorm>,
    ) -> Result<Stream> {
        if dropout.is_some_and(|dropout| dropout.rate() > 0.0) {
            return Ok((residual + self.forward_dropped(x, training, dropout)?)?.into());
        }
        if let (Some(norm), Some(Linear { weight, bias })) = (norm, self.plain())
            && let Some(stream) = norm.after_product(residual, weight, bias.as_ref(), x)?
        {
            return Ok(stream);
        }
        Ok(self.run(x, Epilogue::Residual(residual), training)?.into())
    }

    /// `x·W + b` with its last columns appended to a cache, by one kernel: (B, T, in) -> the columns before as heads, and all rows of
    /// the cache; `None` if no kernel does both.
    pub(crate) fn run_into(
        &self,
        cache: &mut RowCache,
        input: &mut LayerInput,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let Some(Linear { weight, bias }) = self.plain() else { return Ok(None) };
        let bias = bias.as_ref();
        if let Some(norm) = input.norm()
            && let Some(both) = cache.append_normed_product(weight, bias, input.before_norm(), norm)?
        {
            return Ok(Some(both));
        }
        cache.append_product(weight, bias, input.tensor()?)
    }

    /// The weight and bias, if nothing else takes part.
    fn plain(&self) -> Option<&Linear> {
        match &self.layer {
            Layer::Linear(linear) if self.updates().is_empty() => Some(linear),
            _ => None,
        }
    }

    /// Computes only some of the outputs: (.., in) -> (.., `columns.len()`)
    pub(crate) fn forward_columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        let y = self.layer.get().forward_columns(x, columns.clone())?;
        self.updates.add_columns(y, x, columns)
    }

    /// Visits the layer's parameters.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.layer.get().visit(visitor);
        self.updates.visit(visitor);
    }
}

impl From<Linear> for Conv1D {
    fn from(linear: Linear) -> Self {
        Self { layer: Layer::Linear(linear), updates: Updates::default() }
    }
}

impl Module for Conv1D {
    /// `x·W + b`.
    ///
    /// # Shapes
    /// `x` (.., in) -> (.., out)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, Epilogue::None, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Activation;
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
        let w = numbers((3, 4), 0.1)?;
        let b = numbers((1, 4), 0.3)?.squeeze(0)?;
        let dense = Conv1D::new((&w * 2.0)?, b.clone())?;
        let own = Conv1D::from_layer(Arc::new(Doubled(w, b)));
        let x = numbers((5, 3), 0.2)?;
        let residual = numbers((5, 4), 0.5)?;
        let gelu = |of: &Conv1D| of.run(&x, Epilogue::Activation(Activation::GeluTanh), None);
        let onto = |of: &Conv1D| of.run(&x, Epilogue::Residual(&residual), None);
        for (got, expected) in [
            (own.forward(&x)?, dense.forward(&x)?),
            (gelu(&own)?, gelu(&dense)?),
            (onto(&own)?, onto(&dense)?),
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
