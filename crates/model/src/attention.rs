//! [`CausalSelfAttention`]: `c_proj(softmax(q·kᵀ·scale + causal)·v)` with `q, k, v = split(c_attn(x))`.
//!
//! Vaswani et al. 2017 in the layout of Radford et al. 2019: one fused projection to q, k and v, the
//! heads side by side in the last dimension, and a `bias` buffer that is the causal triangle.

use crate::cache::{LayerCache, split_kv};
use crate::hooks::{Hooks, Point, Run};
use crate::mask::causal_bias;
use crate::training::{Site, Training};
use crate::{Config, Conv1D};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use gpt2_kernels::attention::{Attended, Chosen, Wanted};
use gpt2_kernels::{CausalAttention, CausalMask};

/// The positions that attention is computed for; keys and values come from all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queries {
    All,
    Last,
}

/// GPT-2's attention block.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use gpt2_model::attention::AttentionArgs;
/// use gpt2_model::{CausalSelfAttention, Config};
///
/// # fn main() -> candle_core::Result<()> {
/// let config = Config { n_embd: 6, n_head: 3, n_positions: 12, ..Config::gpt2() };
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let attn = CausalSelfAttention::load(vb.pp("attn"), &config)?;
///
/// let x = Tensor::randn(0f32, 1., (4, 12, 6), &Device::Cpu)?; // (B, T, C)
/// assert_eq!(attn.forward(&x, AttentionArgs::default())?.dims(), [4, 12, 6]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalSelfAttention {
    /// C -> 3C: q, k and v side by side.
    pub c_attn: Conv1D,
    /// C -> C, on the merged heads.
    pub c_proj: Conv1D,
    /// The causal triangle, u8 (1, 1, N, N), 1 = visible. Shared by all layers; not a parameter.
    pub bias: Tensor,
    pub(crate) n_head: usize,
    pub(crate) attention: CausalAttention,
    pub(crate) layer_idx: usize,
    attn_pdrop: f64,
    resid_pdrop: f64,
}

/// What attention takes beside its input.
#[derive(Debug, Default)]
pub struct AttentionArgs<'a> {
    /// u8 (B, S), 1 = visible, S = the cache's length + T.
    pub padding_mask: Option<&'a Tensor>,
    /// What was read before; the new keys and values are added to it.
    pub cache: Option<&'a mut LayerCache>,
    /// Dropout on the weights, and on the output, at the config's `attn_pdrop` and `resid_pdrop`.
    pub training: Option<Training>,
    /// What reads and changes q, k, v, the weights and the context of each head.
    pub hooks: Option<&'a dyn Hooks>,
}

