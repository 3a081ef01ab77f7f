//! What the modules of one model share while they load.

use crate::{Config, Conv1D, LayerNorm};
use candle_core::Result;
use candle_nn::VarBuilder;
use gpt2_kernels::Dispatch;
use gpt2_kernels::attention::CausalBias;
use std::fmt::Display;

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
}

impl<'a> Loading<'a> {
    pub(crate) fn new(vb: VarBuilder<'a>, config: &'a Config, layer_idx: usize) -> Self {
        let dispatch = Dispatch::new(config.attn_implementation, vb.device());
        let bias = CausalBias::new(config.n_positions, vb.device());
        Self { vb, config, layer_idx, dispatch, bias }
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
        Conv1D::load_for(self.vb.pp(name), n_in, n_out, stdev, self.dispatch)
    }

    /// A layer norm over C.
    pub(crate) fn layer_norm(&self, name: &str) -> Result<LayerNorm> {
        let (width, eps) = (self.config.n_embd, self.config.layer_norm_epsilon);
        LayerNorm::load_for(self.vb.pp(name), width, eps, self.dispatch)
    }
}
