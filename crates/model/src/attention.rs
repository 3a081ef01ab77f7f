//! [`CausalSelfAttention`]: `c_proj(softmax(q·kᵀ·scale + causal)·v)` with `q, k, v = split(c_attn(x))`.
//!
//! Vaswani et al. 2017 in the layout of Radford et al. 2019: one fused projection to q, k and v, the
//! heads side by side in the last dimension, and a `bias` buffer that is the causal triangle. In most of
//! gpt_bigcode all heads share one head of keys and values (multi-query attention, Shazeer 2019).

use crate::cache::{LayerCache, split_kv};
use crate::head_inputs::HeadInputs;
use crate::hooks::{PassHooks, Point};
use crate::linear::Epilogue;
use crate::loading::Loading;
use crate::parameters::Visitor;
pub use crate::qkv_order::QkvOrder;
use crate::training::{Site, Training, dropout};
use crate::{Config, Conv1D, Pass};
use candle_core::{Module, Result, Tensor};
use candle_fused::Dropout;
use candle_fused::attention::{Attended, Mask, Sdpa, Wanted};
pub use candle_fused::attention::{CausalBias, Chosen, HeadLayout};
use candle_nn::VarBuilder;

/// GPT-2's attention block.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use gpt2_model::{CausalSelfAttention, Config, Pass};
///
/// # fn main() -> candle_core::Result<()> {
/// let config = Config { n_embd: 6, n_head: 3, n_positions: 12, ..Config::gpt2() };
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let attn = CausalSelfAttention::load(vb.pp("attn"), &config)?;
///
/// let x = Tensor::randn(0f32, 1., (4, 12, 6), &Device::Cpu)?; // (B, T, C)
/// assert_eq!(attn.forward(&x, Pass::default())?.dims(), [4, 12, 6]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalSelfAttention {
    /// C -> 3C: q, k and v in the order of [`QkvOrder`], or C -> C + 2D if all heads share keys and values.
    pub c_attn: Conv1D,
    /// C -> C, on the merged heads.
    pub c_proj: Conv1D,
    /// The causal triangle, u8 (1, 1, N, N), 1 = visible. All layers share it; it is not a parameter. The eager path reads
    /// it; the fused kernels need none.
    pub bias: CausalBias,
    heads: HeadLayout,
    order: QkvOrder,
    attention: Sdpa,
    layer_idx: usize,
    attn_pdrop: f64,
    resid_pdrop: f64,
}

