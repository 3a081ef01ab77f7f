//! [`Sdpa`]: chooses the code that computes an attention, and checks what it is given.

use super::bias::CausalBias;
use super::cpu::CpuAttention;
use super::drop_weights::WeightDropout;
use super::eager;
use super::gpu;
use super::gpu_kernel::GpuKernel;
use super::heads::HeadLayout;
use super::mask::Mask;
use super::request::{Chosen, Wanted, select};
use super::scores::{ScoreRules, Scoring};
use super::summary::Summary;
use super::weights::{Code, dropped, weights};
use super::window::Window;
use crate::accumulator;
use crate::dispatch::{Dispatch, Implementation};
use crate::dropout::Dropout;
use candle_core::{DType, Result, Tensor};
use std::sync::Arc;

/// The result of attention.
#[derive(Debug)]
pub struct Attended {
    /// `weights·v`, (B, T, H, Dv).
    pub context: Tensor,
    /// A tensor (B, heads, queries, S) for each entry of [`Wanted::weights`], in f32, or f64 for f64 inputs.
    pub weights: Vec<Tensor>,
    /// The summary, if it was asked for.
    pub summary: Option<Summary>,
}

/// Scaled dot-product attention (SDPA) with fixed rules: scale, window, soft cap, ALiBi and dropout.
///
/// Heads may share keys and values: H queries against fewer key heads, each serving `H / key heads` neighbors (multi-query
/// attention of Shazeer 2019, grouped-query attention of Ainslie et al. 2023). Values may have another width than keys.
///
/// Llama's eight queries over two heads of keys and values:
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::{Mask, Sdpa};
/// use candle_fused::{Dispatch, Implementation};
///
/// # fn main() -> candle_core::Result<()> {
/// let (b, h, t, d) = (1, 8, 5, 16);
/// let q = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let k = Tensor::randn(0f32, 1., (b, 2, t, d), &Device::Cpu)?;
/// let v = Tensor::randn(0f32, 1., (b, 2, t, d), &Device::Cpu)?;
/// let attention = Sdpa::causal(1. / (d as f64).sqrt(), Dispatch::of(Implementation::Auto, &q));
/// let context = attention.forward(&q, &k, &v, Mask::default())?;
/// assert_eq!(context.dims(), [b, t, h, d]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Sdpa {
    pub(super) scoring: Scoring,
    dispatch: Dispatch,
    pub(super) bias: Option<CausalBias>,
    heads: Option<HeadLayout>,
    dropout: Option<Dropout>,
    /// Rows of dropout's mask that belong to sequences before this one.
    rows_before: usize,
}

impl Sdpa {
    /// Attention that multiplies scores by `scale` (usually `1 / sqrt(D)`) before the softmax, run by the code that
    /// `dispatch` selects. Each query sees the keys that `window` says.
    #[must_use]
    pub fn new(scale: f64, window: Window, dispatch: Dispatch) -> Self {
        let scoring = Scoring { window, ..Scoring::causal(scale) };
        Self { scoring, dispatch, bias: None, heads: None, dropout: None, rows_before: 0 }
    }

    /// Attention in which a query sees its own key and all before it, as in GPT-2 and Llama.
    #[must_use]
    pub fn causal(scale: f64, dispatch: Dispatch) -> Self {
        Self::new(scale, Window::CAUSAL, dispatch)
    }

    /// Attention in which every query sees every key: for encoders, and for cross-attention, where the number of keys has
    /// nothing to do with that of queries.
    #[must_use]
    pub fn full(scale: f64, dispatch: Dispatch) -> Self {
        Self::new(scale, Window::ALL, dispatch)
    }

    /// The same attention with another window.
    #[must_use]
    pub fn with_window(mut self, window: Window) -> Self {
        self.scoring.window = window;
        self
    }

    /// The same attention with scores `cap·tanh(score / cap)`, as in Gemma 2 (Gemma Team 2024, §2). `None` is no cap.
    #[must_use]
    pub fn with_softcap(mut self, cap: Option<f64>) -> Self {
        self.scoring.softcap = cap;
        self
    }

