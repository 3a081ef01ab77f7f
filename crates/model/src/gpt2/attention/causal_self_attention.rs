//! [`CausalSelfAttention`]: `c_proj(softmax(q·kᵀ·scale + causal)·v)` with `q, k, v = split(c_attn(x))`.
//!
//! Vaswani et al. 2017 in the layout of Radford et al. 2019: one fused projection to q, k and v, the
//! heads side by side in the last dimension, and a `bias` buffer that is the causal triangle. In most of
//! gpt_bigcode all heads share one head of keys and values (multi-query attention, Shazeer 2019).

use super::cache::{numbers, split_kv};
use super::hooked_heads::{HeadInputs, hooked_qkv, replaced_weights};
use super::mask::visible_keys;
use super::pass::Pass;
pub use super::qkv::HeadWeights;
use super::qkv::{Qkv, QkvLayout, last_position};
use crate::config::Config;
pub use crate::config::QkvOrder;
use crate::gpt2::layers::conv1d::Conv1D;
use crate::gpt2::layers::layer_norm::{LayerInput, LayerNorm, Stream};
use crate::gpt2::layers::loading::Loading;
use crate::gpt2::layers::parameters::{Visitor, named_tensors};
use crate::hooks::{KnockOut, Point};
use crate::learn::training::{DropoutSite, Training, dropout};
use candle_core::{Error, Module, Result, Tensor};
use candle_fused::attention::{Attended, Hidden, Mask, Sdpa};
pub use candle_fused::attention::{CausalBias, Chosen, HeadLayout};
use candle_fused::{Dropout, Implementation};
use candle_nn::VarBuilder;
use std::ops::Range;

/// GPT-2's attention block.
///
/// [`Module::forward`] runs a whole sequence. [`forward_with`](Self::forward_with) takes masks, a cache, dropout and hooks in a
/// [`Pass`]; [`forward_t`](Self::forward_t) trains with the config's dropout. The causal triangle, which GPT-2 registers as the buffer
/// `bias`, is [`attn.bias`](Self::bias): no parameter, so that it is neither loaded, counted, nor in
/// [`named_tensors`](Self::named_tensors). `attn.bias.tensor()` gives it as a tensor, and `gpt2_loader::SaveOptions::with_buffers`
/// writes it into a checkpoint.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use gpt2_model::{CausalSelfAttention, Config, Pass};
///
/// # fn main() -> candle_core::Result<()> {
/// let config = Config { n_embd: 6, n_head: 3, n_positions: 12, ..Config::gpt2() };
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let attn = CausalSelfAttention::load(vb.pp("attn"), &config, 0)?;
///
/// let x = Tensor::randn(0f32, 1., (4, 12, 6), &Device::Cpu)?; // (B, T, C)
/// assert_eq!(attn.forward(&x)?.dims(), [4, 12, 6]);
/// let mask = Tensor::ones((4, 12), DType::I64, &Device::Cpu)?; // 1 = visible
/// assert_eq!(attn.forward_with(&x, Pass { padding_mask: Some(&mask), ..Pass::default() })?.dims(), [4, 12, 6]);
/// assert_eq!(attn.forward_t(&x, true)?.dims(), [4, 12, 6]); // with dropout
/// assert_eq!(attn.bias.tensor()?.dims(), [1, 1, 12, 12]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalSelfAttention {
    /// C -> 3C: q, k and v in the order of [`QkvOrder`], or C -> C + 2D if all heads share keys and values.
    pub c_attn: Conv1D,
    /// C -> C, on the merged heads.
    pub c_proj: Conv1D,
    /// The causal triangle (`torch.tril`), u8 (1, 1, N, N), 1 = visible: a buffer, not a parameter. All layers share it. It is built
    /// by the first [`tensor`](CausalBias::tensor), which the eager path calls; the fused kernels need none.
    pub bias: CausalBias,
    pub(super) layout: QkvLayout,
    scale: f64,
    implementation: Implementation,
    pub(super) layer_idx: usize,
    attn_pdrop: f64,
    resid_pdrop: f64,
}

