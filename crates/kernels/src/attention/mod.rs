//! Causal attention: `softmax(q·kᵀ·scale + mask)·v`. Every caller goes through this interface.
//!
//! Scaled dot-product attention of Vaswani et al. 2017, §3.2.1, where a query sees only the keys at its
//! own position and before it. With S keys and T queries (a cache holds the other keys), query `i` sits
//! at position `S - T + i`: the mask is aligned at its bottom right corner. The same rule covers a whole
//! prompt, a chunk of a prompt and a single decoded token.

mod bias;
mod cpu;
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
mod cuda;
mod drop_weights;
mod eager;
mod gpu;
mod gpu_kernel;
mod heads;
mod mask;
#[cfg(feature = "metal")]
mod metal;
mod packed;
mod request;
mod softmax;
mod summary;
#[cfg(test)]
mod tests;
mod weights;

pub use bias::{CausalBias, causal_bias};
pub use heads::HeadLayout;
pub use mask::{CausalMask, Hidden};
pub use packed::packed_part;
pub use request::{Chosen, Wanted};
pub use summary::Summary;

use crate::dispatch::{Dispatch, Implementation};
use crate::dropout::Dropout;
use candle_core::{DType, Result, Tensor};
use cpu::CpuAttention;
use drop_weights::WeightDropout;
use gpu_kernel::GpuKernel;
use request::select;
use weights::{Code, dropped, weights};

/// The result of attention.
#[derive(Debug)]
pub struct Attended {
    /// `weights·v`, (B, T, H, D).
    pub context: Tensor,
    /// A tensor (B, heads, queries, S) for each entry of [`Wanted::weights`], in f32, or f64 for f64 inputs.
    pub weights: Vec<Tensor>,
    /// The summary, if it was asked for.
    pub summary: Option<Summary>,
}

/// Causal scaled dot-product attention (SDPA) with a fixed scale.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gpt2_kernels::attention::{CausalSdpa, CausalMask};
/// use gpt2_kernels::{Dispatch, Implementation};
///
/// # fn main() -> candle_core::Result<()> {
/// let (b, h, t, d) = (2, 3, 5, 4);
/// let q = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let k = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let v = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let attention = CausalSdpa::new(1. / (d as f64).sqrt(), Dispatch::of(Implementation::Auto, &q));
/// let context = attention.forward(&q, &k, &v, CausalMask::default())?;
/// assert_eq!(context.dims(), [b, t, h, d]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalSdpa {
    scale: f64,
    dispatch: Dispatch,
    bias: Option<CausalBias>,
    heads: Option<HeadLayout>,
    dropout: Option<Dropout>,
}

impl CausalSdpa {
    /// Attention that multiplies scores by `scale` (GPT-2: `1 / sqrt(D)`) before the softmax, run by the code that
    /// `dispatch` selects.
    #[must_use]
    pub fn new(scale: f64, dispatch: Dispatch) -> Self {
        Self { scale, dispatch, bias: None, heads: None, dropout: None }
    }

    /// The same attention, but its eager path reads the causal triangle from `bias` instead of making one in each
    /// call. S can then be at most the triangle's N.
    #[must_use]
    pub fn with_bias(self, bias: &CausalBias) -> Self {
        Self { bias: Some(bias.clone()), ..self }
    }

    /// The same attention for some of a layer's heads: dropout then treats them as it does within the whole layer.
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

    /// Whether weights are dropped.
    #[must_use]
    pub fn has_dropout(&self) -> bool {
        self.dropout.is_some()
    }