    /// The same attention with scores lowered by `slope·|position - key|`, one slope for each of the H heads, as in BLOOM
    /// (ALiBi, Press et al. 2022). `None` is no slope. The slopes get no gradient.
    #[must_use]
    pub fn with_alibi(mut self, slopes: Option<&[f32]>) -> Self {
        self.scoring.slopes = slopes.map(Arc::from);
        self
    }

    /// The same attention, but its eager path reads the causal triangle from `bias` instead of making one in each
    /// call. S can then be at most the triangle's N.
    #[must_use]
    pub fn with_bias(self, bias: &CausalBias) -> Self {
        Self { bias: Some(bias.clone()), ..self }
    }

    /// The same attention for some of a layer's heads: dropout then treats them as it does within the whole layer. A pass
    /// with other numbers of heads is refused.
    #[must_use]
    pub fn with_heads(self, heads: HeadLayout) -> Self {
        Self { heads: Some(heads), ..self }
    }

    /// The same attention with dropout on its weights, after the softmax: for training. Row `(b·H + h)·T + i`
    /// of the mask belongs to query i of head h of batch row b. Kernels redraw the mask when they need it.
    #[must_use]
    pub fn with_dropout(self, dropout: Option<Dropout>) -> Self {
        Self { dropout: dropout.filter(|dropout| dropout.rate() > 0.0), ..self }
    }

    /// The same attention for a sequence with so many rows of weights before it.
    pub(super) fn with_rows_before(self, rows_before: usize) -> Self {
        Self { rows_before, ..self }
    }

    /// How many heads the layer has, where `here` are given.
    pub(super) fn layer_heads(&self, here: usize) -> usize {
        self.heads.map_or(here, |heads| heads.total)
    }

    /// Whether weights are dropped.
    #[must_use]
    pub fn has_dropout(&self) -> bool {
        self.dropout.is_some()
    }