impl CausalSelfAttention {
    /// Loads a single attention block, as layer 0.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Self::load_layer(vb, config, 0)
    }

    /// Loads the attention block of layer `layer_idx` alone.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load_layer(vb: VarBuilder, config: &Config, layer_idx: usize) -> Result<Self> {
        config.validate()?;
        Self::load_at(&Loading::new(vb, config, layer_idx))
    }

    pub(crate) fn load_at(place: &Loading) -> Result<Self> {
        let (config, c) = (place.config, place.config.n_embd);
        let (heads, scale) = (config.heads(), config.attention_scale(place.layer_idx));
        Ok(Self {
            c_attn: place.conv1d("c_attn", (c, heads.packed_width()), config.initializer_range)?,
            c_proj: place.conv1d("c_proj", (c, c), config.residual_stdev())?,
            bias: place.bias.clone(),
            heads,
            order: config.qkv_order(),
            attention: Sdpa {
                scale: Some(scale),
                heads: Some(heads),
                bias: Some(place.bias.clone()),
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

    /// H, the number of heads.
    #[must_use]
    pub fn n_head(&self) -> usize {
        self.heads.heads
    }

    /// The factor on the scores: `1 / sqrt(D)`, unless the config says otherwise.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.attention.scale_for(self.heads.dim)
    }

    /// Where queries, keys and values lie in the output of `c_attn`.
    #[must_use]
    pub fn qkv_order(&self) -> QkvOrder {
        self.order
    }

    /// The layer, counted from 0.
    #[must_use]
    pub fn layer_idx(&self) -> usize {
        self.layer_idx
    }

    /// Attention over `x` and the cached positions before it. Ignores the fields of `pass` that ask for further
    /// outputs, which only [`Block::forward`](crate::Block::forward) returns.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C), or (B, 1, C) for the last position only
    ///
    /// # Errors
    /// When a shape does not fit, or S is above N.
    pub fn forward(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        let training = pass.training;
        self.project(&self.attend(x, pass, Wanted::default())?.context, training)
    }

    /// Like [`forward`](Self::forward), but also returns the attention weights, as they multiply the values.
    ///
    /// # Shapes
    /// output (B, T, C), weights (B, H, T, S) in f32 or wider
    ///
    /// # Errors
    /// When a shape does not fit, or S is above N.
    pub fn forward_with_weights(&self, x: &Tensor, pass: Pass) -> Result<(Tensor, Tensor)> {
        let training = pass.training;
        let wanted = Wanted { weights: &[Chosen::default()], summary: false };
        let mut attended = self.attend(x, pass, wanted)?;
        Ok((self.project(&attended.context, training)?, attended.weights.remove(0)))
    }

    pub(crate) fn set_dropout(&mut self, rate: f64) {
        (self.attn_pdrop, self.resid_pdrop) = (rate, rate);
    }

    /// Visits the parameters of `c_attn` and `c_proj`.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.c_attn.visit(&mut visitor.pp("c_attn"));
        self.c_proj.visit(&mut visitor.pp("c_proj"));
    }

    /// The heads' contexts side by side, before `c_proj`: (B, T, C), or (B, 1, C) for the last position only; and
    /// everything else that is `wanted`.
    pub(crate) fn attend(&self, x: &Tensor, pass: Pass, wanted: Wanted) -> Result<Attended> {
        self.attend_from(x, &HeadInputs::default(), pass, wanted)
    }

    /// [`attend`](Self::attend), with `inputs` in place of `x` where a hook has replaced what a head reads.
    pub(crate) fn attend_from(
        &self,
        x: &Tensor,
        inputs: &HeadInputs,
        pass: Pass,
        wanted: Wanted,
    ) -> Result<Attended> {
        pass.check()?;
        let (hooks, padding, last) = (pass.hooks(), pass.padding_mask, pass.last_position_only);
        // Weights and summaries cover all queries.
        let one_query = last && wanted.weights.is_empty() && !wanted.summary;
        let (q, k, v) = self.qkv((x, inputs), pass.cache, one_query, pass.training, hooks)?;
        let attention = self.attention(pass.training)?;
        let hidden = hooks.hidden(self.layer_idx, q.dim(2)?)?;
        let mask = Mask { padding, hidden: &hidden, first: pass.document_starts, ..Mask::default() };
        let mut attended = attention.attend(&q, &k, &v, mask, wanted)?;
        let scores = hooks.read(Point::Scores(self.layer_idx), || attention.scores(&q, &k, mask))?; // (B, H, T, S)
        let replaced = scores.map(|scores| Sdpa::softmax(&scores)).transpose()?;
        let all = || match &replaced {
            Some(weights) => Ok(weights.clone()),
            None => attention.weights(&q, &k, mask, &Chosen::default()), // (B, H, T, S)
        };
        if let Some(weights) = hooks.read(Point::Pattern(self.layer_idx), all)?.or(replaced.clone()) {
            // A cache may hold halves.
            attended.context = Sdpa::context(&weights, &v.to_dtype(x.dtype())?)?;
        }
        let context = hooks.pass(Point::Z(self.layer_idx), attended.context)?.flatten_from(2)?;
        attended.context = if last { last_position(&context)? } else { context };
        Ok(attended)
    }

    /// `c_proj` and its dropout: (B, T, C) -> (B, T, C)
    pub(crate) fn project(&self, context: &Tensor, training: Option<Training>) -> Result<Tensor> {
        self.c_proj.forward_dropped(context, training, self.output_dropout(training)?)
    }

    /// What each head adds to the stream, `z_h·W_O_h`, without `c_proj`'s bias: (B, T, C) -> (B, T, H, C)
    pub(crate) fn results(&self, context: &Tensor) -> Result<Tensor> {
        let (b, t, c) = context.dims3()?;
        let HeadLayout { heads, dim, .. } = self.heads;
        let z = context.reshape((b * t, heads, dim))?.transpose(0, 1)?.contiguous()?; // (H, B·T, D)
        let w_o = self.c_proj.weight()?.reshape((heads, dim, c))?;
        z.matmul(&w_o)?.transpose(0, 1)?.reshape((b, t, heads, c))
    }

    /// What attention adds to the stream, from what its heads add: (B, T, H, C) -> (B, T, C)
    pub(crate) fn sum_of(&self, results: &Tensor, training: Option<Training>) -> Result<Tensor> {
        let sum = results.sum(2)?;
        let sum = self.c_proj.bias().map_or_else(|| Ok(sum.clone()), |bias| sum.broadcast_add(bias))?;
        self.output_dropout(training)?.map_or_else(|| Ok(sum.clone()), |dropout| dropout.apply(&sum))
    }

    /// `residual + project(context)`: (B, T, C), (B, T, C) -> (B, T, C)
    pub(crate) fn project_onto(
        &self,
        residual: &Tensor,
        context: &Tensor,
        training: Option<Training>,
    ) -> Result<Tensor> {
        self.c_proj.forward_dropped_onto(residual, context, training, self.output_dropout(training)?)
    }

    fn output_dropout(&self, training: Option<Training>) -> Result<Option<Dropout>> {
        dropout(training, self.resid_pdrop, self.layer_idx, Site::Attention)
    }

    fn attention(&self, training: Option<Training>) -> Result<Sdpa> {
        let dropout = dropout(training, self.attn_pdrop, self.layer_idx, Site::Weights)?;
        Ok(Sdpa { dropout, ..self.attention.clone() })
    }

    /// q from `x`, or from its last position, and k and v from the cache and `x`: strided views (B, H, T, D) or (B, H,
    /// 1, D), and (B, key heads, S, D).
    fn qkv(
        &self,
        (x, inputs): (&Tensor, &HeadInputs),
        cache: Option<&mut LayerCache>,
        one_query: bool,
        training: Option<Training>,
        hooks: PassHooks,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let (b, t, _) = x.dims3()?;
        let HeadLayout { heads: h, key_heads, dim: d, .. } = self.heads;
        let (kv_heads, c, all) = (2 * key_heads, self.heads.query_width(), self.heads.packed_width());
        let (q, kv) = match self.order {
            QkvOrder::SideBySide if one_query && t > 1 => {
                let q = self.c_attn.forward_columns(&last_position(x)?, 0..c)?;
                let kv = self.c_attn.forward_columns(x, c..all)?;
                (q.reshape((b, 1, h, d))?, kv.reshape((b, t, kv_heads, d))?)
            }
            order => {
                let qkv = self.c_attn.run(x, Epilogue::None, training)?; // (B, T, (H + 2·key heads)·D)
                let qkv = match order {
                    QkvOrder::SideBySide => qkv,
                    QkvOrder::HeadByHead => qkv.reshape((b, t, h, 3, d))?.transpose(2, 3)?.contiguous()?,
                };
                let qkv = qkv.reshape((b, t, h + kv_heads, d))?;
                let queries = if one_query { 1 } else { t };
                (qkv.narrow(2, 0, h)?.narrow(1, t - queries, queries)?, qkv.narrow(2, h, kv_heads)?)
            }
        }; // (B, T, H, D) or (B, 1, H, D), and (B, T, 2·key heads, D)
        let (q, kv) = inputs.replace((q, kv), |x, part, head| self.part_of_head(x, part, head))?;
        let q = hooks.pass(Point::Q(self.layer_idx), q)?;
        let kv = self.hooked_kv(kv, hooks)?;
        let (k, v) = match cache {
            Some(cache) => cache.append_packed(&kv)?,
            None => split_kv(&kv)?,
        };
        Ok((q.transpose(1, 2)?, k, v))
    }

    /// The query (part 0), key (1) or value (2) of one head alone, from what that head reads: (B, T, C) -> (B, T, D)
    fn part_of_head(&self, x: &Tensor, part: usize, head: usize) -> Result<Tensor> {
        let first = self.first_column(part, head);
        self.c_attn.forward_columns(x, first..first + self.heads.dim)
    }

    /// Keys and values (B, T, 2·key heads, D), after any replacement by hooks.
    fn hooked_kv(&self, kv: Tensor, hooks: PassHooks) -> Result<Tensor> {
        let heads = self.heads.key_heads;
        let part = |i: usize| kv.narrow(2, i * heads, heads); // (B, T, key heads, D)
        let k = hooks.read(Point::K(self.layer_idx), || part(0))?;
        let v = hooks.read(Point::V(self.layer_idx), || part(1))?;
        if k.is_none() && v.is_none() {
            return Ok(kv);
        }
        Tensor::cat(&[k.map_or_else(|| part(0), Ok)?, v.map_or_else(|| part(1), Ok)?], 2)
    }
}

impl Module for CausalSelfAttention {
    /// Runs a whole sequence without padding, cache, dropout or hooks.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x, Pass::default())
    }
}

/// (B, T, C) -> (B, 1, C)
pub(crate) fn last_position(x: &Tensor) -> Result<Tensor> {
    x.narrow(1, x.dim(1)? - 1, 1)?.contiguous()
}
