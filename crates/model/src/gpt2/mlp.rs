//! The feed-forward half of a block: `c_proj(act(c_fc(x)))`.

use super::layers::conv1d::Conv1D;
use super::layers::layer_norm::{LayerInput, LayerNorm, Stream};
use super::layers::linear::Epilogue;
use super::layers::loading::Loading;
use super::layers::parameters::Visitor;
use crate::config::{Activation, Config};
use crate::hooks::{PassHooks, Point};
use crate::learn::training::{DropoutSite, Training, dropout};
use candle_core::{Module, Result, Tensor};
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
    /// Loads the MLP of layer `layer_idx`, whose dropout differs from that of other layers.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config, layer_idx: usize) -> Result<Self> {
        Self::load_at(&Loading::new(vb, config, layer_idx)?)
    }

    pub(crate) fn load_at(place: &Loading) -> Result<Self> {
        let config = place.config;
        let c = config.n_embd;
        let inner = config.inner_dim();
        Ok(Self {
            c_fc: place.conv1d("c_fc", (c, inner), config.initializer_range)?,
            c_proj: place.conv1d("c_proj", (inner, c), config.residual_stdev())?,
            act: config.activation_function,
            layer_idx: place.layer_idx,
            resid_pdrop: config.resid_pdrop,
        })
    }

    /// `residual + c_proj(act(c_fc(x)))`, with dropout on the added part during training: (B, T, C), (B, T,
    /// C) -> (B, T, C)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn forward_onto(&self, residual: &Tensor, x: &Tensor, training: Option<Training>) -> Result<Tensor> {
        Ok(self.forward_hooked_onto(residual, x.clone().into(), training, PassHooks::default(), None)?.x)
    }

    /// [`forward_onto`](Self::forward_onto) under hooks that may want the MLP's points, with what `norm` makes of the sum if one kernel
    /// computes both.
    pub(crate) fn forward_hooked_onto(
        &self,
        residual: &Tensor,
        input: LayerInput,
        training: Option<Training>,
        hooks: PassHooks,
        norm: Option<&LayerNorm>,
    ) -> Result<Stream> {
        let dropout = dropout(training, self.resid_pdrop, self.layer_idx, DropoutSite::Mlp)?;
        let neurons = self.neurons(input, training, hooks)?; // (B, T, n_inner)
        let output = || self.c_proj.forward_dropped(&neurons, training, dropout);
        match hooks.read(Point::MlpOut(self.layer_idx), output)? {
            Some(output) => Ok((residual + output)?.into()),
            None => self.c_proj.forward_dropped_onto(residual, &neurons, training, dropout, norm),
        }
    }

    /// The neurons after the activation function, the input of `c_proj`, under hooks: (B, T, C) -> (B, T, `n_inner`)
    fn neurons(&self, mut input: LayerInput, training: Option<Training>, hooks: PassHooks) -> Result<Tensor> {
        let before = || self.c_fc.run_on(&mut input, Epilogue::None, training);
        let neurons = match hooks.read(Point::MlpPre(self.layer_idx), before)? {
            Some(before) => self.act.forward(&before)?,
            None => self.inner(&mut input, training)?,
        };
        hooks.pass(Point::MlpPost(self.layer_idx), neurons)
    }

    /// (B, T, C) -> (B, T, `n_inner`)
    fn inner(&self, input: &mut LayerInput, training: Option<Training>) -> Result<Tensor> {
        self.c_fc.run_on(input, Epilogue::Activation(self.act.function()), training)
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

impl Module for Mlp {
    /// (B, T, C) -> (B, T, C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.c_proj.forward(&self.inner(&mut x.clone().into(), None)?)
    }
}
