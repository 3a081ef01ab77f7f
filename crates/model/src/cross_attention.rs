//! [`CrossAttention`]: `c_proj(softmax(q·kᵀ·scale)·v)` with `q = q_attn(x)` and `k, v = split(c_attn(encoder))`.
//!
//! The attention of a decoder over its encoder (Vaswani et al. 2017, §3.2.3), in the layout of transformers' GPT-2 with
//! `add_cross_attention`, as in models that caption images or translate.

use crate::cache::{LayerCache, split_kv};
use crate::linear::Epilogue;
use crate::loading::Loading;
use crate::parameters::Visitor;
use crate::training::{Site, Training, dropout};
use crate::{Conv1D, HeadLayout};
use candle_core::{Result, Tensor};
use candle_fused::attention::{Attended, Mask, Sdpa, Wanted, Window};

/// What an encoder gives to cross-attention. A cache keeps the keys and values computed from it, so pass the same tensor with
/// every further token.
#[derive(Debug, Clone, Copy)]
pub struct Encoder<'a> {
    /// The encoder's last hidden states, (B, S, C): S has nothing to do with the length of the text.
    pub hidden_states: &'a Tensor,
    /// (B, S), 1 = visible, 0 = padding. Any integer dtype; u8 for a single block.
    pub attention_mask: Option<&'a Tensor>,
}

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
    attention: Sdpa,
    layer_idx: usize,
    attn_pdrop: f64,
    resid_pdrop: f64,
}

impl CrossAttention {
    pub(crate) fn load_at(place: &Loading) -> Result<Self> {
        let (config, c, stdev) = (place.config, place.config.n_embd, place.config.initializer_range);
        let heads = HeadLayout::all(config.n_head, config.head_dim());
        let scale = config.attention_scale(place.layer_idx);
        Ok(Self {
            c_attn: place.conv1d("c_attn", (c, 2 * c), stdev)?,
            q_attn: place.conv1d("q_attn", (c, c), stdev)?,
            c_proj: place.conv1d("c_proj", (c, c), config.residual_stdev())?,
            heads,
            attention: Sdpa {
                scale: Some(scale),
                window: Window::ALL,
                heads: Some(heads),
                implementation: place.dispatch.implementation(),
                ..Sdpa::default()
            },
            layer_idx: place.layer_idx,
            attn_pdrop: config.attn_pdrop,
            resid_pdrop: config.resid_pdrop,
        })
    }

    /// How the heads are laid out in the channels.
    #[must_use]
    pub fn heads(&self) -> HeadLayout {
        self.heads
    }

    /// The heads' contexts side by side, before `c_proj`, (B, T, C), and whatever else is `wanted`.
    ///
    /// # Shapes
    /// `x` (B, T, C), the encoder's hidden states (B, S, C) -> context (B, T, C), weights (B, heads, queries, S)
    ///
    /// # Errors
    /// When a shape does not fit, or the cache holds the keys of other hidden states.
    pub fn attend(
        &self,
        x: &Tensor,
        encoder: Encoder,
        cache: Option<&mut LayerCache>,
        training: Option<Training>,
        wanted: Wanted,
    ) -> Result<Attended> {
        let ((b, t, _), HeadLayout { heads: h, dim: d, .. }) = (x.dims3()?, self.heads);
        let q = self.q_attn.run(x, Epilogue::None, training)?.reshape((b, t, h, d))?.transpose(1, 2)?; // (B, H, T, D)
        let (k, v) = match cache {
            Some(cache) => {
                cache.of_encoder(encoder.hidden_states, || self.kv(encoder.hidden_states, training))?
            }
            None => self.kv(encoder.hidden_states, training)?,
        }; // (B, H, S, D)
        let dropout = dropout(training, self.attn_pdrop, self.layer_idx, Site::CrossWeights)?;
        let mask = Mask { padding: encoder.attention_mask, ..Mask::default() };
        let attention = Sdpa { dropout, ..self.attention.clone() };
        let mut attended = attention.attend(&q, &k, &v, mask, wanted)?;
        attended.context = attended.context.flatten_from(2)?; // (B, T, C)
        Ok(attended)
    }

    /// `residual` and what the context adds to it after `c_proj`: (B, T, C), (B, T, C) -> (B, T, C)
    pub(crate) fn project_onto(
        &self,
        residual: &Tensor,
        context: &Tensor,
        training: Option<Training>,
    ) -> Result<Tensor> {
        let dropout = dropout(training, self.resid_pdrop, self.layer_idx, Site::CrossAttention)?;
        self.c_proj.forward_dropped_onto(residual, context, training, dropout)
    }

    /// Keys and values of the encoder's hidden states: (B, S, C) -> two views (B, H, S, D)
    fn kv(&self, hidden_states: &Tensor, training: Option<Training>) -> Result<(Tensor, Tensor)> {
        let (b, s, _) = hidden_states.dims3()?;
        let HeadLayout { heads: h, dim: d, .. } = self.heads;
        let kv = self.c_attn.run(hidden_states, Epilogue::None, training)?;
        split_kv(&kv.reshape((b, s, 2 * h, d))?)
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
