//! The reference: attention in plain differentiable Candle operations, with one (T, S) tensor of weights per head.

use super::bias::CausalBias;
use super::mask::{HiddenKeys, Mask};
use super::request::{Rows, select};
use super::scores::Scoring;
use super::window::Window;
use crate::accumulator;
use candle_core::{D, DType, Device, Result, Tensor};

/// The softmax of the scores over the visible keys, in f32 or wider; zeros if no key is visible.
///
/// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, heads, queries, S) for `rows`
pub(super) fn weights(
    q: &Tensor,
    k: &Tensor,
    scoring: &Scoring,
    (mask, bias): (Mask, Option<&CausalBias>),
    rows: &Rows,
) -> Result<Tensor> {
    let (scores, visible) = scores_and_visible(q, k, scoring, (mask, bias), rows)?;
    softmax(&scores, &visible)
}

/// The scores, with -inf where a key is not visible; the shapes are those of [`weights`].
pub(super) fn masked_scores(
    q: &Tensor,
    k: &Tensor,
    scoring: &Scoring,
    masks: (Mask, Option<&CausalBias>),
    rows: &Rows,
) -> Result<Tensor> {
    let (scores, visible) = scores_and_visible(q, k, scoring, masks, rows)?;
    visible.where_cond(
        &scores,
        &Tensor::full(f32::NEG_INFINITY, (), scores.device())?
            .to_dtype(scores.dtype())?
            .broadcast_as(scores.shape())?,
    )
}

/// The scores, and which keys are visible, in one shape.
fn scores_and_visible(
    q: &Tensor,
    k: &Tensor,
    scoring: &Scoring,
    (mask, bias): (Mask, Option<&CausalBias>),
    rows: &Rows,
) -> Result<(Tensor, Tensor)> {
    let (h, s) = (q.dim(1)?, k.dim(2)?);
    let (q, k) = (rows.of_queries(q)?, rows.of_keys(k)?);
    let scores = scores(&q, &k, scoring, mask, rows)?;
    // The triangle has a row for each position, and none before the first key.
    let bias = bias.filter(|_| scoring.window == Window::CAUSAL && s >= rows.all_queries);
    let mut visible = visible((mask, bias), scoring.window, rows, (h, s), q.device())?;
    if mask.added.is_some() {
        visible = visible.broadcast_mul(&scores.detach().ne(f64::NEG_INFINITY)?)?;
    }
    let visible = visible.broadcast_as(scores.shape())?;
    Ok((scores, visible))
}

/// The softmax of `scores` over the visible keys; zeros if no key is visible. Both have one shape.
pub(super) fn softmax(scores: &Tensor, visible: &Tensor) -> Result<Tensor> {
    // Hides keys with the lowest finite value rather than -inf: a row that sees no key stays free of
    // NaN, and in every other row a hidden key still gets a weight of exactly 0.
    let scores = visible.where_cond(scores, &lowest_like(scores)?)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    // If a row sees no key, or only scores of -inf, its weight is spread over hidden keys.
    visible.where_cond(&weights, &weights.zeros_like()?)
}

/// `cap·tanh(q·kᵀ·scale / cap) - slope·|position - key| + added`, in f32 or wider.
///
/// `q` (B, heads, queries, D), `k` (B, heads, S, D) -> (B, heads, queries, S)
fn scores(q: &Tensor, k: &Tensor, scoring: &Scoring, mask: Mask, rows: &Rows) -> Result<Tensor> {
    let wide = accumulator(q.dtype());
    let q = (q.to_dtype(wide)?.contiguous()? * scoring.scale)?;
    let k = k.to_dtype(wide)?.contiguous()?;
    let mut scores = q.matmul(&k.transpose(2, 3)?)?;
    if let Some(cap) = scoring.softcap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(slopes) = &scoring.slopes {
        let s = k.dim(2)?;
        let distances = rows.positions(s).flat_map(|at| (0..s).map(move |key| (at - key as f64).abs()));
        let distances = Tensor::from_iter(distances, &Device::Cpu)?.reshape((1, 1, rows.queries.len(), s))?;
        let slopes = rows.heads.iter().map(|&head| -f64::from(slopes[head]));
        let slopes = Tensor::from_iter(slopes, &Device::Cpu)?.reshape((1, rows.heads.len(), 1, 1))?;
        // Some GPUs have no f64.
        let there = |x: Tensor| x.to_dtype(wide)?.to_device(q.device());
        scores = scores.broadcast_add(&there(distances)?.broadcast_mul(&there(slopes)?)?)?;
    }
    if let Some(added) = mask.added {
        let added = if added.dim(1)? == 1 { added.clone() } else { select(added, 1, &rows.heads)? };
        scores = scores.broadcast_add(&select(&added, 2, &rows.queries)?.to_dtype(wide)?)?;
    }
    Ok(scores)
}

