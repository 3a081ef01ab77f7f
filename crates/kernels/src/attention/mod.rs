//! Causal attention: `softmax(q·kᵀ·scale + mask)·v`, the one seam that every caller uses.
//!
//! Scaled dot-product attention of Vaswani et al. 2017, §3.2.1, where a query sees only the keys at its
//! own position and before it. With S keys in front of T queries (a cache), query `i` sits at position
//! `S - T + i`: the mask is aligned at its bottom right corner, and the same rule serves a whole prompt,
//! a chunk of one and a single decoded token.

mod cpu;
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
mod cuda;
mod eager;
mod gpu;
mod mask;
#[cfg(feature = "metal")]
mod metal;
mod softmax;
mod summary;
mod weights;

pub use mask::{CausalMask, Hidden, causal_bias};
pub use summary::Summary;
pub use weights::Chosen;

use crate::Dropout;
use candle_core::{DType, Device, Result, Tensor};

/// Which code computes attention and, on GPUs, the layers around it; `Fused` and `Eager` by the names that transformers' `attn_implementation` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Implementation {
    /// What has been shown right on the device at hand: fused on the CPU, eager on GPUs, where the fused kernels have not run.
    #[default]
    Auto,
    /// One kernel with no (T, S) tensor, where device, dtype and shape allow it; everything else takes the eager
    /// path, with the same result.
    ///
    /// On the CPU f32, f16 and bf16, forward and backward, with kernels beside it for weights and summaries. On CUDA f32, f16 and
    /// bf16, D 32, 64, 80, 96 or 128, without dropout and hidden keys; its backward pass is the eager one. On
    /// Metal what Candle's `sdpa` computes, where no gradient is asked for.
    Fused,
    /// Plain differentiable Candle operations with a (T, S) tensor of weights: the definition.
    Eager,
}

impl Implementation {
    /// The name in lower case, as the command line has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fused => "fused",
            Self::Eager => "eager",
        }
    }

    /// What `Auto` means on a device.
    #[must_use]
    pub fn on(self, device: &Device) -> Self {
        match self {
            Self::Auto if device.is_cpu() => Self::Fused,
            Self::Auto => Self::Eager,
            chosen => chosen,
        }
    }
}

/// What is handed back beside the context. Neither part slows down the fused kernel's work on the context.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The exact weights of these heads and queries.
    pub weights: &'a [Chosen],
    /// A few numbers on the weights of every head and query.
    pub summary: bool,
}

/// What attention computed.
#[derive(Debug)]
pub struct Attended {
    /// `weights·v`, (B, T, H, D).
    pub context: Tensor,
    /// A tensor (B, heads, queries, S) for each of [`Wanted::weights`], f32, or f64 for f64 inputs.
    pub weights: Vec<Tensor>,
    /// Where it was asked for.
    pub summary: Option<Summary>,
}

/// Causal attention with a fixed scale.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gpt2_kernels::attention::{CausalAttention, CausalMask};
///
/// # fn main() -> candle_core::Result<()> {
/// let (b, h, t, d) = (2, 3, 5, 4);
/// let q = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let k = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let v = Tensor::randn(0f32, 1., (b, h, t, d), &Device::Cpu)?;
/// let attention = CausalAttention::new(1. / (d as f64).sqrt());
/// let context = attention.forward(&q, &k, &v, CausalMask::default())?;
/// assert_eq!(context.dims(), [b, t, h, d]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CausalAttention {
    scale: f64,
    implementation: Implementation,
    dropout: Option<Dropout>,
}

impl CausalAttention {
    /// Attention whose scores are multiplied by `scale` (GPT-2: `1 / sqrt(D)`) before the softmax.
    #[must_use]
    pub fn new(scale: f64) -> Self {
        Self { scale, implementation: Implementation::default(), dropout: None }
    }

    /// The same attention computed by `implementation`.
    #[must_use]
    pub fn with_implementation(self, implementation: Implementation) -> Self {
        Self { implementation, ..self }
    }

    /// The same attention with dropout on its weights, after the softmax: for training. Row `(b·H + h)·T + i`
    /// of the mask meets query i of head h of row b. Kernels draw it again where they need it.
    #[must_use]
    pub fn with_dropout(self, dropout: Option<Dropout>) -> Self {
        Self { dropout: dropout.filter(|dropout| dropout.rate() > 0.0), ..self }
    }

    /// The factor on the scores.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The code that [`forward`](Self::forward) runs.
    #[must_use]
    pub fn implementation(&self) -> Implementation {
        self.implementation
    }