/// Selects the result of [`CausalSelfAttention::pattern`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternOf {
    /// The scores before the softmax, -inf where attention is masked.
    Scores,
    /// The weights after the softmax.
    Weights,
}

impl CausalSelfAttention {
    /// Loads the attention block of layer `layer_idx` alone; in a model of your own, number the layers from 0.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config, layer_idx: usize) -> Result<Self> {
        Self::load_at(&Loading::new(vb, config, layer_idx)?)
    }

    pub(crate) fn load_at(place: &Loading) -> Result<Self> {
        let config = place.config;
        let c = config.n_embd;
        let heads = config.heads();
        Ok(Self {
            c_attn: place.conv1d("c_attn", (c, heads.packed_width()), config.initializer_range)?,
            c_proj: place.conv1d("c_proj", (c, c), config.residual_stdev())?,
            bias: place.bias.clone(),
            layout: QkvLayout { heads, order: config.qkv_order() },
            scale: config.attention_scale(place.layer_idx),
            implementation: config.attn_implementation,
            layer_idx: place.layer_idx,
            attn_pdrop: config.attn_pdrop,
            resid_pdrop: config.resid_pdrop,
        })
    }

    /// `c_proj(context)`, where the context of each position is the weighted mean of the values at the positions it sees, in
    /// `x` and in the cache. Only [`Block::forward_with`](crate::Block::forward_with) returns the further outputs that `pass` can ask for,
    /// and calls the hooks on what heads read and on what they add to the stream.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C), or (B, 1, C) for the last position only
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or S is above N.
    pub fn forward_with(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        let padding = pass.padding()?;
        let mut pass = Pass { padding_mask: padding.as_ref(), weights: &[], output_summary: false, ..pass };
        let context = self.attend(x.clone().into(), &HeadInputs::default(), &mut pass)?.context; // (B, T, C)
        self.project(&context, pass.training) // (B, T, C)
    }

    /// [`Module::forward`], with dropout at the config's rates if `train` is true, as PyTorch's module in its training mode. Each
    /// such call in a process draws other masks; for masks of your own seed, give [`Pass::training`] to
    /// [`forward_with`](Self::forward_with).
    ///
    /// Candle gives each [`Module`] a [`ModuleT`](candle_core::ModuleT) that ignores `train`: code that is generic over it runs without
    /// dropout.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C)
    ///
    /// # Errors
    /// When a shape or a dtype does not fit, or T is above N.
    pub fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, Pass { training: train.then(Training::next), ..Pass::default() })
    }

    /// Everything before `c_proj`: the context (B, T, C), and the weights and the summary that `pass` asks for, before any hook
    /// replaces them. `inputs` replace `input` for the heads whose input a hook has replaced.
    pub(crate) fn attend(
        &self,
        mut input: LayerInput,
        inputs: &HeadInputs,
        pass: &mut Pass,
    ) -> Result<Attended> {
        let x = input.before_norm();
        pass.check()?;
        self.check(x, pass)?;
        let layer = self.layer_idx;
        let hooks = pass.hooks(); // before the cache grows, whose length the hooks learn
        let dtype = x.dtype().as_str();
        let in_c_attn = |error: Error| error.context(format!("layer {layer}: attn.c_attn of x in {dtype}"));
        let appended = match self.layout.cache_to_append_to(pass, x) {
            Some(cache) if inputs.are_all_x() && !hooks.wants_any(&[Point::K(layer), Point::V(layer)]) => {
                cache.append_product(&self.c_attn, &mut input).map_err(in_c_attn)?
            }
            _ => None,
        };
        let (q, k, v) = if let Some((q, k, v)) = appended {
            (hooks.pass(Point::Q(layer), q)?.transpose(1, 2)?, k, v)
        } else {
            let qkv = self.layout.project(&self.c_attn, input.tensor()?, pass).map_err(in_c_attn)?;
            let qkv = inputs.replace(qkv, &self.layout, &self.c_attn)?;
            let Qkv { q, kv } = hooked_qkv(qkv, layer, hooks)?; // (B, T, H, D), (B, T, 2·key heads, D)
            let kv = kv.transpose(1, 2)?; // (B, 2·key heads, T, D)
            let (k, v) = match pass.cache.as_deref_mut() {
                Some(cache) => cache.append_packed(&kv)?,
                None => split_kv(&kv)?,
            };
            (q.transpose(1, 2)?, k, v)
        }; // (B, H, T, D), (B, key heads, S, D)

        let knocked_out = hooks.hidden(layer, q.dim(2)?)?;
        let sdpa = self.sdpa(pass.training)?;
        let mask = pass.mask(&knocked_out);
        let mut attended = match pass.cache.as_ref().and_then(|cache| cache.past()) {
            // In a pass that is recorded, which has neither hooks nor outputs but its own.
            Some(past) => sdpa.forward_at(&q, &k, &v, pass.padding_mask, past)?.into(),
            None => sdpa.attend(&q, &k, &v, mask, pass.wanted())?,
        }; // context (B, T, H, D)
        if let Some(weights) = replaced_weights(&sdpa, &q, &k, mask, layer, hooks)? {
            attended.context = Sdpa::context(&weights, &numbers(&v, q.dtype())?)?; // the cache may hold v in another dtype
        }
        let context = hooks.pass(Point::Z(layer), attended.context)?.flatten_from(2)?; // (B, T, C), or (B, 1, C)
        attended.context = if pass.last_position_only { last_position(&context)? } else { context };
        Ok(attended)
    }

    /// Fails unless `x` is (B, T, C), and the positions of the cache and of `x` are at most N.
    fn check(&self, x: &Tensor, pass: &Pass) -> Result<()> {
        let layer = self.layer_idx;
        let (c, _) = self.c_attn.shape();
        let t = match *x.dims() {
            [_, t, width] if width == c => t,
            _ => candle_core::bail!("layer {layer}: attn: x must be (B, T, {c}), got {:?}", x.dims()),
        };
        let past = pass.cache.as_ref().map_or(0, |cache| cache.len());
        let n = self.bias.positions();
        if past + t > n {
            let cached = if past > 0 { format!(" after {past} in the cache") } else { String::new() };
            candle_core::bail!(
                "layer {layer}: attn: x {:?} has {t} positions{cached}, more than n_positions = {n}",
                x.dims()
            )
        }
        Ok(())
    }

    /// Like [`forward_with`](Self::forward_with), but also returns the attention weights, before any hook replaces them.
    ///
    /// # Shapes
    /// output (B, T, C), weights (B, H, T, S) in f32 or wider
    ///
    /// # Errors
    /// When a shape does not fit, or S is above N.
    pub fn forward_with_weights(&self, x: &Tensor, pass: Pass) -> Result<(Tensor, Tensor)> {
        let padding = pass.padding()?;
        let all = [Chosen::default()];
        let mut pass = Pass { padding_mask: padding.as_ref(), weights: &all, output_summary: false, ..pass };
        let mut attended = self.attend(x.clone().into(), &HeadInputs::default(), &mut pass)?;
        Ok((self.project(&attended.context, pass.training)?, attended.weights.remove(0)))
    }

    /// The scores, or the weights after the softmax, of queries and keys as hooks see them at [`Point::Q`] and [`Point::K`] in a pass
    /// over whole texts: what they see at [`Point::Scores`] and [`Point::Pattern`], bit by bit. `padding` is (B, T), 1 = visible, of any
    /// integer dtype.
    ///
    /// [`Point::Q`]: crate::hooks::Point::Q
    /// [`Point::K`]: crate::hooks::Point::K
    /// [`Point::Scores`]: crate::hooks::Point::Scores
    /// [`Point::Pattern`]: crate::hooks::Point::Pattern
    ///
    /// # Shapes
    /// `q` (B, T, H, D), `k` (B, T, key heads, D) -> (B, H, T, T)
    ///
    /// # Errors
    /// When a shape does not fit.
    pub fn pattern(
        &self,
        q: &Tensor,
        k: &Tensor,
        padding: Option<&Tensor>,
        knocked_out: &[KnockOut],
        kind: PatternOf,
    ) -> Result<Tensor> {
        let (q, k) = (q.transpose(1, 2)?, k.transpose(1, 2)?); // (B, H, T, D), (B, key heads, T, D)
        let hidden = |&KnockOut { head, query, key }: &KnockOut| Hidden { head, query, key };
        let hidden: Vec<Hidden> = knocked_out.iter().map(hidden).collect();
        let padding = padding.map(visible_keys).transpose()?;
        let mask = Mask { padding: padding.as_ref(), hidden: &hidden, ..Mask::default() };
        let sdpa = self.sdpa(None)?;
        match kind {
            PatternOf::Scores => sdpa.scores(&q, &k, mask),
            PatternOf::Weights => sdpa.weights(&q, &k, mask, &Chosen::default()),
        }
    }

    /// The options of GPT-2's attention.
    fn sdpa(&self, training: Option<Training>) -> Result<Sdpa> {
        let dropout = dropout(training, self.attn_pdrop, self.layer_idx, DropoutSite::Weights)?;
        Ok(Sdpa {
            scale: Some(self.scale),
            heads: Some(self.layout.heads),
            bias: Some(self.bias.clone()),
            dropout,
            implementation: self.implementation,
            ..Sdpa::default() // causal
        })
    }

    /// `c_proj` and its dropout: (B, T, C) -> (B, T, C)
    pub(crate) fn project(&self, context: &Tensor, training: Option<Training>) -> Result<Tensor> {
        self.c_proj.forward_dropped(context, training, self.output_dropout(training)?)
    }

    /// `residual + project(context)`, with what `norm` makes of the sum if one kernel computes both: (B, T, C), (B, T, C) -> (B, T, C)
    pub(crate) fn project_onto(
        &self,
        residual: &Tensor,
        context: &Tensor,
        training: Option<Training>,
        norm: Option<&LayerNorm>,
    ) -> Result<Stream> {
        let dropout = self.output_dropout(training)?;
        self.c_proj.forward_dropped_onto(residual, context, training, dropout, norm)
    }

    pub(super) fn output_dropout(&self, training: Option<Training>) -> Result<Option<Dropout>> {
        dropout(training, self.resid_pdrop, self.layer_idx, DropoutSite::Attention)
    }

    /// Visits the parameters of `c_attn` and `c_proj`.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.c_attn.visit(&mut visitor.pp("c_attn"));
        self.c_proj.visit(&mut visitor.pp("c_proj"));
    }

    pub(crate) fn set_dropout(&mut self, rate: f64) {
        (self.attn_pdrop, self.resid_pdrop) = (rate, rate);
    }

    /// The parameters under their names in a checkpoint below `h.N.attn`: `c_attn.weight`, `c_attn.bias`, `c_proj.weight` and
    /// `c_proj.bias`. [`bias`](Self::bias) is none.
    ///
    /// # Errors
    /// When a frozen weight cannot be copied.
    pub fn named_tensors(&self) -> Result<Vec<(String, Tensor)>> {
        named_tensors(|visitor| self.visit(visitor))
    }

    /// Copies of every head's weights.
    ///
    /// # Errors
    /// When a layer cannot produce a dense weight.
    pub fn head_weights(&self) -> Result<Vec<HeadWeights>> {
        self.layout.head_weights(&self.c_attn, &self.c_proj)
    }

    /// The layout of the heads in the channels.
    #[must_use]
    pub fn heads(&self) -> HeadLayout {
        self.layout.heads
    }

    /// H, the number of heads.
    #[must_use]
    pub fn n_head(&self) -> usize {
        self.layout.heads.heads
    }

    /// The factor on the scores: `1 / sqrt(D)`, unless the config says otherwise.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The order of queries, keys and values in the output of `c_attn`.
    #[must_use]
    pub fn qkv_order(&self) -> QkvOrder {
        self.layout.order
    }

    /// The columns of `c_attn` that compute the query, key and value of a head, counted from 0; heads that share keys and values
    /// share their columns.
    #[must_use]
    pub fn columns(&self, head: usize) -> [Range<usize>; 3] {
        self.layout.columns(head)
    }

    /// The layer, counted from 0.
    #[must_use]
    pub fn layer_idx(&self) -> usize {
        self.layer_idx
    }
}

impl Module for CausalSelfAttention {
    /// Runs a whole sequence without padding, cache, dropout or hooks.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, Pass::default())
    }
}
