//! Causal attention on Metal through Candle's own `sdpa`.

use crate::attention::inputs::Inputs;
use candle_core::{DType, Result, Tensor};

/// The head widths that the one-query kernel supports.
const WIDTHS_ONE: [usize; 5] = [32, 64, 96, 128, 256];
/// The head widths that the many-query kernel supports, limited to those for which it takes 32 keys at once.
const WIDTHS_MANY: [usize; 5] = [32, 64, 72, 80, 96];

/// Whether `sdpa` computes this. It supports neither gradients, nor hidden keys, nor our padding, where a query that sees no
/// key gets zeros.
pub(super) fn computes(inputs: &Inputs) -> bool {
    let &[_, _, t, d] = inputs.layouts[0].dims() else { return false };
    let width = if t == 1 { WIDTHS_ONE.contains(&d) } else { WIDTHS_MANY.contains(&d) };
    let dtype = matches!(inputs.dtypes[0], DType::F32 | DType::F16 | DType::BF16);
    width && dtype && !inputs.gradient && !inputs.padding && !inputs.hidden
}

/// The context (B, T, H, D) of q (B, H, T, D), k and v (B, H, S, D).
pub(super) fn forward([q, k, v]: [&Tensor; 3], scale: f64) -> Result<Tensor> {
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    let scale = scale as f32;
    let context = if q.dim(2)? == 1 { one(q, k, v, scale)? } else { many(q, k, v, scale)? }; // (B, H, T, D)
    context.transpose(1, 2)?.contiguous() // (B, T, H, D)
}

/// One query. The kernel steps through k and v by one stride from head to head, over all rows of the batch. A cache with room
/// for more has no such stride: its rows run one by one, because a copy would be of the whole cache.
fn one(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let q = q.contiguous()?;
    let attend = |q: &Tensor, k: &Tensor, v: &Tensor| {
        candle_nn::ops::sdpa(q, &in_order(k)?, &in_order(v)?, None, false, scale, 1.0)
    };
    if one_stride(k) && one_stride(v) {
        return attend(&q, k, v);
    }
    let row = |b| attend(&q.narrow(0, b, 1)?, &k.narrow(0, b, 1)?, &v.narrow(0, b, 1)?);
    Tensor::cat(&(0..q.dim(0)?).map(row).collect::<Result<Vec<_>>>()?, 0)
}

/// Several queries. With a cache before them, the kernel's own causal mask leaves out a block of keys for some S, so
/// it gets ours.
fn many(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let ((b, h, t, _), s) = (q.dims4()?, k.dim(2)?);
    let q = rows(q)?;
    let k = rows(k)?;
    let v = rows(v)?;
    if t == s {
        return candle_nn::ops::sdpa(&q, &k, &v, None, true, scale, 1.0);
    }
    let places =
        |from: usize, end: usize| Tensor::arange(u32::try_from(from)?, u32::try_from(end)?, q.device());
    let visible = places(s - t, s)?.unsqueeze(1)?.broadcast_ge(&places(0, s)?.unsqueeze(0)?)?; // (T, S)
    let zeros = Tensor::zeros((t, s), DType::F32, q.device())?;
    let mask = visible.where_cond(&zeros, &Tensor::full(f32::NEG_INFINITY, (t, s), q.device())?)?;
    let mask = mask.to_dtype(q.dtype())?.unsqueeze(0)?.unsqueeze(0)?;
    candle_nn::ops::sdpa(&q, &k, &v, Some(&mask.broadcast_as((b, h, t, s))?), false, scale, 1.0)
}

/// Whether one stride leads from head to head, through all rows of the batch, and D from key to key.
fn one_stride(x: &Tensor) -> bool {
    matches!(
        (x.dims(), x.stride()),
        (&[b, h, _, d], &[batch, head, position, 1]) if position == d && (b == 1 || batch == head * h)
    )
}

/// Returns `x` if the kernel can read its order, otherwise a contiguous copy, whatever its strides are.
fn in_order(x: &Tensor) -> Result<Tensor> {
    if one_stride(x) { Ok(x.clone()) } else { x.force_contiguous() }
}

/// Makes D contiguous within each position.
fn rows(x: &Tensor) -> Result<Tensor> {
    if x.stride()[3] == 1 { Ok(x.clone()) } else { x.contiguous() }
}