    /// The factor on the scores.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The context of each query, `weights·v`. Scores, softmax and sums are f32 or wider; the result
    /// has the dtype of `q`, which `k` and `v` are converted to if they have another; on the CPU, the fused kernels read
    /// halves under f32 in place. A query with no visible key gets a context of zeros.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` and `v` (B, H, S, D), with any strides -> (B, T, H, D), contiguous, so
    /// that merging the heads is a reshape.
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: CausalMask) -> Result<Tensor> {
        Ok(self.attend(q, k, v, mask, Wanted::default())?.context)
    }

    /// Like [`forward`](Self::forward), but also returns the weights of all heads and queries, after
    /// dropout, as they multiply v.
    ///
    /// # Shapes
    /// context (B, T, H, D), weights (B, H, T, S) in f32, or in f64 for f64 inputs.
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask.
    pub fn forward_with_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: CausalMask,
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
    /// `q` (B, H, T, D), `k` and `v` (B, H, S, D) -> see [`Attended`]
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask, or a chosen head or query does not exist.
    pub fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: CausalMask,
        wanted: Wanted,
    ) -> Result<Attended> {
        let (h, t) = self.check(q, k, v, mask)?;
        let in_place = self.reads_halves(q, k, v);
        let as_read = |x: &Tensor| if in_place { Ok(x.clone()) } else { x.to_dtype(q.dtype()) };
        let (k, v) = (&as_read(k)?, &as_read(v)?);
        let rows = q.dim(0)? * self.heads.map_or(h, |heads| heads.total) * t;
        if self.dropout.is_some() && u32::try_from(rows).is_err() {
            candle_core::bail!(
                "causal attention: dropout on {rows} rows of weights, expected fewer than 2^32"
            )
        }
        if in_place || self.has_cpu_kernel(&[q, k, v]) {
            let op = CpuAttention::new(self.scale, mask.on_cpu(h)?, self.weight_dropout(q)?, wanted.summary);
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

    /// The summary by the eager path, where one is wanted.
    fn eager_summary(
        &self,
        qk: (&Tensor, &Tensor),
        mask: CausalMask,
        wanted: Wanted,
    ) -> Result<Option<Summary>> {
        let summary = || Summary::eager(qk, self.scale, (mask, self.bias.as_ref()));
        wanted.summary.then(summary).transpose()
    }

    /// The weights of chosen heads and queries alone, after dropout, as they multiply v. A gradient flows through them
    /// to q and k.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, H, S, D) -> (B, heads, queries, S) in f32, or in f64 for f64 inputs
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask, or a chosen head or query does not exist.
    pub fn weights(&self, q: &Tensor, k: &Tensor, mask: CausalMask, chosen: &Chosen) -> Result<Tensor> {
        let (h, t) = self.check(q, k, k, mask)?;
        let k = &k.to_dtype(q.dtype())?;
        let rows = chosen.resolve(h, t)?;
        let code =
            if self.has_cpu_kernel(&[q, k]) { Code::CpuKernel } else { Code::Eager(self.bias.as_ref()) };
        let weights = weights((q, k), self.scale, mask, rows.clone(), code)?;
        match &self.weight_dropout(q)? {
            Some(dropout) => dropped(&weights, dropout, &rows),
            None => Ok(weights),
        }
    }

    /// Which code [`forward`](Self::forward) runs for these tensors: `Fused` if there is a kernel for them.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn runs(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: CausalMask) -> Result<Implementation> {
        let fused = self.reads_halves(q, k, v)
            || self.has_cpu_kernel(&[q, k, v])
            || self.gpu_kernel([q, k, v], mask)?.is_some();
        Ok(if fused { Implementation::Fused } else { Implementation::Eager })
    }

    /// The dropout for queries `q` (B, H, T, D).
    fn weight_dropout(&self, q: &Tensor) -> Result<Option<WeightDropout>> {
        let (_, h, t, d) = q.dims4()?;
        let heads = self.heads.unwrap_or(HeadLayout::all(h, d));
        Ok(self.dropout.map(|dropout| WeightDropout::new(dropout, heads, t)))
    }

    /// Whether the CPU kernels read keys and values in halves in place, under queries in f32: if no gradient is needed.
    fn reads_halves(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> bool {
        let all = [q, k, v];
        let halves = matches!(k.dtype(), DType::F16 | DType::BF16) && k.dtype() == v.dtype();
        halves
            && q.dtype() == DType::F32
            && self.has_cpu_kernel(&[q])
            && !is_empty(&all)
            && all.iter().all(|x| x.device().is_cpu() && !x.track_op())
    }

    /// Whether the CPU kernels can compute this.
    fn has_cpu_kernel(&self, qkv: &[&Tensor]) -> bool {
        self.dispatch.cpu_attention(qkv) && !is_empty(qkv)
    }

    /// The GPU kernel that computes this, if the caller asked for one and there is one.
    fn gpu_kernel(&self, qkv: [&Tensor; 3], mask: CausalMask) -> Result<Option<Box<dyn GpuKernel>>> {
        if !self.dispatch.gpu_kernels() || is_empty(&qkv) {
            return Ok(None);
        }
        gpu::kernel(qkv, self.scale, mask, self.weight_dropout(qkv[0])?)
    }

    /// Returns H and T. Fails if the shapes do not fit, naming every shape in the message.
    fn check(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: CausalMask) -> Result<(usize, usize)> {
        let (b, h, t, d) = q.dims4()?;
        let (kb, kh, s, kd) = k.dims4()?;
        if (kb, kh, kd) != (b, h, d) || s < t || v.dims() != k.dims() {
            candle_core::bail!(
                "causal attention: q {:?} needs k and v of shape [{b}, {h}, S, {d}] with S >= {t}, got k {:?}, v {:?}",
                q.dims(),
                k.dims(),
                v.dims()
            )
        }
        if let Some(heads) = self.heads.filter(|heads| (heads.heads, heads.dim) != (h, d)) {
            candle_core::bail!(
                "causal attention: q {:?} does not have {} heads of width {}",
                q.dims(),
                heads.heads,
                heads.dim
            )
        }
        if t == 0 {
            candle_core::bail!("causal attention: no query, q is {:?}", q.dims())
        }
        if let Some(bias) = self.bias.as_ref().filter(|bias| bias.positions() < s) {
            candle_core::bail!(
                "causal attention over {s} keys needs a bias of at least {s} positions, got {}",
                bias.positions()
            )
        }
        mask.check((b, h, t), s)?;
        Ok((h, t))
    }

    /// The context for weights that you supply, in the layout of [`forward`](Self::forward).
    ///
    /// # Shapes
    /// `weights` (B, H, T, S), `v` (B, H, S, D) -> (B, T, H, D) in the dtype of `v`
    ///
    /// # Errors
    /// When the shapes do not fit each other.
    pub fn context(weights: &Tensor, v: &Tensor) -> Result<Tensor> {
        eager::context(weights, v, v.dtype())
    }
}

fn is_empty(tensors: &[&Tensor]) -> bool {
    tensors.iter().any(|x| x.elem_count() == 0)
}
