//! Causal attention: `softmax(q·kᵀ·scale + mask)·v`, the one seam that every caller uses.
//!
//! Scaled dot-product attention of Vaswani et al. 2017, §3.2.1, where a query sees only the keys at its
//! own position and before it. With S keys in front of T queries (a cache), query `i` sits at position
//! `S - T + i`: the mask is aligned at its bottom right corner, and the same rule serves a whole prompt,
//! a chunk of one and a single decoded token.

mod cpu;
mod eager;
mod softmax;

use crate::Dropout;
use candle_core::{DType, Device, Result, Tensor};

/// Which code computes attention, by the names that transformers' `attn_implementation` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Implementation {
    /// One kernel with no (T, S) tensor, forward and backward, where device and dtype allow it: the CPU in
    /// f32, f16 and bf16. Where the weights are asked for, too, mask and softmax are one operation (CPU,
    /// f32). Everything else takes the eager path, with the same result.
    #[default]
    Fused,
    /// Plain differentiable Candle operations with a (T, S) tensor of weights: the definition.
    Eager,
}

/// What each query may see. One polarity everywhere: 1 is visible, 0 is hidden.
#[derive(Debug, Clone, Copy, Default)]
pub struct CausalMask<'a> {
    /// The lower triangle, u8 (1, 1, N, N) with N >= S: GPT-2's `bias` buffer, see [`causal_bias`]. Only
    /// the eager path reads it, and makes one of its own where there is none.
    pub tril: Option<&'a Tensor>,
    /// Keys that are padding, u8 (B, S), or `None` when there are none.
    pub padding: Option<&'a Tensor>,
}

impl CausalMask<'_> {
    /// The padding mask's values, row by row, for kernels on the CPU.
    fn padding_values(&self) -> Result<Option<Vec<u8>>> {
        self.padding.map(|p| p.flatten_all()?.to_vec1()).transpose()
    }
}

/// GPT-2's `bias` buffer: the u8 lower triangle (1, 1, n, n), 1 = visible.
///
/// # Errors
/// When the device cannot hold it.
pub fn causal_bias(n: usize, device: &Device) -> Result<Tensor> {
    let mut tril = vec![0u8; n * n];
    for (i, row) in tril.chunks_exact_mut(n.max(1)).enumerate() {
        row[..=i].fill(1);
    }
    Tensor::from_vec(tril, (1, 1, n, n), device)
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
        check(q, k, v, mask)?;
        let rows = q.elem_count() / q.dim(3)?.max(1);
        if self.dropout.is_some() && u32::try_from(rows).is_err() {
            candle_core::bail!(
                "causal attention: dropout on {rows} rows of weights, which are more than 2^32"
            )
        }
        if self.implementation == Implementation::Fused && has_fused_kernel(q, k, v) {
            let op = cpu::CpuAttention::new(self.scale, mask.padding_values()?, self.dropout);
            return q.apply_op3(k, v, op);
        }
        let weights = self.weights(q, k, mask)?; // (B, H, T, S)
        eager::context(&weights, v, q.dtype())
    }

    fn weights(&self, q: &Tensor, k: &Tensor, mask: CausalMask) -> Result<Tensor> {
        let f32s = q.device().is_cpu() && q.dtype() == DType::F32;
        let weights = if self.implementation == Implementation::Eager || !f32s {
            eager::weights(q, k, self.scale, mask)?
        } else {
            let scores = eager::scores(q, k, self.scale)?; // (B, H, T, S)
            scores.apply_op1(softmax::CausalSoftmax { padding: mask.padding_values()? })?
        };
        self.dropout.map_or(Ok(weights.clone()), |dropout| dropout.apply(&weights))
    }

    /// As [`forward`](Self::forward), and the attention weights beside it, as they meet v: after dropout.
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
        check(q, k, v, mask)?;
        let weights = self.weights(q, k, mask)?; // (B, H, T, S)
        Ok((eager::context(&weights, v, q.dtype())?, weights))
    }
}

/// Whether the fused kernel computes this.
fn has_fused_kernel(q: &Tensor, k: &Tensor, v: &Tensor) -> bool {
    let empty = [q, k, v].iter().any(|x| x.elem_count() == 0);
    let dtype = matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16);
    q.device().is_cpu() && dtype && k.dtype() == q.dtype() && v.dtype() == q.dtype() && !empty
}

/// Refuses what does not fit, with every shape in the message.
fn check(q: &Tensor, k: &Tensor, v: &Tensor, mask: CausalMask) -> Result<()> {
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
    if let Some(tril) = mask.tril {
        match tril.dims() {
            [1, 1, n, m] if n == m && *n >= s && tril.dtype() == DType::U8 => {}
            dims => candle_core::bail!(
                "causal attention over {s} keys needs a u8 bias of shape [1, 1, N, N] with N >= {s}, got {:?} \
                 {dims:?}",
                tril.dtype()
            ),
        }
    }
    match mask.padding {
        Some(p) if p.dims() != [b, s] || p.dtype() != DType::U8 => candle_core::bail!(
            "causal attention: padding mask must be u8 [{b}, {s}] (1 = visible), got {:?} {:?}",
            p.dtype(),
            p.dims()
        ),
        _ => Ok(()),
    }
}
