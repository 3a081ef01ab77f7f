//! Self-attention with weights to train: `softmax(q·kᵀ/√d)·v` with `q, k, v = x·W_query, x·W_key, x·W_value`.
//!
//! A word looks for one thing, offers a second and says a third, so `x` is projected three times (Vaswani et al.
//! 2017, §3.2.1). "Coding Attention Mechanisms" first writes the matrices as parameters (in, out), its v1, and then as linear layers (out, in), its v2; "Implementing GPT-Style Attention" has v2 with
//! a bias; the text on the capital of France only defines the function of q, k and v.

use crate::simple::{context, softmax};
use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Init, Linear, VarBuilder};

/// Scores how well each query matches each key: `q·kᵀ`, not yet scaled.
///
/// # Shapes
/// `q` (.., T, d), `k` (.., S, d) -> (.., T, S)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn scores(q: &Tensor, k: &Tensor) -> Result<Tensor> {
    q.matmul(&k.transpose(D::Minus2, D::Minus1)?)
}

/// The scores divided by `√d`, d the width of a key.
///
/// A sum of d products of independent numbers of variance 1 has variance d; divided by `√d` it has variance
/// 1 again ("The Mechanics of Causal Self Attention"). Without the scale, the softmax of wide keys is almost one-hot, and its
/// gradient almost 0.
///
/// # Shapes
/// `scores` (.., T, S) -> (.., T, S)
///
/// # Errors
/// When the device fails.
pub fn scale(scores: &Tensor, d: usize) -> Result<Tensor> {
    scores / (d as f64).sqrt()
}

/// Scaled dot-product attention, `softmax(q·kᵀ/√d)·v`: every query sees every key.
///
/// # Shapes
/// `q` (.., T, d), `k` (.., S, d), `v` (.., S, e) -> (.., T, e)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn scaled_dot_product_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let weights = softmax(&scale(&scores(q, k)?, k.dim(D::Minus1)?)?)?; // (.., T, S)
    context(&weights, v)
}

/// One head in which every word attends to every word.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_lessons::SelfAttention;
/// use gpt2_model::init;
///
/// # fn main() -> candle_core::Result<()> {
/// let attn = SelfAttention::load(init::seeded(789, DType::F32, &Device::Cpu), 3, 2, false)?;
/// let x = Tensor::randn(0f32, 1., (6, 3), &Device::Cpu)?; // (T, d_in)
/// assert_eq!(attn.forward(&x)?.dims(), [6, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SelfAttention {
    /// `d_in -> d_out`: what a word looks for.
    pub w_query: Linear,
    /// `d_in -> d_out`: what other words find it by.
    pub w_key: Linear,
    /// `d_in -> d_out`: what a word says.
    pub w_value: Linear,
}

impl SelfAttention {
    /// v1: the layer with three matrices that multiply from the right, `x·W`.
    ///
    /// A linear layer multiplies by its transpose, so it holds `Wᵀ`; this is the only difference between v1 and v2.
    ///
    /// # Shapes
    /// each (`d_in`, `d_out`)
    ///
    /// # Errors
    /// When the matrices differ in shape, or are empty.
    pub fn from_parameters(w_query: &Tensor, w_key: &Tensor, w_value: &Tensor) -> Result<Self> {
        let shape = <[usize; 2]>::from(w_query.dims2()?);
        if w_key.dims() != w_query.dims() || w_value.dims() != w_query.dims() {
            candle_core::bail!(
                "SelfAttention: W_query is {shape:?}, so W_key and W_value must be, got {:?} and {:?}",
                w_key.dims(),
                w_value.dims()
            )
        }
        if w_query.elem_count() == 0 {
            candle_core::bail!("SelfAttention: matrices of {shape:?} hold nothing")
        }
        let [w_query, w_key, w_value] =
            [w_query.t()?, w_key.t()?, w_value.t()?].map(|weight| Linear::new(weight, None));
        Ok(Self { w_query, w_key, w_value })
    }

