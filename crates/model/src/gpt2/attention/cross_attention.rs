//! [`CrossAttention`]: `c_proj(softmax(q·kᵀ·scale)·v)` with `q = q_attn(x)` and `k, v = split(c_attn(encoder))`.
//!
//! The attention of a decoder over its encoder (Vaswani et al. 2017, §3.2.3), in the layout of transformers' GPT-2 with
//! `add_cross_attention`, as in models that caption images or translate.

use super::cache::split_kv;
use super::mask::visible_keys;
use super::pass::{Encoder, Pass};
use crate::gpt2::layers::conv1d::Conv1D;
use crate::gpt2::layers::linear::Epilogue;
use crate::gpt2::layers::loading::Loading;
use crate::gpt2::layers::parameters::Visitor;
use crate::learn::training::{DropoutSite, Training, dropout};
use candle_core::{Result, Tensor};
use candle_fused::Implementation;
use candle_fused::attention::{Attended, HeadLayout, Mask, Sdpa, Wanted, Window};

/// GPT-2's attention over an encoder: every query sees every position of the encoder that is not padding.
#[derive(Debug, Clone)]
pub struct CrossAttention {
    /// C -> 2C: k and v side by side, from the encoder's hidden states.
    pub c_attn: Conv1D,
    /// C -> C: q, from the residual stream.
    pub q_attn: Conv1D,
    /// C -> C, on the merged heads.
    pub c_proj: Conv1D,
    heads: HeadLayout,
    scale: f64,
    implementation: Implementation,
    layer_idx: usize,
    attn_pdrop: f64,
    resid_pdrop: f64,
}

impl CrossAttention {
    pub(crate) fn load_at(place: &Loading) -> Result<Self> {
        let config = place.config;
        let c = config.n_embd;
        let stdev = config.initializer_range;
        let heads = HeadLayout::all(config.n_head, config.head_dim());
        Ok(Self {
            c_attn: place.conv1d("c_attn", (c, 2 * c), stdev)?,
            q_attn: place.conv1d("q_attn", (c, c), stdev)?,
            c_proj: place.conv1d("c_proj", (c, c), config.residual_stdev())?,
            heads,
            scale: config.attention_scale(place.layer_idx),
            implementation: config.attn_implementation,
            layer_idx: place.layer_idx,
            attn_pdrop: config.attn_pdrop,
            resid_pdrop: config.resid_pdrop,
        })
    }

    /// The heads' contexts side by side, before `c_proj`, (B, T, C), and the weights that `pass` asks for.
    ///
    /// # Shapes
    /// `x` (B, T, C), the encoder's hidden states (B, S, C) -> context (B, T, C), weights (B, heads, queries, S)
    ///
    /// # Errors
    /// When a shape does not fit, or the cache holds the keys of other hidden states.
    pub fn attend(&self, x: &Tensor, encoder: Encoder, pass: &mut Pass) -> Result<Attended> {
        let ((b, t, _), HeadLayout { heads: h, dim: d, .. }) = (x.dims3()?, self.heads);
        let Encoder { hidden_states, attention_mask } = encoder;
        let training = pass.training;
        let q = self.q_attn.run(x, Epilogue::None, training)?; // (B, T, C)
        let q = q.reshape((b, t, h, d))?.transpose(1, 2)?; // (B, H, T, D)
        let (k, v) = match pass.cache.as_deref_mut() {
            Some(cache) => cache.of_encoder(hidden_states, || self.kv(hidden_states, training))?,
            None => self.kv(hidden_states, training)?,
        }; // (B, H, S, D)
        let padding = attention_mask.map(visible_keys).transpose()?;
        let mask = Mask { padding: padding.as_ref(), ..Mask::default() };
        let wanted = Wanted { weights: pass.cross_weights, ..Wanted::default() };
        let mut attended = self.sdpa(training)?.attend(&q, &k, &v, mask, wanted)?; // (B, T, H, D)
        attended.context = attended.context.flatten_from(2)?; // (B, T, C)
        Ok(attended)
    }

    /// The options of attention over an encoder.
    fn sdpa(&self, training: Option<Training>) -> Result<Sdpa> {
        let dropout = dropout(training, self.attn_pdrop, self.layer_idx, DropoutSite::CrossWeights)?;
        Ok(Sdpa {
            scale: Some(self.scale),
            window: Window::ALL,
            heads: Some(self.heads),
            dropout,
            implementation: self.implementation,
            ..Sdpa::default()
        })
    }

    /// `residual` and what the context adds to it after `c_proj`: (B, T, C), (B, T, C) -> (B, T, C)
    pub(crate) fn project_onto(
        &self,
        residual: &Tensor,
        context: &Tensor,
        training: Option<Training>,
    ) -> Result<Tensor> {
        let dropout = dropout(training, self.resid_pdrop, self.layer_idx, DropoutSite::CrossAttention)?;
        Ok(self.c_proj.forward_dropped_onto(residual, context, training, dropout, None)?.x)
    }

    /// Keys and values of the encoder's hidden states: (B, S, C) -> two views (B, H, S, D)
    fn kv(&self, hidden_states: &Tensor, training: Option<Training>) -> Result<(Tensor, Tensor)> {
        let (b, s, _) = hidden_states.dims3()?;
        let HeadLayout { heads: h, dim: d, .. } = self.heads;
        let kv = self.c_attn.run(hidden_states, Epilogue::None, training)?;
        split_kv(&kv.reshape((b, s, 2 * h, d))?.transpose(1, 2)?)
    }

    /// The layout of the heads in the channels.
    #[must_use]
    pub fn heads(&self) -> HeadLayout {
        self.heads
    }

    pub(crate) fn set_dropout(&mut self, rate: f64) {
        (self.attn_pdrop, self.resid_pdrop) = (rate, rate);
    }

    /// Visits the parameters of `c_attn`, `q_attn` and `c_proj`.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.c_attn.visit(&mut visitor.pp("c_attn"));
        self.q_attn.visit(&mut visitor.pp("q_attn"));
        self.c_proj.visit(&mut visitor.pp("c_proj"));
    }
}