impl CausalSelfAttention {
    /// Loads a block on its own, with a `bias` of its own, as layer 0.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        config.validate()?; // before the triangle is made
        let bias = causal_bias(config.n_positions, vb.device())?;
        Self::load_layer(vb, config, 0, &bias)
    }

    /// Loads the block of layer `layer_idx`, sharing `bias` (1, 1, N, N) with the others.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load_layer(vb: VarBuilder, config: &Config, layer_idx: usize, bias: &Tensor) -> Result<Self> {
        config.validate()?;
        let c = config.n_embd;
        let stdev = config.initializer_range;
        Ok(Self {
            c_attn: Conv1D::load(vb.pp("c_attn"), c, 3 * c, stdev)?
                .with_implementation(config.attn_implementation),
            c_proj: Conv1D::load(vb.pp("c_proj"), c, c, config.residual_stdev())?
                .with_implementation(config.attn_implementation),
            bias: bias.clone(),
            n_head: config.n_head,
            attention: CausalAttention::new(config.attention_scale(layer_idx))
                .with_implementation(config.attn_implementation),
            layer_idx,
            attn_pdrop: config.attn_pdrop,
            resid_pdrop: config.resid_pdrop,
        })
    }

    /// Attention over `x` and what the cache holds before it.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C)
    ///
    /// # Errors
    /// When a shape does not fit, or S is above N.
    pub fn forward(&self, x: &Tensor, args: AttentionArgs) -> Result<Tensor> {
        let training = args.training;
        self.project(&self.attend(x, args, Queries::All, Wanted::default())?.context, training)
    }

    /// As [`forward`](Self::forward), and the attention weights beside it, as they meet the values.
    ///
    /// # Shapes
    /// output (B, T, C), weights (B, H, T, S) in f32 at least
    ///
    /// # Errors
    /// When a shape does not fit, or S is above N.
    pub fn forward_with_weights(&self, x: &Tensor, args: AttentionArgs) -> Result<(Tensor, Tensor)> {
        let training = args.training;
        let wanted = Wanted { weights: &[Chosen::default()], summary: false };
        let mut attended = self.attend(x, args, Queries::All, wanted)?;
        Ok((self.project(&attended.context, training)?, attended.weights.remove(0)))
    }

    /// The heads' results side by side, before `c_proj`: (B, T, C), or (B, 1, C) for the last query; and what is
    /// wanted beside it.
    pub(crate) fn attend(
        &self,
        x: &Tensor,
        args: AttentionArgs,
        queries: Queries,
        wanted: Wanted,
    ) -> Result<Attended> {
        let AttentionArgs { padding_mask: padding, cache, training, hooks } = args;
        let (past, cached) = cache.as_ref().map_or((0, false), |cache| (cache.len(), true));
        let run = Run { hooks, past, cached, padding };
        let (q, k, v) = self.qkv(x, cache, queries, run)?;
        let attention = self.attention(training)?;
        let hidden = run.hidden(self.layer_idx, q.dim(2)?)?;
        let mask = CausalMask { tril: Some(&self.bias), padding, hidden: &hidden };
        let pattern = Point::Pattern(self.layer_idx);
        let mut attended = attention.attend(&q, &k, &v, mask, wanted)?;
        let all = || attention.weights(&q, &k, mask, &Chosen::default()); // (B, H, T, S)
        if let Some(weights) = run.read(pattern, all)? {
            attended.context = CausalAttention::context(&weights, &v)?;
        }
        attended.context = run.pass(Point::Z(self.layer_idx), attended.context)?.flatten_from(2)?;
        Ok(attended)
    }

    /// `c_proj` and its dropout: (B, T, C) -> (B, T, C)
    pub(crate) fn project(&self, context: &Tensor, training: Option<Training>) -> Result<Tensor> {
        let output = self.c_proj.forward(context)?;
        match training {
            Some(training) => {
                training.dropout(self.resid_pdrop, self.layer_idx, Site::Attention)?.apply(&output)
            }
            None => Ok(output),
        }
    }

    /// `residual + project(context)`: (B, T, C), (B, T, C) -> (B, T, C)
    pub(crate) fn project_onto(
        &self,
        residual: &Tensor,
        context: &Tensor,
        training: Option<Training>,
    ) -> Result<Tensor> {
        match training {
            Some(_) => residual + self.project(context, training)?,
            None => self.c_proj.forward_onto(residual, context),
        }
    }

    fn attention(&self, training: Option<Training>) -> Result<CausalAttention> {
        let drop = |training: Training| training.dropout(self.attn_pdrop, self.layer_idx, Site::Weights);
        Ok(self.attention.clone().with_dropout(training.map(drop).transpose()?))
    }

    /// q of `x`, and k and v of the cache and `x`: strided views (B, H, T, D) or (B, H, 1, D), (B, H, S, D).
    fn qkv(
        &self,
        x: &Tensor,
        cache: Option<&mut LayerCache>,
        queries: Queries,
        run: Run,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let (b, t, c) = x.dims3()?;
        let (h, d) = (self.n_head, c / self.n_head);
        let (q, kv) = if queries == Queries::Last && t > 1 {
            let last = x.narrow(1, t - 1, 1)?; // (B, 1, C)
            let q = self.c_attn.forward_columns(&last, 0, c)?.reshape((b, 1, h, d))?; // (B, 1, H, D)
            (q, self.c_attn.forward_columns(x, c, 2 * c)?.reshape((b, t, 2, h, d))?)
        } else {
            let qkv = self.c_attn.forward(x)?.reshape((b, t, 3, h, d))?; // (B, T, 3, H, D)
            (qkv.narrow(2, 0, 1)?.squeeze(2)?, qkv.narrow(2, 1, 2)?)
        }; // (B, T, H, D), (B, T, 2, H, D)
        let q = run.pass(Point::Q(self.layer_idx), q)?;
        let kv = self.hooked_kv(kv, run)?;
        let (k, v) = match cache {
            Some(cache) => cache.append(&kv)?,
            None => split_kv(&kv)?,
        };
        Ok((q.transpose(1, 2)?, k, v))
    }

    /// Keys and values (B, T, 2, H, D) with what hooks put in their place.
    fn hooked_kv(&self, kv: Tensor, run: Run) -> Result<Tensor> {
        let part = |i: usize| kv.narrow(2, i, 1)?.squeeze(2); // (B, T, H, D)
        let k = run.read(Point::K(self.layer_idx), || part(0))?;
        let v = run.read(Point::V(self.layer_idx), || part(1))?;
        if k.is_none() && v.is_none() {
            return Ok(kv);
        }
        Tensor::stack(&[k.map_or_else(|| part(0), Ok)?, v.map_or_else(|| part(1), Ok)?], 2)
    }

    /// H, the number of heads.
    #[must_use]
    pub fn n_head(&self) -> usize {
        self.n_head
    }

    /// What `q·kᵀ` is multiplied by.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.attention.scale()
    }
}
