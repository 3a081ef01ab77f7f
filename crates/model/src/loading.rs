//! What the modules of one model share while they load.

use crate::linear::QuantizedLinear;
use crate::parameters::PREFIX;
use crate::{Config, Conv1D, LayerNorm};
use candle_core::Result;
use candle_fused::attention::CausalBias;
use candle_fused::{Dispatch, QuantizedWeight};
use candle_nn::VarBuilder;
use std::fmt::Display;
use std::sync::Arc;

/// Gives the quantized weight (in, out) of a linear layer or, for a table, of its transpose; `None` if the `VarBuilder` has
/// it. Called with the name of the parameter, without [`PREFIX`], and the shape.
pub type QuantizedWeights<'a> = dyn Fn(&str, (usize, usize)) -> Result<Option<QuantizedWeight>> + 'a;

/// A place in a checkpoint, and the settings of the whole model.
#[derive(Clone)]
pub(crate) struct Loading<'a> {
    pub(crate) vb: VarBuilder<'a>,
    pub(crate) config: &'a Config,
    /// Counted from 0.
    pub(crate) layer_idx: usize,
    pub(crate) dispatch: Dispatch,
    /// Shared by all layers.
    pub(crate) bias: CausalBias,
    quantized: Option<&'a QuantizedWeights<'a>>,
}

impl<'a> Loading<'a> {
    pub(crate) fn new(vb: VarBuilder<'a>, config: &'a Config, layer_idx: usize) -> Self {
        let dispatch = Dispatch::new(config.attn_implementation, vb.device());
        let bias = CausalBias::new(config.n_positions, vb.device());
        Self { vb, config, layer_idx, dispatch, bias, quantized: None }
    }

    /// The same place, with weights from another source.
    pub(crate) fn with_quantized(self, quantized: &'a QuantizedWeights<'a>) -> Self {
        Self { quantized: Some(quantized), ..self }
    }

    /// The place `name` below this one.
    pub(crate) fn pp(&self, name: impl Display) -> Self {
        Self { vb: self.vb.pp(name.to_string()), ..self.clone() }
    }

    /// The same place, for layer `layer_idx`.
    pub(crate) fn of_layer(self, layer_idx: usize) -> Self {
        Self { layer_idx, ..self }
    }

    /// A projection whose initial weights have standard deviation `stdev`.
    pub(crate) fn conv1d(&self, name: &str, (n_in, n_out): (usize, usize), stdev: f64) -> Result<Conv1D> {
        let vb = self.vb.pp(name);
        if let Some(quantized) = self.quantized {
            let name = format!("{}.weight", vb.prefix());
            let name = name.strip_prefix(PREFIX).unwrap_or(&name);
            if let Some(weight) = checked(quantized, name, (n_in, n_out))? {
                let layer = QuantizedLinear::new(weight, Some(vb.get(n_out, "bias")?))?;
                return Ok(Conv1D::from_layer(Arc::new(layer.with_layout(self.config.weight_layout()))));
            }
        }
        Conv1D::load_for(vb, (n_in, n_out), self.config.weight_layout(), stdev, self.dispatch)
    }

    /// A layer norm over C.
    pub(crate) fn layer_norm(&self, name: &str) -> Result<LayerNorm> {
        let (width, eps) = (self.config.n_embd, self.config.layer_norm_epsilon);
        LayerNorm::load_for(self.vb.pp(name), width, eps, self.dispatch)
    }
}

/// The quantized weight, if there is one, which must have this shape.
pub(crate) fn checked(
    quantized: &QuantizedWeights,
    name: &str,
    shape: (usize, usize),
) -> Result<Option<QuantizedWeight>> {
    let weight = quantized(name, shape)?;
    if let Some(weight) = weight.as_ref().filter(|weight| weight.shape() != shape) {
        candle_core::bail!(
            "{name}: expected a quantized weight {shape:?} (in, out), got {:?}",
            weight.shape()
        )
    }
    Ok(weight)
}
