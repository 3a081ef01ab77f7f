//! Several heads in the papers' notation: `Concat(head_1, .., head_H)·W_O` with
//! `head_h = softmax(mask(Q_h·K_hᵀ)/√d_k)·V_h` and `Q_h, K_h, V_h = x·W_h^Q, x·W_h^K, x·W_h^V`.
//!
//! Vaswani et al. 2017, §3.2.2. The text on the capital of France has it without a mask and with `W_O`, "The Mechanics
//! of Causal Self Attention" with a mask and without `W_O`. Matrices multiply from the right and have no bias;
//! `d_k` and `d_v` need not be equal.

use crate::causal_attention::{causal_mask, masked_weights};
use crate::self_attention::{scale, scores};
use crate::simple::{context, softmax};
use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Init, Linear, VarBuilder};

/// The three matrices of one head.
#[derive(Debug, Clone)]
pub struct PerHeadProjections {
    /// `W_h^Q` (`d_model`, `d_k`)
    pub w_q: Tensor,
    /// `W_h^K` (`d_model`, `d_k`)
    pub w_k: Tensor,
    /// `W_h^V` (`d_model`, `d_v`)
    pub w_v: Tensor,
}

/// The sizes of [`PerHeadAttention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerHeadSizes {
    /// The width of `x`.
    pub d_model: usize,
    /// The width of a query and of a key; the papers take `d_model / n_head`.
    pub d_k: usize,
    /// The width of a value; the papers take `d_k`.
    pub d_v: usize,
    /// H, the number of heads.
    pub n_head: usize,
}

/// Attention with matrices for each head.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_model::init;
/// use gpt2_lessons::{MultiHeadAttention, PerHeadAttention, PerHeadSizes};
///
/// # fn main() -> candle_core::Result<()> {
/// let sizes = PerHeadSizes { d_model: 6, d_k: 2, d_v: 2, n_head: 3 };
/// let attn = PerHeadAttention::load(init::seeded(0, DType::F32, &Device::Cpu), sizes, true)?;
/// let x = Tensor::randn(0f32, 1., (4, 12, 6), &Device::Cpu)?; // (B, T, d_model)
/// let fused = MultiHeadAttention::from_per_head(&attn, 12)?;
/// let difference = (attn.forward(&x)? - fused.forward(&x)?)?.abs()?.max_all()?;
/// assert!(difference.to_scalar::<f32>()? < 1e-5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PerHeadAttention {
    /// The heads, in the order of their results.
    pub heads: Vec<PerHeadProjections>,
    /// `W_O` (H·`d_v`, `d_model`); without it the heads are returned side by side.
    pub w_o: Option<Tensor>,
    /// Whether a word sees only itself and the words before it.
    pub causal: bool,
}

impl PerHeadAttention {
    /// Loads `heads.0.W_Q`, `heads.0.W_K`, `heads.0.W_V`, .. and `W_O`.
    ///
    /// # Errors
    /// When a size is 0, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, sizes: PerHeadSizes, causal: bool) -> Result<Self> {
        let PerHeadSizes { d_model, d_k, d_v, n_head } = sizes;
        if [d_model, d_k, d_v, n_head].contains(&0) {
            candle_core::bail!("PerHeadAttention: no size may be 0, got {sizes:?}")
        }
        let get = |vb: &VarBuilder, name, n_in: usize, n_out| {
            let bound = 1. / (n_in as f64).sqrt();
            vb.get_with_hints((n_in, n_out), name, Init::Uniform { lo: -bound, up: bound })
        };
        let load = |h: usize| {
            let vb = vb.pp(format!("heads.{h}"));
            Result::Ok(PerHeadProjections {
                w_q: get(&vb, "W_Q", d_model, d_k)?,
                w_k: get(&vb, "W_K", d_model, d_k)?,
                w_v: get(&vb, "W_V", d_model, d_v)?,
            })
        };
        let heads = (0..n_head).map(load).collect::<Result<Vec<_>>>()?;
        Ok(Self { heads, w_o: Some(get(&vb, "W_O", n_head * d_v, d_model)?), causal })
    }

    /// `Concat(head_1, .., head_H)·W_O`.
    ///
    /// # Shapes
    /// `x` (.., T, `d_model`) -> (.., T, `d_model`), or (.., T, H·`d_v`) without `W_O`
    ///
    /// # Errors
    /// When there is no head, or the shapes do not fit.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let heads = self.heads.iter().map(|head| self.head(head, x)).collect::<Result<Vec<_>>>()?;
        if heads.is_empty() {
            candle_core::bail!("PerHeadAttention: needs a head at least")
        }
        let concat = Tensor::cat(&heads, D::Minus1)?; // (.., T, H·d_v)
        match &self.w_o {
            Some(w_o) => times(&concat, w_o, "W_O"),
            None => Ok(concat),
        }
    }

    /// `softmax(mask(Q_h·K_hᵀ)/√d_k)·V_h`: (.., T, `d_v`).
    fn head(&self, head: &PerHeadProjections, x: &Tensor) -> Result<Tensor> {
        let [q, k] = [times(x, &head.w_q, "W_Q")?, times(x, &head.w_k, "W_K")?]; // (.., T, d_k)
        let v = times(x, &head.w_v, "W_V")?; // (.., T, d_v)
        let scores = scale(&scores(&q, &k)?, k.dim(D::Minus1)?)?; // (.., T, T)
        let weights = if self.causal {
            masked_weights(&scores, &causal_mask(k.dim(D::Minus2)?, x.device())?)?
        } else {
            softmax(&scores)?
        };
        context(&weights, &v)
    }
}

/// `x·W`, for `x` (.., T, in) and W (in, out).
fn times(x: &Tensor, w: &Tensor, name: &str) -> Result<Tensor> {
    let (n_in, _) = w.dims2()?;
    if x.elem_count() == 0 {
        candle_core::bail!("PerHeadAttention: x {:?} holds no word", x.dims())
    }
    if x.rank() < 2 || x.dim(D::Minus1)? != n_in {
        candle_core::bail!("PerHeadAttention: x {:?} must be (.., T, {n_in}) for {name}", x.dims())
    }
    Linear::new(w.t()?, None).forward(x)
}
