//! State that the modules of one model share while they load.

use super::conv1d::Conv1D;
use super::layer_norm::LayerNorm;
use super::linear::{Linear, Weight};
use super::parameters::PREFIX;
use crate::config::Config;
use candle_core::Result;
use candle_fused::attention::CausalBias;
use candle_nn::{Init, VarBuilder};
use std::fmt::Display;

/// Gives the weight of a linear layer or a table; `None` if the `VarBuilder` has it. Called with the name of the parameter,
/// without [`PREFIX`], and the weight's shape (in, out).
pub type WeightSource<'a> = dyn Fn(&str, (usize, usize)) -> Result<Option<Weight>> + 'a;

/// A place in a checkpoint, and the settings of the whole model.
#[derive(Clone)]
pub(crate) struct Loading<'a> {
    pub(crate) vb: VarBuilder<'a>,
    pub(crate) config: &'a Config,
    /// Counted from 0.
    pub(crate) layer_idx: usize,
    /// Shared by all layers.
    pub(crate) bias: CausalBias,
    weights: Option<&'a WeightSource<'a>>,
}

impl<'a> Loading<'a> {
    /// Fails if the config is not valid.
    pub(crate) fn new(vb: VarBuilder<'a>, config: &'a Config, layer_idx: usize) -> Result<Self> {
        config.validate()?;
        let bias = CausalBias::new(config.n_positions, vb.device());
        Ok(Self { vb, config, layer_idx, bias, weights: None })
    }

    /// Takes weights from this source first.
    pub(crate) fn with_weights(self, weights: &'a WeightSource<'a>) -> Self {
        Self { weights: Some(weights), ..self }
    }

    /// The place `name` below this one.
    pub(crate) fn pp(&self, name: impl Display) -> Self {
        Self { vb: self.vb.pp(name.to_string()), ..self.clone() }
    }

    /// Sets the layer.
    pub(crate) fn of_layer(self, layer_idx: usize) -> Self {
        Self { layer_idx, ..self }
    }

    /// A projection whose initial weights have standard deviation `stdev`.
    pub(crate) fn conv1d(&self, name: &str, (n_in, n_out): (usize, usize), stdev: f64) -> Result<Conv1D> {
        let vb = self.vb.pp(name);
        let layout = self.config.weight_layout();
        let path = format!("{}.weight", vb.prefix());
        let path = path.strip_prefix(PREFIX).unwrap_or(&path);
        let given = self.weights.map(|weights| given(weights, path, (n_in, n_out))).transpose()?.flatten();
        let weight = if let Some(weight) = given {
            weight
        } else {
            let init = Init::Randn { mean: 0., stdev };
            Weight::new(vb.get_with_hints(layout.shape(n_in, n_out), "weight", init)?, layout)?
        };
        let bias = vb.get_with_hints(n_out, "bias", Init::Const(0.))?;
        let weight = weight.with_implementation(self.config.attn_implementation);
        Ok(Linear::new(weight, Some(bias))?.into())
    }

    /// A layer norm over C.
    pub(crate) fn layer_norm(&self, name: &str) -> Result<LayerNorm> {
        let norm = LayerNorm::load(self.vb.pp(name), self.config.n_embd, self.config.layer_norm_epsilon)?;
        Ok(norm.with_implementation(self.config.attn_implementation))
    }
}

/// The weight from a source, if it has one, which must have this shape.
pub(crate) fn given(weights: &WeightSource, name: &str, shape: (usize, usize)) -> Result<Option<Weight>> {
    let weight = weights(name, shape)?;
    match weight.as_ref().filter(|weight| weight.shape() != shape) {
        Some(other) => {
            candle_core::bail!("{name}: expected a weight {shape:?} (in, out), got {:?}", other.shape())
        }
        None => Ok(weight),
    }
}