/// `weights·v`, with the head axis moved behind the positions.
///
/// `weights` (B, H, T, S), `v` (B, key heads, S, D) -> (B, T, H, D)
pub(super) fn context(weights: &Tensor, v: &Tensor, dtype: DType) -> Result<Tensor> {
    let (heads, key_heads) = (weights.dim(1)?, v.dim(1)?);
    if key_heads == 0 || !heads.is_multiple_of(key_heads) {
        candle_core::bail!("attention: weights {:?} do not fit values {:?}", weights.dims(), v.dims())
    }
    let places: Vec<usize> = (0..heads).map(|head| head * key_heads / heads).collect();
    let v = select(v, 1, &places)?.to_dtype(weights.dtype())?.contiguous()?;
    weights
        .matmul(&v)? // (B, H, T, D)
        .to_dtype(dtype)?
        .transpose(1, 2)?
        .contiguous() // (B, T, H, D)
}

/// Which of S keys `rows` see, by the window (read from `bias` if there is one) and the mask: u8 (1 or B, 1 or
/// heads, queries, S).
fn visible(
    (mask, bias): (Mask, Option<&CausalBias>),
    window: Window,
    rows: &Rows,
    (h, s): (usize, usize),
    device: &Device,
) -> Result<Tensor> {
    let mut visible = if let Some(bias) = bias.filter(|bias| bias.is_worth_keeping()) {
        let positions: Vec<usize> = rows.seen(window, s).map(|seen| seen.end - 1).collect();
        select(&bias.tensor()?.narrow(3, 0, s)?, 2, &positions)?
    } else {
        let visible: Vec<u8> = rows
            .seen(window, s)
            .flat_map(|seen| (0..s).map(move |key| u8::from(seen.contains(&key))))
            .collect();
        Tensor::from_vec(visible, (1, 1, rows.queries.len(), s), device)?
    }; // (1, 1, queries, S)
    if !mask.hidden.is_empty() {
        visible = visible.broadcast_mul(&not_hidden(&HiddenKeys::new(mask.hidden, h), rows, s, device)?)?;
    }
    if let Some(first) = mask.first {
        let first = select(first, 1, &rows.queries)?.unsqueeze(1)?.unsqueeze(3)?; // (B, 1, queries, 1)
        #[allow(clippy::cast_possible_truncation)] // a number of keys
        let keys = Tensor::arange(0, s as u32, device)?.reshape((1, 1, 1, s))?;
        visible = visible.broadcast_mul(&keys.broadcast_ge(&first)?)?;
    }
    match mask.padding {
        None => Ok(visible),
        Some(padding) => visible.broadcast_mul(&padding.unsqueeze(1)?.unsqueeze(1)?),
    }
}

/// u8 (1, heads, queries, S): 0 if a key is hidden from a query, 1 otherwise.
fn not_hidden(hidden: &HiddenKeys, rows: &Rows, s: usize, device: &Device) -> Result<Tensor> {
    let (heads, queries) = (rows.heads.len(), rows.queries.len());
    let mut visible = vec![1u8; heads * queries * s];
    let places = rows.heads.iter().flat_map(|&h| rows.queries.iter().map(move |&i| (h, i)));
    for ((h, i), row) in places.zip(visible.chunks_exact_mut(s.max(1))) {
        hidden.of(h, i).iter().for_each(|&(_, _, key)| row[key] = 0);
    }
    Tensor::from_vec(visible, (1, heads, queries, s), device)
}

/// The lowest finite value of the dtype of `scores`, in its shape.
fn lowest_like(scores: &Tensor) -> Result<Tensor> {
    let lowest = match scores.dtype() {
        DType::F64 => Tensor::full(f64::MIN, (), scores.device())?,
        _ => Tensor::full(f32::MIN, (), scores.device())?,
    };
    lowest.broadcast_as(scores.shape())
}
