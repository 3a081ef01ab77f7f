//! The fused functions of `candle_nn::attention`, with the same arguments, differentiable, for any batch, in f32, f16 and bf16: a
//! model written for those runs here with another `use`.
//!
//! The functions of `candle_nn` differ from each other in these cases; here they all behave alike:
//!
//! | | `candle_nn` 0.11 | here |
//! |---|---|---|
//! | a causal query | `kv_offset` counts for one batch row, and neither for several nor for a single query | it sees the keys up to `kv_offset + i` |
//! | `max_bias` without a mask and without the causal rule | ignored for one batch row, ALiBi for several | ALiBi |
//! | a soft cap without `max_bias` for a single causal query in f32 | ALiBi with slopes of 1 | no ALiBi |
//! | the result for halves | f32 for one batch row | the dtype of `q` |
//! | a causal sequence with fewer keys than queries | an error | the first queries see no key and get zeros |
//! | masks, soft caps and bf16 for several batch rows | an error | computed |

use super::flash::sdpa;
use crate::attention::mask::Mask;
use crate::attention::run::varlen::Lengths;
use crate::attention::sdpa::Sdpa;
use crate::attention::window::Window;
use crate::cpu::element::accumulator;
use candle_core::{Result, Tensor, WithDType};
pub use candle_nn::attention::AttnMask;
use std::sync::Arc;

/// ALiBi's slope for each head, as `candle_nn` has them: `2^(-max_bias·(h + 1) / n)` with n the next power of two.
fn slopes_of(max_bias: f32, heads: usize) -> Arc<[f32]> {
    let n = heads.next_power_of_two() as f32;
    (0..heads).map(|head| (-max_bias * (head + 1) as f32 / n).exp2()).collect()
}

/// Attention over (B, S, H, D). What `attn_mask` means:
///
/// - `None`: every query sees every key.
/// - `Causal`: query i sees the keys up to `kv_offset + i`.
/// - `Mask`: floats that are added to the scores, -inf to hide a key; times the head's slope where there is a `max_bias`.
///
/// # Shapes
/// `q` (B, T, H, D), `k` and `v` (B, S, key heads, D), a mask (T, S), (B or 1, T, S) or (B or 1, H or 1, T, S)
/// -> (B, H, T, D), in the dtype of `q`
///
/// # Errors
/// When the shapes do not fit each other, `T` is not the dtype of the tensors, they are not on the CPU, or a `kv_offset`
/// would hide keys from a single query or goes beyond the keys under ALiBi.
pub fn flash_attn<T: WithDType>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    for (name, x) in [("q", q), ("k", k), ("v", v)] {
        if x.dtype() != T::DTYPE || !x.device().is_cpu() {
            candle_core::bail!("flash_attn::<{:?}>: {name} is {:?} on {:?}", T::DTYPE, x.dtype(), x.device())
        }
    }
    let (_, t, heads, _) = q.dims4()?;
    let slopes = max_bias.filter(|bias| *bias > 0.0).map(|bias| slopes_of(bias, heads));
    let softcap = softcap.filter(|cap| *cap != 0.0).map(f64::from);
    let [q, k, v] = [q, k, v].map(|x| x.transpose(1, 2)); // (B, H, S, D)
    let q = q?;
    let mut k = k?;
    let mut v = v?;
    let s = k.dim(2)?;
    let scale = Some(f64::from(softmax_scale));
    let mut sdpa = Sdpa { scale, window: Window::ALL, softcap, slopes, ..Sdpa::default() };
    let mut added = None;
    match &attn_mask {
        AttnMask::None => {}
        AttnMask::Mask(mask) => added = Some(scaled(mask, sdpa.slopes.take().as_deref())?),
        AttnMask::Causal { kv_offset } => {
            let seen = kv_offset.saturating_add(t);
            if seen < s && t == 1 {
                candle_core::bail!(
                    "flash_attn: kv_offset {kv_offset} hides {} of {s} keys from a single query, where candle_nn shows them; \
                     pass {} to see all",
                    s - seen,
                    s - 1
                )
            }
            if seen > s && sdpa.slopes.is_some() {
                candle_core::bail!(
                    "flash_attn: kv_offset {kv_offset} puts {t} queries beyond {s} keys, under ALiBi"
                )
            }
            let last = seen.min(s);
            (k, v) = (k.narrow(2, 0, last)?, v.narrow(2, 0, last)?);
            // A query is aligned with the last key; beyond the keys it sees what lies to the right of that.
            sdpa.window = Window { left: None, right: Some(seen - last) };
        }
    }
    let mask = Mask { added: added.as_ref(), ..Mask::default() };
    sdpa.forward(&q, &k, &v, mask)?.transpose(1, 2)?.contiguous()
}

/// A mask with all four dimensions, times the slope of each head.
fn scaled(mask: &Tensor, slopes: Option<&[f32]>) -> Result<Tensor> {
    let mask = match *mask.dims() {
        [_, _] => mask.unsqueeze(0)?.unsqueeze(0)?,
        [_, _, _] => mask.unsqueeze(1)?,
        _ => mask.clone(),
    };
    let Some(slopes) = slopes else { return Ok(mask) };
    let mask = mask.to_dtype(accumulator(mask.dtype()))?;
    let slopes = Tensor::new(slopes, mask.device())?.reshape((1, slopes.len(), 1, 1))?;
    mask.broadcast_mul(&slopes.to_dtype(mask.dtype())?)
}

/// Attention within each of several sequences that lie one after another. `seqlens_q` and `seqlens_k` hold the lengths
/// themselves, not their sums. Where only `window_left` is given, no query sees a key to its right.
///
/// # Shapes
/// `q` (all queries, H, D), `k` and `v` (all keys, key heads, D), `alibi_slopes` (H), `seqlens_q` and `seqlens_k` u32
/// (sequences) -> (all queries, H, D)
///
/// # Errors
/// When the shapes do not fit each other or the lengths, the tensors are not on the CPU, the slopes need a gradient, or only
/// `window_right` is given, for which `candle_nn` returns zeros.
#[allow(clippy::too_many_arguments)] // those of candle_nn
pub fn flash_attn_varlen_cpu(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    _max_seqlen_q: usize,
    _max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
    window_left: Option<usize>,
    window_right: Option<usize>,
) -> Result<Tensor> {
    if !q.device().is_cpu() {
        candle_core::bail!("flash_attn_varlen_cpu: q is on {:?}", q.device())
    }
    let window = match (window_left, window_right) {
        (None, Some(_)) => candle_core::bail!("flash_attn_varlen_cpu: window_right without window_left"),
        (None, None) if causal => Window::CAUSAL,
        (None, None) => Window::ALL,
        (left, right) => Window { left, right: if causal { Some(0) } else { right.or(Some(0)) } },
    };
    let lengths =
        |x: &Tensor| -> Result<Vec<usize>> { Ok(x.to_vec1::<u32>()?.iter().map(|n| *n as usize).collect()) };
    let lengths = Lengths::new(&lengths(seqlens_q)?, &lengths(seqlens_k)?)?;
    sdpa(softmax_scale, window, alibi_slopes, 0.0)?.forward_varlen(q, k, v, &lengths)
}