    /// The factor on the scores.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scoring.scale
    }

    /// Which keys a query sees by its position.
    #[must_use]
    pub fn window(&self) -> Window {
        self.scoring.window
    }

    /// The context of each query, `weights·v`. Scores, softmax and sums are f32 or wider; the result
    /// has the dtype of `q`, which `k` and `v` are converted to if they have another; on the CPU, the fused kernels read
    /// halves under f32 in place. A query with no visible key gets a context of zeros.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D), `v` (B, key heads, S, Dv), with any strides -> (B, T, H, Dv), contiguous,
    /// so that merging the heads is a reshape.
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask) -> Result<Tensor> {
        Ok(self.attend(q, k, v, mask, Wanted::default())?.context)
    }

    /// Like [`forward`](Self::forward), but also returns the weights of all heads and queries, after
    /// dropout, as they multiply v.
    ///
    /// # Shapes
    /// context (B, T, H, Dv), weights (B, H, T, S) in f32, or in f64 for f64 inputs.
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask.
    pub fn forward_with_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Mask,
    ) -> Result<(Tensor, Tensor)> {
        let wanted = Wanted { weights: &[Chosen::default()], summary: false };
        let mut attended = self.attend(q, k, v, mask, wanted)?;
        Ok((attended.context, attended.weights.remove(0)))
    }

    /// Like [`forward`](Self::forward), but also returns whatever `wanted` asks for.
    ///
    /// The weights are those that multiply v, after dropout, and a gradient flows through them to q
    /// and k. A [`Summary`] describes the weights before dropout and has no gradient.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D), `v` (B, key heads, S, Dv) -> see [`Attended`]
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask, or a chosen head or query does not exist.
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask, wanted: Wanted) -> Result<Attended> {
        let (h, t) = self.check(q, k, v, mask)?;
        if k.dim(2)? == 0 {
            return Self::without_keys(q, v, wanted);
        }
        let in_place = self.reads_halves(q, k, v, mask);
        let as_read = |x: &Tensor| if in_place { Ok(x.clone()) } else { x.to_dtype(q.dtype()) };
        let (k, v) = (&as_read(k)?, &as_read(v)?);
        let rows = self.rows_before + q.dim(0)? * self.layer_heads(h) * t;
        if self.dropout.is_some() && u32::try_from(rows).is_err() {
            candle_core::bail!("attention: dropout on {rows} rows of weights, expected fewer than 2^32")
        }
        if in_place || self.has_cpu_kernel(&[q, k, v], mask) {
            let rules = ScoreRules::new(&self.scoring, mask, q, k.dim(2)?)?;
            let op = CpuAttention::new(rules, self.weight_dropout(q)?, wanted.summary);
            let rows = op.summaries();
            let context = q.apply_op3(k, v, op)?;
            let summary = rows.get().map(|rows| Summary::of_rows(rows, q.dims4()?)).transpose()?;
            let weights = wanted.weights.iter().map(|chosen| self.weights(q, k, mask, chosen));
            return Ok(Attended { context, weights: weights.collect::<Result<_>>()?, summary });
        }
        if let Some(kernel) = self.gpu_kernel([q, k, v], mask)? {
            let context = kernel.forward([q, k, v])?;
            let weights = wanted.weights.iter().map(|chosen| self.weights(q, k, mask, chosen));
            let weights = weights.collect::<Result<_>>()?;
            return Ok(Attended { context, weights, summary: self.eager_summary((q, k), mask, wanted)? });
        }
        let all = self.weights(q, k, mask, &Chosen::default())?; // (B, H, T, S)
        let of_all = |chosen: &Chosen| {
            let rows = chosen.resolve(h, t)?;
            select(&select(&all, 1, &rows.heads)?, 2, &rows.queries)
        };
        Ok(Attended {
            context: eager::context(&all, v, q.dtype())?,
            weights: wanted.weights.iter().map(of_all).collect::<Result<_>>()?,
            summary: self.eager_summary((q, k), mask, wanted)?,
        })
    }

    /// What queries without any key get: zeros, and a summary of zeros.
    pub(super) fn without_keys(q: &Tensor, v: &Tensor, wanted: Wanted) -> Result<Attended> {
        let ((b, h, t, _), (_, _, s, dv)) = (q.dims4()?, v.dims4()?);
        let weights = |chosen: &Chosen| {
            let rows = chosen.resolve(h, t)?;
            let shape = (b, rows.heads.len(), rows.queries.len(), s);
            Tensor::zeros(shape, accumulator(q.dtype()), q.device())
        };
        Ok(Attended {
            context: Tensor::zeros((b, t, h, dv), q.dtype(), q.device())?,
            weights: wanted.weights.iter().map(weights).collect::<Result<_>>()?,
            summary: wanted.summary.then(|| Summary::zeros((b, h, t), q.device())).transpose()?,
        })
    }

    /// The summary by the eager path, where one is wanted.
    fn eager_summary(&self, qk: (&Tensor, &Tensor), mask: Mask, wanted: Wanted) -> Result<Option<Summary>> {
        let summary = || Summary::eager(qk, &self.scoring, (mask, self.bias.as_ref()));
        wanted.summary.then(summary).transpose()
    }

    /// The weights of chosen heads and queries alone, after dropout, as they multiply v. A gradient flows through them
    /// to q and k.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, heads, queries, S) in f32, or in f64 for f64 inputs
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask, or a chosen head or query does not exist.
    pub fn weights(&self, q: &Tensor, k: &Tensor, mask: Mask, chosen: &Chosen) -> Result<Tensor> {
        let (h, t) = self.check(q, k, k, mask)?;
        let k = &k.to_dtype(q.dtype())?;
        let rows = chosen.resolve(h, t)?;
        let code = if self.has_cpu_kernel(&[q, k], mask) {
            Code::CpuKernel
        } else {
            Code::Eager(self.bias.as_ref())
        };
        let weights = weights((q, k), &self.scoring, mask, rows.clone(), code)?;
        match &self.weight_dropout(q)? {
            Some(dropout) => dropped(&weights, dropout, &rows),
            None => Ok(weights),
        }
    }

    /// Which code [`forward`](Self::forward) runs for these tensors: `Fused` if there is a kernel for them.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn runs(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask) -> Result<Implementation> {
        let fused = self.reads_halves(q, k, v, mask)
            || self.has_cpu_kernel(&[q, k, v], mask)
            || self.gpu_kernel([q, k, v], mask)?.is_some();
        Ok(if fused { Implementation::Fused } else { Implementation::Eager })
    }

    /// The dropout for queries `q` (B, H, T, D).
    fn weight_dropout(&self, q: &Tensor) -> Result<Option<WeightDropout>> {
        let (_, h, t, d) = q.dims4()?;
        let heads = self.heads.unwrap_or(HeadLayout::all(h, d));
        Ok(self.dropout.map(|dropout| WeightDropout::new(dropout, heads, t).after(self.rows_before)))
    }

    /// Whether the CPU kernels read keys and values in halves in place, under queries in f32: if no gradient is needed.
    fn reads_halves(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask) -> bool {
        let all = [q, k, v];
        let halves = matches!(k.dtype(), DType::F16 | DType::BF16) && k.dtype() == v.dtype();
        halves
            && q.dtype() == DType::F32
            && self.has_cpu_kernel(&[q], mask)
            && !is_empty(&all)
            && all.iter().all(|x| x.device().is_cpu() && !x.track_op())
    }

    /// Whether the CPU kernels can compute this.
    fn has_cpu_kernel(&self, qkv: &[&Tensor], mask: Mask) -> bool {
        let no_gradient = mask.added.is_none_or(|added| !added.track_op());
        self.dispatch.cpu_attention(qkv) && no_gradient && !is_empty(qkv)
    }

    /// The GPU kernel that computes this, if the caller asked for one and there is one.
    fn gpu_kernel(&self, qkv @ [q, k, v]: [&Tensor; 3], mask: Mask) -> Result<Option<Box<dyn GpuKernel>>> {
        let Scoring { scale, window, softcap, ref slopes } = self.scoring;
        let masked = mask.added.or(mask.first).is_some();
        let plain = window == Window::CAUSAL && softcap.is_none() && slopes.is_none() && !masked;
        let plain = plain && q.dim(1)? == k.dim(1)? && q.dim(3)? == v.dim(3)? && q.dim(2)? <= k.dim(2)?;
        let plain = plain && (self.dropout.is_none() || self.rows_before == 0);
        if !plain || !self.dispatch.gpu_kernels() || is_empty(&qkv) {
            return Ok(None);
        }
        gpu::kernel(qkv, scale, mask, self.weight_dropout(q)?)
    }

    /// Returns H and T. Fails if the shapes do not fit, naming every shape in the message.
    pub(super) fn check(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Mask) -> Result<(usize, usize)> {
        let (b, h, t, d) = q.dims4()?;
        let (kb, kh, s, kd) = k.dims4()?;
        let (vb, vh, vs, _) = v.dims4()?;
        let shared = kh > 0 && h.is_multiple_of(kh);
        if (kb, kd) != (b, d) || (vb, vh, vs) != (b, kh, s) || !shared {
            candle_core::bail!(
                "attention: q {:?} needs k of shape [{b}, key heads, S, {d}] and v of [{b}, key heads, S, Dv] with a number of \
                 key heads that divides {h}, got k {:?}, v {:?}",
                q.dims(),
                k.dims(),
                v.dims()
            )
        }
        let Scoring { softcap, ref slopes, .. } = self.scoring;
        if let Some(cap) = softcap.filter(|cap| !(1e-30..=1e30).contains(cap)) {
            candle_core::bail!(
                "attention: a soft cap of {cap} is not between 1e-30 and 1e30; pass None for no cap"
            )
        }
        if let Some(slopes) = slopes.as_ref().filter(|slopes| slopes.len() != h) {
            candle_core::bail!("attention: {} slopes for {h} heads, expected one for each head", slopes.len())
        }
        let other = |heads: &HeadLayout| (heads.heads, heads.key_heads, heads.dim) != (h, kh, d);
        if let Some(heads) = self.heads.filter(other) {
            candle_core::bail!(
                "attention: q {:?} and k {:?} do not have {} and {} heads of width {}",
                q.dims(),
                k.dims(),
                heads.heads,
                heads.key_heads,
                heads.dim
            )
        }
        if t == 0 || h == 0 {
            candle_core::bail!("attention: no query, q is {:?}", q.dims())
        }
        if let Some(bias) = self.bias.as_ref().filter(|bias| bias.positions() < s) {
            candle_core::bail!(
                "attention over {s} keys needs a bias of at least {s} positions, got {}",
                bias.positions()
            )
        }
        mask.check((b, h, t), s)?;
        Ok((h, t))
    }
}

fn is_empty(tensors: &[&Tensor]) -> bool {
    tensors.iter().any(|x| x.elem_count() == 0)
}
