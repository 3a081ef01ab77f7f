//! What a page shows of a layer besides its weights: the size of what each key contributes, queries and keys, the lens.

use super::predictions::most_likely;
use super::subject::Subject;
use candle_core::{DType, Device, Module, Result, Tensor};
use gpt2_model::CausalSelfAttention;
use rayon::prelude::*;

/// How many positions' logits to hold at a time.
const CHUNK: usize = 64;

/// What a layer's attention computed from, as its hook points have it, (1, T, heads, D) each.
#[derive(Debug, Default)]
pub(crate) struct LayerValues {
    pub(crate) q: Option<Tensor>,
    pub(crate) k: Option<Tensor>,
    pub(crate) v: Option<Tensor>,
}

/// The norm of what each key adds to the residual stream at weight 1, `‖v_j·W_O‖`, of some heads: (heads, S) in f32.
///
/// `v` (1, S, key heads, D)
pub(super) fn value_norms(attn: &CausalSelfAttention, heads: &[usize], v: &Tensor) -> Result<Tensor> {
    let v = v.squeeze(0)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?; // (S, key heads, D)
    let d = attn.heads().dim;
    let output = attn.c_proj.weight()?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?; // (H·D, C)
    let norms = heads.iter().map(|&head| {
        let o = output.narrow(0, head * d, d)?; // (D, C)
        let gram = o.matmul(&o.t()?)?; // (D, D)
        let v = of_head(&v, head, attn.n_head())?; // (S, D)
        // Rounding may take a square of 0 a little below it.
        (v.matmul(&gram)? * &v)?.sum(1)?.relu()?.sqrt()
    });
    Tensor::stack(&norms.collect::<Result<Vec<_>>>()?, 0)
}

/// The queries or keys of some heads, (heads, T, D) in f32, from (1, T, heads or key heads, D).
pub(super) fn vectors(x: &Tensor, heads: &[usize], all: usize) -> Result<Tensor> {
    let x = x.squeeze(0)?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    Tensor::stack(&heads.iter().map(|&head| of_head(&x, head, all)).collect::<Result<Vec<_>>>()?, 0)
}

/// One head of `all`, which may share keys and values: (S, key heads, D) -> (S, D)
fn of_head(x: &Tensor, head: usize, all: usize) -> Result<Tensor> {
    x.narrow(1, head * x.dim(1)? / all, 1)?.squeeze(1)?.contiguous()
}

/// The most probable token after each position, and its probability, if the residual stream after a block were the last:
/// `hidden` (T, C), normalized by `ln_f` already or not.
pub(crate) fn likely_by_layer(
    subject: &Subject,
    hidden: &Tensor,
    normed: bool,
) -> anyhow::Result<Vec<(String, f32)>> {
    let model = &subject.session.model;
    let mut all = vec![];
    let t = hidden.dim(0)?;
    for from in (0..t).step_by(CHUNK) {
        let rows = hidden.narrow(0, from, CHUNK.min(t - from))?;
        let rows = if normed { rows } else { model.transformer.ln_f.forward(&rows)? };
        let logits = model.lm_head.forward(&rows)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        subject.check_finite([&logits])?;
        let best = |row: &Vec<f32>| most_likely(row, None).0.first().copied().unwrap_or((0, f32::NAN));
        let (ids, likely): (Vec<u32>, Vec<f32>) = logits.to_vec2::<f32>()?.par_iter().map(best).unzip();
        all.extend(subject.session.labels(&ids).into_iter().zip(likely));
    }
    Ok(all)
}