    /// The context of each query, `weights·v`. Scores, softmax and sums are f32 or wider; the result
    /// has the dtype of `q`. A query with no visible key gives zeros.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` and `v` (B, H, S, D), of any strides -> (B, T, H, D), contiguous: merging
    /// the heads is a reshape.
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: CausalMask) -> Result<Tensor> {
        Ok(self.attend(q, k, v, mask, Wanted::default())?.context)
    }

    /// As [`forward`](Self::forward), and the weights of all heads and queries beside it, as they meet v:
    /// after dropout.
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

    /// As [`forward`](Self::forward), and what is `wanted` beside the context.
    ///
    /// Weights are those that meet v, after dropout, and a gradient passes through them to q and k; a
    /// [`Summary`] is of the weights before dropout, and has no gradient.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` and `v` (B, H, S, D) -> see [`Attended`]
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask, or a head or query that was chosen is not there.
    pub fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: CausalMask,
        wanted: Wanted,
    ) -> Result<Attended> {
        let (h, t) = check(q, k, v, mask)?;
        let rows = q.elem_count() / q.dim(3)?.max(1);
        if self.dropout.is_some() && u32::try_from(rows).is_err() {
            candle_core::bail!(
                "causal attention: dropout on {rows} rows of weights, which are more than 2^32"
            )
        }
        if self.is_fused(q, k, v) {
            let op = cpu::CpuAttention::new(self.scale, mask.on_cpu(h)?, self.dropout, wanted.summary);
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
            let summary = wanted.summary.then(|| Summary::eager((q, k), self.scale, mask)).transpose()?;
            return Ok(Attended { context, weights, summary });
        }
        let all = self.weights(q, k, mask, &Chosen::default())?; // (B, H, T, S)
        let of_all = |chosen: &Chosen| {
            let rows = chosen.resolve(h, t)?;
            weights::select(&weights::select(&all, 1, &rows.heads)?, 2, &rows.queries)
        };
        Ok(Attended {
            context: eager::context(&all, v, q.dtype())?,
            weights: wanted.weights.iter().map(of_all).collect::<Result<_>>()?,
            summary: wanted.summary.then(|| Summary::eager((q, k), self.scale, mask)).transpose()?,
        })
    }

    /// The weights of chosen heads and queries alone, as they meet v: after dropout. A gradient passes through them to
    /// q and k.
    ///
    /// # Shapes
    /// `q` (B, H, T, D), `k` (B, H, S, D) -> (B, heads, queries, S) in f32, or in f64 for f64 inputs
    ///
    /// # Errors
    /// When the shapes do not fit each other or the mask, or a head or query that was chosen is not there.
    pub fn weights(&self, q: &Tensor, k: &Tensor, mask: CausalMask, chosen: &Chosen) -> Result<Tensor> {
        let (h, t) = check(q, k, k, mask)?;
        let rows = chosen.resolve(h, t)?;
        let weights = weights::weights((q, k), self.scale, mask, rows.clone(), self.is_fused(q, k, k))?;
        match &self.dropout {
            Some(dropout) => weights::dropped(&weights, dropout, &rows, h),
            None => Ok(weights),
        }
    }

    /// Which code [`forward`](Self::forward) runs for these tensors: `Fused` where there is a kernel for them.
    ///
    /// # Errors
    /// When the device does not answer.
    pub fn runs(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: CausalMask) -> Result<Implementation> {
        let fused = self.is_fused(q, k, v) || self.gpu_kernel([q, k, v], mask)?.is_some();
        Ok(if fused { Implementation::Fused } else { Implementation::Eager })
    }

    /// Whether the kernels of the CPU compute this.
    fn is_fused(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> bool {
        self.implementation.on(q.device()) == Implementation::Fused && has_fused_kernel(q, k, v)
    }

    /// The kernel of a GPU that computes this, where one is asked for and there is one.
    fn gpu_kernel(&self, qkv: [&Tensor; 3], mask: CausalMask) -> Result<Option<Box<dyn gpu::Kernel>>> {
        let empty = qkv.iter().any(|x| x.elem_count() == 0);
        let plain = self.dropout.is_none() && mask.hidden.is_empty();
        if self.implementation != Implementation::Fused || !plain || empty {
            return Ok(None);
        }
        gpu::kernel(qkv, self.scale, mask.padding)
    }

    /// The context that weights of one's own give, as [`forward`](Self::forward) has it.
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

/// Whether the kernels of the CPU take tensors such as these.
fn has_fused_kernel(q: &Tensor, k: &Tensor, v: &Tensor) -> bool {
    let empty = [q, k, v].iter().any(|x| x.elem_count() == 0);
    let dtype = matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16);
    q.device().is_cpu() && dtype && k.dtype() == q.dtype() && v.dtype() == q.dtype() && !empty
}

/// H and T; refuses what does not fit, with every shape in the message.
fn check(q: &Tensor, k: &Tensor, v: &Tensor, mask: CausalMask) -> Result<(usize, usize)> {
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
    if t == 0 {
        candle_core::bail!("causal attention: no query, q is {:?}", q.dims())
    }
    mask.check((b, h, t), s)?;
    Ok((h, t))
}
