//! The functions of `candle-flash-attn`, with the same arguments, for any device and dtype, differentiable: a model written for
//! that crate runs here with another `use`.
//!
//! Tensors are (B, S, H, D), or (all positions, H, D) for sequences of several lengths, in and out. Heads may share keys
//! and values. A window is unlimited where it is `None`; a causal one is aligned at the bottom right, and where there are
//! more queries than keys, the first queries see no key and get zeros.
//!
//! Differences: the width of a head and the size of a page may be anything; `k` and `v` in another dtype are converted to that of
//! `q`; slopes lie on any device. On the CPU the fused kernels run, on CUDA those for plain causal attention, and elsewhere
//! plain operations.
//! [`Sdpa`] offers more: weights, summaries, dropout, padding.

use crate::attention::key_ranges::KeyRanges;
use crate::attention::mask::Mask;
use crate::attention::run::paged::Pages;
use crate::attention::run::varlen::Lengths;
use crate::attention::sdpa::Sdpa;
use crate::attention::window::Window;
use candle_core::{DType, Device, Result, Tensor};
use std::ops::Range;
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
/// Same as [`flash_attn`].
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
/// Same as [`flash_attn`], and `alibi_slopes` (H).
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
/// Same as [`flash_attn`], and `alibi_slopes` (H).
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
/// Same as [`flash_attn`], and `alibi_slopes` (H).
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
    let starts_q = seqlens_q.to_vec1::<u32>()?;
    let starts_k = seqlens_k.to_vec1::<u32>()?;
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
/// Same as [`flash_attn_varlen`].
///
/// # Errors
/// Same as [`flash_attn_varlen`].
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
/// Same as [`flash_attn_varlen`], and `alibi_slopes` (H).
///
/// # Errors
/// Same as [`flash_attn_varlen`], or when the slopes need a gradient.
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
/// Same as [`flash_attn_varlen`], and `alibi_slopes` (H).
///
/// # Errors
/// Same as [`flash_attn_varlen`], or when the slopes need a gradient.
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
/// Same as [`flash_attn_varlen`], and `alibi_slopes` (H).
///
/// # Errors
/// Same as [`flash_attn_varlen`], or when the slopes need a gradient.
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

/// Attention within each of several sequences whose keys and values lie in pages, in a window, with a soft cap (`None` or 0 is
/// none). Row n of `block_table` lists the pages of sequence n, whose number of keys is that between `seqlens_k`. On the CPU, pages
/// are read in place.
///
/// `mm_prefix_ranges` has ranges of positions, start and end, for each sequence: a query inside a range sees all keys of the range,
/// in addition to those of its window. A range whose start is not below its end counts as none.
///
/// # Shapes
/// `q` (all queries, H, D), `k` and `v` (pages, `page_block_size`, key heads, D), `seqlens_q` and `seqlens_k` u32 (sequences + 1),
/// `block_table` u32 or i32 (sequences, most pages), `mm_prefix_ranges` i32 (sequences, most ranges, 2) -> (all queries, H, D)
///
/// # Errors
/// When the shapes do not fit each other or the lengths, a page is not in the pool, or a sequence is longer than announced.
#[allow(clippy::too_many_arguments)] // those of candle-flash-attn
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let window = Window { left: window_size_left, right: window_size_right };
    let lengths = lengths([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?;
    let (queries, keys) = lengths.split();
    if !matches!(block_table.dtype(), DType::U32 | DType::I32) {
        candle_core::bail!("attention: a block table is u32 or i32, got {}", block_table.dtype().as_str())
    }
    // Candle converts i32 to u32 on the CPU alone.
    let tables = block_table.to_device(&Device::Cpu)?.to_dtype(DType::U32)?.to_vec2::<u32>()?;
    if tables.len() != queries.len() || k.dims4()?.1 != page_block_size {
        candle_core::bail!(
            "attention: {} sequences with pages of {page_block_size} positions need a block table of as many rows and pools (pages, \
             {page_block_size}, key heads, D), got a table {:?} and k {:?}",
            queries.len(),
            block_table.dims(),
            k.dims()
        )
    }
    let pages: Vec<_> = tables.iter().zip(keys).map(|(table, &len)| Pages { k, v, table, len }).collect();
    let sdpa = sdpa(softmax_scale, window, None, softcap.unwrap_or(0.0))?;
    let Some(prefixes) = mm_prefix_ranges else {
        return sdpa.forward_varlen_paged(q, queries, &pages);
    };
    let (of, _, ends) = prefixes.dims3()?;
    if (of, ends, prefixes.dtype()) != (queries.len(), 2, DType::I32) {
        candle_core::bail!(
            "attention: mm_prefix_ranges must be i32 ({}, most ranges, 2), got {} {:?}",
            queries.len(),
            prefixes.dtype().as_str(),
            prefixes.dims()
        )
    }
    let prefixes = prefixes.to_vec3::<i32>()?;
    let of_sequence = |((&t, &s), prefixes): (_, &Vec<_>)| seen_with_prefixes(window, t, s, prefixes);
    let ranges: Vec<_> = queries.iter().zip(keys).zip(&prefixes).map(of_sequence).collect::<Result<_>>()?;
    sdpa.forward_varlen_paged_in(q, queries, &pages, &ranges)
}

/// The keys, of S, that each of T queries sees: its window, and every prefix (start, end) that its position lies in. `None`
/// if no query lies in a prefix, so that the window says it all.
fn seen_with_prefixes(
    window: Window,
    t: usize,
    s: usize,
    prefixes: &[Vec<i32>],
) -> Result<Option<KeyRanges>> {
    let at = |position: i32| usize::try_from(position).unwrap_or(0).min(s);
    let prefixes: Vec<Range<usize>> = prefixes.iter().map(|range| at(range[0])..at(range[1])).collect();
    if !prefixes.iter().any(|range| !range.is_empty() && range.end + t > s) {
        return Ok(None);
    }
    let of_query = |i: usize| {
        // A query before the first key lies in no prefix.
        let own =
            |range: &&Range<usize>| (s + i).checked_sub(t).is_some_and(|position| range.contains(&position));
        prefixes.iter().filter(own).cloned().chain([window.keys(i, t, s)]).collect()
    };
    KeyRanges::new(&[(0..t).map(of_query).collect()]).map(Some)
}
