//! The feed-forward half of a block: `c_proj(act(c_fc(x)))`.

use crate::config::Activation;
use crate::linear::Epilogue;
use crate::loading::Loading;
use crate::parameters::Visitor;
use crate::training::{Site, Training, dropout};
use crate::{Config, Conv1D};
use candle_core::{Module, Result, Tensor};
use candle_fused::Dropout;
use candle_nn::VarBuilder;

/// GPT-2's MLP.
#[derive(Debug, Clone)]
pub struct Mlp {
    /// C -> `n_inner`
    pub c_fc: Conv1D,
    /// `n_inner` -> C
    pub c_proj: Conv1D,
    act: Activation,
    layer_idx: usize,
    resid_pdrop: f64,
}

impl Mlp {
    /// Loads `c_fc` and `c_proj` of layer 0.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Self::load_layer(vb, config, 0)
    }

    /// As [`load`](Self::load), of layer `layer_idx`, which has dropout of its own.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load_layer(vb: VarBuilder, config: &Config, layer_idx: usize) -> Result<Self> {
        config.validate()?;
        Self::load_at(&Loading::new(vb, config, layer_idx))
    }

    pub(crate) fn load_at(place: &Loading) -> Result<Self> {
        let config = place.config;
        let (c, inner) = (config.n_embd, config.inner_dim());
        Ok(Self {
            c_fc: place.conv1d("c_fc", (c, inner), config.initializer_range)?,
            c_proj: place.conv1d("c_proj", (inner, c), config.residual_stdev())?,
            act: config.activation_function,
            layer_idx: place.layer_idx,
            resid_pdrop: config.resid_pdrop,
        })
    }

    pub(crate) fn set_dropout(&mut self, rate: f64) {
        self.resid_pdrop = rate;
    }

    /// Visits the parameters of `c_fc` and `c_proj`.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.c_fc.visit(&mut visitor.pp("c_fc"));
        self.c_proj.visit(&mut visitor.pp("c_proj"));
    }
}

impl Mlp {
    /// `residual + c_proj(act(c_fc(x)))`, with dropout on the added part during training: (B, T, C), (B, T,
    /// C) -> (B, T, C)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward_onto(&self, residual: &Tensor, x: &Tensor, training: Option<Training>) -> Result<Tensor> {
        let dropout = self.dropout(training)?;
        self.c_proj.forward_dropped_onto(residual, &self.inner(x, training)?, training, dropout)
    }

    /// What the MLP adds to the residual stream, dropout included: (B, T, C) -> (B, T, C)
    pub(crate) fn output(&self, x: &Tensor, training: Option<Training>) -> Result<Tensor> {
        self.c_proj.forward_dropped(&self.inner(x, training)?, training, self.dropout(training)?)
    }

    fn dropout(&self, training: Option<Training>) -> Result<Option<Dropout>> {
        dropout(training, self.resid_pdrop, self.layer_idx, Site::Mlp)
    }

    /// (B, T, C) -> (B, T, `n_inner`)
    fn inner(&self, x: &Tensor, training: Option<Training>) -> Result<Tensor> {
        match self.act {
            Activation::GeluNew | Activation::GeluPytorchTanh => self.c_fc.run(x, Epilogue::Gelu, training),
            act => act.forward(&self.c_fc.run(x, Epilogue::None, training)?),
        }
    }
}

impl Module for Mlp {
    /// (B, T, C) -> (B, T, C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.c_proj.forward(&self.inner(x, None)?)
    }
}
