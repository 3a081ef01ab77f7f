//! The functions of `candle-flash-attn`, but for the one on paged caches, with the same arguments, for any device and dtype,
//! differentiable: a model written for that crate runs here with another `use`.
//!
//! Tensors are (B, S, H, D), or (all positions, H, D) for sequences of several lengths, in and out. Heads may share keys
//! and values. A window is unlimited where it is `None`; a causal one is aligned at the bottom right, and where there are
//! more queries than keys, the first queries see no key and get zeros.
//!
//! Differences: the width of a head may be anything; `k` and `v` in another dtype are converted to that of `q`; slopes lie
//! on any device. On the CPU the fused kernels run, on GPUs plain operations.
//! [`Sdpa`] offers more: weights, summaries, dropout, padding.

use crate::attention::{Lengths, Mask, Sdpa, Window};
use candle_core::{DType, Result, Tensor};
use std::sync::Arc;

/// `window_size_right` of an attention that is causal or not.
fn right(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

/// The attention that the arguments describe; a soft cap of 0 is none.
pub(crate) fn sdpa(
    softmax_scale: f32,
    window: Window,
    alibi_slopes: Option<&Tensor>,
    softcap: f32,
) -> Result<Sdpa> {
    Ok(Sdpa {
        scale: Some(f64::from(softmax_scale)),
        window,
        softcap: (softcap > 0.0).then_some(f64::from(softcap)),
        slopes: alibi_slopes.map(slopes).transpose()?.map(Arc::from),
        ..Sdpa::default()
    })
}

/// The slopes as numbers. Refuses those that need a gradient, which they would not get.
fn slopes(slopes: &Tensor) -> Result<Vec<f32>> {
    if slopes.track_op() {
        candle_core::bail!("attention: ALiBi's slopes get no gradient; detach them")
    }
    slopes.to_dtype(DType::F32)?.to_vec1()
}

/// Attention, causal or not.
///
/// # Shapes
/// `q` (B, T, H, D), `k` (B, S, key heads, D), `v` (B, S, key heads, D) -> (B, T, H, D)
///
/// # Errors
/// When the shapes do not fit each other.
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(q, k, v, None, softmax_scale, None, right(causal), 0.0)
}

/// Attention in which a query sees `window_size_left` keys to the left of its own and `window_size_right` to the right.
///
/// # Shapes
/// As [`flash_attn`]
///
/// # Errors
/// When the shapes do not fit each other.
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(q, k, v, None, softmax_scale, window_size_left, window_size_right, 0.0)
}

/// Attention with ALiBi, causal or not.
///
/// # Shapes
/// As [`flash_attn`]; `alibi_slopes` (H)
///
/// # Errors
/// When the shapes do not fit each other, or the slopes need a gradient.
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(q, k, v, Some(alibi_slopes), softmax_scale, None, right(causal), 0.0)
}

/// Attention with ALiBi in a window.
///
/// # Shapes
/// As [`flash_attn`]; `alibi_slopes` (H)
///
/// # Errors
/// When the shapes do not fit each other, or the slopes need a gradient.
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// Attention with a soft cap (0 is none), in a window, with or without ALiBi.
///
/// # Shapes
/// As [`flash_attn`]; `alibi_slopes` (H)
///
/// # Errors
/// When the shapes do not fit each other, or the slopes need a gradient.
#[allow(clippy::too_many_arguments)] // those of candle-flash-attn
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let window = Window { left: window_size_left, right: window_size_right };
    let sdpa = sdpa(softmax_scale, window, alibi_slopes, softcap)?;
    let [q, k, v] = [q, k, v].map(|x| x.transpose(1, 2)); // (B, H, S, D)
    sdpa.forward(&q?, &k?, &v?, Mask::default())
}

/// The sequences between starts, u32 (sequences + 1), none longer than announced.
fn lengths(
    [seqlens_q, seqlens_k]: [&Tensor; 2],
    [max_seqlen_q, max_seqlen_k]: [usize; 2],
) -> Result<Lengths> {
    let (starts_q, starts_k) = (seqlens_q.to_vec1::<u32>()?, seqlens_k.to_vec1::<u32>()?);
    let lengths = Lengths::from_starts(&starts_q, &starts_k)?;
    let longest =
        |starts: &[u32]| starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0);
    for (what, starts, most) in [("queries", &starts_q, max_seqlen_q), ("keys", &starts_k, max_seqlen_k)] {
        if longest(starts) > most {
            candle_core::bail!(
                "attention: a sequence of {} {what}, but max_seqlen is {most}",
                longest(starts)
            )
        }
    }
    Ok(lengths)
}

/// Attention within each of several sequences, causal or not. `seqlens_q` and `seqlens_k` hold from where each sequence
/// starts, and at last where all end: `cu_seqlens`.
///
/// # Shapes
/// `q` (all queries, H, D), `k` and `v` (all keys, key heads, D), `seqlens_q` and `seqlens_k` u32 (sequences + 1)
/// -> (all queries, H, D)
///
/// # Errors
/// When the shapes do not fit each other or the lengths, or a sequence is longer than announced.
#[allow(clippy::too_many_arguments)] // those of candle-flash-attn
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let window = Window { left: None, right: right(causal) };
    let lengths = lengths([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?;
    sdpa(softmax_scale, window, None, 0.0)?.forward_varlen(q, k, v, &lengths)
}

/// Attention within each of several sequences, in a window.
///
/// # Shapes
/// As [`flash_attn_varlen`]
///
/// # Errors
/// As [`flash_attn_varlen`]
#[allow(clippy::too_many_arguments)] // those of candle-flash-attn
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let window = Window { left: window_size_left, right: window_size_right };
    let lengths = lengths([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?;
    sdpa(softmax_scale, window, None, 0.0)?.forward_varlen(q, k, v, &lengths)
}

/// Attention with ALiBi within each of several sequences, causal or not.
///
/// # Shapes
/// As [`flash_attn_varlen`]; `alibi_slopes` (H)
///
/// # Errors
/// As [`flash_attn_varlen`], or when the slopes need a gradient.
#[allow(clippy::too_many_arguments)] // those of candle-flash-attn
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let window = Window { left: None, right: right(causal) };
    let lengths = lengths([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?;
    sdpa(softmax_scale, window, Some(alibi_slopes), 0.0)?.forward_varlen(q, k, v, &lengths)
}

/// Attention with ALiBi within each of several sequences, in a window.
///
/// # Shapes
/// As [`flash_attn_varlen`]; `alibi_slopes` (H)
///
/// # Errors
/// As [`flash_attn_varlen`], or when the slopes need a gradient.
#[allow(clippy::too_many_arguments)] // those of candle-flash-attn
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let window = Window { left: window_size_left, right: window_size_right };
    let lengths = lengths([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?;
    sdpa(softmax_scale, window, Some(alibi_slopes), 0.0)?.forward_varlen(q, k, v, &lengths)
}

/// Attention with a soft cap (0 is none) within each of several sequences, in a window, with or without ALiBi.
///
/// # Shapes
/// As [`flash_attn_varlen`]; `alibi_slopes` (H)
///
/// # Errors
/// As [`flash_attn_varlen`], or when the slopes need a gradient.
#[allow(clippy::too_many_arguments)] // those of candle-flash-attn
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let window = Window { left: window_size_left, right: window_size_right };
    let lengths = lengths([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?;
    sdpa(softmax_scale, window, alibi_slopes, softcap)?.forward_varlen(q, k, v, &lengths)
}