    /// v1 from `W_query`, `W_key` and `W_value` (`d_in`, `d_out`) below `vb`; if `vb` creates variables,
    /// it draws them from `U(0, 1)`.
    ///
    /// # Errors
    /// When a matrix is missing or has another shape.
    pub fn load_parameters(vb: VarBuilder, d_in: usize, d_out: usize) -> Result<Self> {
        let get = |name| vb.get_with_hints((d_in, d_out), name, Init::Uniform { lo: 0., up: 1. });
        Self::from_parameters(&get("W_query")?, &get("W_key")?, &get("W_value")?)
    }

    /// v2: from the linear layers `W_query`, `W_key` and `W_value` below `vb`, weights (`d_out`, `d_in`).
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, d_in: usize, d_out: usize, qkv_bias: bool) -> Result<Self> {
        let [w_query, w_key, w_value] = load_qkv(&vb, d_in, d_out, qkv_bias)?;
        Ok(Self { w_query, w_key, w_value })
    }

    /// Queries, keys and values of `x`.
    ///
    /// # Shapes
    /// `x` (.., T, `d_in`) -> each (.., T, `d_out`)
    ///
    /// # Errors
    /// When `x` does not fit the layers.
    pub fn qkv(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        project("SelfAttention", x, [&self.w_query, &self.w_key, &self.w_value])
    }

    /// `softmax(q·kᵀ/√d)·v`.
    ///
    /// # Shapes
    /// `x` (.., T, `d_in`) -> (.., T, `d_out`)
    ///
    /// # Errors
    /// When `x` does not fit the layers.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [q, k, v] = self.qkv(x)?; // (.., T, d_out)
        scaled_dot_product_attention(&q, &k, &v)
    }
}

/// `W_query`, `W_key` and `W_value` below `vb`, each `d_in -> d_out`.
pub(crate) fn load_qkv(vb: &VarBuilder, d_in: usize, d_out: usize, bias: bool) -> Result<[Linear; 3]> {
    Ok([
        load_linear(vb.pp("W_query"), d_in, d_out, bias)?,
        load_linear(vb.pp("W_key"), d_in, d_out, bias)?,
        load_linear(vb.pp("W_value"), d_in, d_out, bias)?,
    ])
}

/// A linear layer `x·Wᵀ + b` in the layout of PyTorch's `nn.Linear`, W (out, in). If `vb` creates
/// variables, it draws them from that layer's own distribution, `U(-1/√in, 1/√in)`.
pub(crate) fn load_linear(vb: VarBuilder, n_in: usize, n_out: usize, bias: bool) -> Result<Linear> {
    if n_in == 0 || n_out == 0 {
        candle_core::bail!("{}: a layer of {n_in} inputs and {n_out} outputs is empty", vb.prefix())
    }
    let bound = 1. / (n_in as f64).sqrt();
    let init = Init::Uniform { lo: -bound, up: bound };
    let weight = vb.get_with_hints((n_out, n_in), "weight", init)?;
    let bias = if bias { Some(vb.get_with_hints(n_out, "bias", init)?) } else { None };
    Ok(Linear::new(weight, bias))
}

/// `x` (.., T, `d_in`) through the three layers: q, k and v, each (.., T, `d_out`).
///
/// Refuses an `x` without words, or one whose last dimension is not the layers' input width; the error names `who`.
pub(crate) fn project(who: &str, x: &Tensor, layers: [&Linear; 3]) -> Result<[Tensor; 3]> {
    let [query, key, value] = layers;
    if x.elem_count() == 0 {
        candle_core::bail!("{who}: x {:?} holds no word", x.dims())
    }
    if x.rank() < 2 {
        candle_core::bail!("{who}: x is {:?}, but must be (.., T, d_in): at least one row of words", x.dims())
    }
    for (name, layer) in [("W_query", query), ("W_key", key), ("W_value", value)] {
        let (_, n_in) = layer.weight().dims2()?;
        if x.dim(D::Minus1)? != n_in {
            candle_core::bail!("{who}: x {:?} does not end in the {n_in} inputs of {name}", x.dims())
        }
    }
    Ok([query.forward(x)?, key.forward(x)?, value.forward(x)?])
}
