//! The steps of a score from `q·k` to the softmax: scale, soft cap, ALiBi, an added tensor, the window and the masks.
//!
//! ```text
//! score = cap·tanh(q·k·scale / cap) - slope·|position - key| + added        -inf for a hidden key
//! ```
//!
//! Soft capping follows Gemma Team 2024, "Gemma 2", §2. ALiBi follows Press et al. 2022, "Train Short, Test Long", here with
//! absolute distances, so that it also works without the causal rule.
//!
//! A sink is one more score of each row, which takes part in the softmax and has no value.
//!
//! The score is implemented twice: [`scores_and_visible`], in plain differentiable operations, is the definition;
//! [`ScoreRules`] is the form that every CPU kernel applies to its rows of products.

use super::heads::Query;
use super::inputs::{ChosenIndices, select};
use super::mask::{CpuMask, HiddenKeys, Mask};
use super::sdpa::Sdpa;
use super::window::Window;
use crate::cpu::element::accumulator;
use crate::cpu::vector::{exp2, tanh};
use candle_core::{DType, Device, Result, Tensor};
use pulp::{Simd, WithSimd};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// The scores of `rows`, and which keys they see, u8, in one shape: by the definition.
///
/// `q` (B, H, T, D), `k` (B, key heads, S, D) -> (B, heads, queries, S) in f32 or wider
pub(super) fn scores_and_visible(
    sdpa: &Sdpa,
    q: &Tensor,
    k: &Tensor,
    mask: Mask,
    rows: &ChosenIndices,
) -> Result<(Tensor, Tensor)> {
    let scores = scores(sdpa, &rows.of_queries(q)?, &rows.of_keys(k)?, mask, rows)?;
    let mut visible = visible(sdpa, mask, rows, k.dim(2)?, q.device())?;
    if mask.added.is_some() {
        visible = visible.broadcast_mul(&scores.detach().ne(f64::NEG_INFINITY)?)?;
    }
    let visible = visible.broadcast_as(scores.shape())?;
    Ok((scores, visible))
}

/// The scores of `rows` without masks.
///
/// `q` (B, heads, queries, D), `k` (B, heads, S, D) -> (B, heads, queries, S); keys that are padding count as zeros
fn scores(sdpa: &Sdpa, q: &Tensor, k: &Tensor, mask: Mask, rows: &ChosenIndices) -> Result<Tensor> {
    let wide = accumulator(q.dtype());
    let q = (q.to_dtype(wide)?.contiguous()? * sdpa.scale_for(q.dim(3)?))?;
    let mut k = k.to_dtype(wide)?.contiguous()?;
    if let Some(visible) = mask.padding {
        // 0 times what stands there, which may be NaN, would reach the gradient of every query.
        let visible = visible.unsqueeze(1)?.unsqueeze(3)?.broadcast_as(k.shape())?;
        k = visible.where_cond(&k, &k.zeros_like()?)?;
    }
    let mut scores = q.matmul(&k.transpose(2, 3)?)?;
    if let Some(cap) = sdpa.softcap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(slopes) = &sdpa.slopes {
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
        let of = |added: &Tensor, dim, places: &[usize]| {
            if added.dim(dim)? == 1 { Ok(added.clone()) } else { select(added, dim, places) }
        };
        let added = of(&of(added, 1, &rows.heads)?, 2, &rows.queries)?;
        scores = scores.broadcast_add(&added.to_dtype(wide)?)?;
    }
    Ok(scores)
}

/// Marks the keys, of S, that `rows` see by the window (read from the causal triangle if there is one) and the mask: u8 (1 or
/// B, 1 or heads, queries, S).
fn visible(sdpa: &Sdpa, mask: Mask, rows: &ChosenIndices, s: usize, device: &Device) -> Result<Tensor> {
    // The triangle has a row for each position, and none before the first key.
    let triangle = sdpa
        .bias
        .as_ref()
        .filter(|bias| bias.is_worth_keeping() && sdpa.window == Window::CAUSAL && s >= rows.all_queries);
    let mut visible = if let Some(triangle) = triangle {
        let positions: Vec<usize> = rows.seen(sdpa.window, s).map(|seen| seen.end - 1).collect();
        select(&triangle.tensor()?.narrow(3, 0, s)?, 2, &positions)?
    } else {
        let visible: Vec<u8> = rows
            .seen(sdpa.window, s)
            .flat_map(|seen| (0..s).map(move |key| u8::from(seen.contains(&key))))
            .collect();
        Tensor::from_vec(visible, (1, 1, rows.queries.len(), s), device)?
    }; // (1, 1, queries, S)
    if !mask.hidden.is_empty() {
        visible = visible.broadcast_mul(&not_hidden(mask, rows, s, device)?)?;
    }
    if let Some(first) = mask.first {
        let first = select(first, 1, &rows.queries)?.unsqueeze(1)?.unsqueeze(3)?; // (B, 1, queries, 1)
        #[allow(clippy::cast_possible_truncation)] // a number of keys
        let keys = Tensor::arange(0, s as u32, device)?.reshape((1, 1, 1, s))?;
        visible = visible.broadcast_mul(&keys.broadcast_ge(&first)?)?;
    }
    if let Some(ranges) = mask.ranges {
        visible = visible.broadcast_mul(&ranges.tensor(&rows.queries, s, device)?)?;
    }
    match mask.padding {
        None => Ok(visible),
        Some(padding) => visible.broadcast_mul(&padding.unsqueeze(1)?.unsqueeze(1)?),
    }
}

/// u8 (1, heads, queries, S): 0 if a key is hidden from a query, 1 otherwise.
fn not_hidden(mask: Mask, rows: &ChosenIndices, s: usize, device: &Device) -> Result<Tensor> {
    let hidden = HiddenKeys::new(mask.hidden, rows.all_heads);
    let heads = rows.heads.len();
    let queries = rows.queries.len();
    let mut visible = vec![1u8; heads * queries * s];
    let places = rows.heads.iter().flat_map(|&h| rows.queries.iter().map(move |&i| (h, i)));
    for ((h, i), row) in places.zip(visible.chunks_exact_mut(s)) {
        hidden.of(h, i).iter().for_each(|hidden| row[hidden.key] = 0);
    }
    Tensor::from_vec(visible, (1, heads, queries, s), device)
}

/// The unit of scores: the logarithm that they are of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    E,
    Two,
}

impl Base {
    fn unit(self) -> f32 {
        match self {
            Self::E => 1.0,
            Self::Two => LOG2_E,
        }
    }
}

/// The rules for T queries against S keys in one call, as the CPU kernels read them.
#[derive(Debug)]
pub(super) struct ScoreRules {
    sdpa: Sdpa,
    /// The factor on the scores.
    pub(super) scale: f64,
    /// T
    pub(super) queries: usize,
    /// S
    pub(super) keys: usize,
    added: Option<AddedScores>,
    /// (H)
    sinks: Option<Vec<f32>>,
    pub(super) mask: CpuMask,
}

impl ScoreRules {
    /// For `q` (B, H, T, D) against S keys.
    pub(super) fn new(sdpa: &Sdpa, mask: Mask, q: &Tensor, keys: usize) -> Result<Self> {
        let (_, heads, queries, d) = q.dims4()?;
        let added = mask.added.map(AddedScores::new).transpose()?;
        let mask = mask.on_cpu(heads)?;
        let numbers = |sinks: &Tensor| sinks.to_dtype(DType::F32)?.to_vec1();
        let sinks = sdpa.sinks.as_ref().map(numbers).transpose()?;
        // An operation that held the tensor would hold the graph that made it.
        let sdpa = Sdpa { sinks: None, ..sdpa.clone() };
        let scale = sdpa.scale_for(d);
        Ok(Self { sdpa, scale, queries, keys, added, sinks, mask })
    }

    /// The keys that a query sees by its position.
    #[inline(always)]
    pub(super) fn keys_of(&self, i: usize) -> Range<usize> {
        self.sdpa.window.keys(i, self.queries, self.keys)
    }

    /// The keys that a query sees by its position, of `count` keys from `start` on, counted from `start`.
    #[inline(always)]
    pub(super) fn keys_in(&self, i: usize, start: usize, count: usize) -> Range<usize> {
        let seen = self.keys_of(i);
        let end = seen.end.saturating_sub(start).min(count);
        seen.start.saturating_sub(start).min(end)..end
    }

    /// The queries that see some of these keys by their position.
    #[inline(always)]
    pub(super) fn queries_of(&self, keys: Range<usize>) -> Range<usize> {
        self.sdpa.window.queries(keys, self.queries, self.keys)
    }

    /// A query's own position: negative before the first key.
    #[inline(always)]
    #[allow(clippy::cast_possible_wrap)] // there are fewer than 2^32 keys
    pub(super) fn position(&self, i: usize) -> isize {
        (self.keys + i) as isize - self.queries as isize
    }

    /// The most keys that a query sees by its position.
    pub(super) fn most_keys(&self) -> usize {
        self.sdpa.window.most_keys(self.keys)
    }

    /// The factor on q that makes q·k what [`finish`](Self::finish) takes.
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    pub(super) fn query_factor(&self, base: Base) -> f32 {
        match self.sdpa.softcap {
            Some(cap) => (self.scale / cap) as f32,
            None => (self.scale * f64::from(base.unit())) as f32,
        }
    }

    /// The gradient of `q·kᵀ` from the gradient of the scores, by plain operations.
    pub(super) fn products_gradient(&self, scores: &Tensor, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        let scaled = (scores * self.scale)?;
        let Some(cap) = self.sdpa.softcap else { return Ok(scaled) };
        let products = (q.matmul(&k.t()?)? * (self.scale / cap))?;
        scaled * (1.0 - products.tanh()?.sqr()?)?
    }

    /// Makes scores of the products of a query with the keys from `start` on. Does not look at the window.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(
        &self,
        simd: S,
        base: Base,
        query: Query,
        start: usize,
        scores: &mut [f32],
    ) {
        self.cap(simd, base, scores);
        self.add_and_hide(simd, base, query, start, scores);
    }

    /// `cap·tanh(x)` of each number, if there is a soft cap.
    #[inline(always)]
    pub(super) fn cap<S: Simd>(&self, simd: S, base: Base, scores: &mut [f32]) {
        let Some(cap) = self.cap_in(base) else { return };
        let cap = simd.splat_f32s(cap);
        let (vectors, tail) = S::as_mut_simd_f32s(scores);
        for x in vectors {
            *x = simd.mul_f32s(cap, tanh(simd, *x));
        }
        if !tail.is_empty() {
            let last = simd.mul_f32s(cap, tanh(simd, simd.partial_load_f32s(tail)));
            simd.partial_store_f32s(tail, last);
        }
    }

    /// The soft cap in the unit of the scores.
    #[allow(clippy::cast_possible_truncation)] // a cap on f32 scores
    pub(super) fn cap_in(&self, base: Base) -> Option<f32> {
        self.sdpa.softcap.map(|cap| (cap * f64::from(base.unit())) as f32)
    }

    /// Applies the steps after the soft cap: ALiBi, the added tensor, and -inf for hidden keys.
    #[inline(always)]
    pub(super) fn add_and_hide<S: Simd>(
        &self,
        simd: S,
        base: Base,
        query: Query,
        start: usize,
        scores: &mut [f32],
    ) {
        if let Some(slopes) = &self.sdpa.slopes {
            let distance = self.position(query.i) as f32 - start as f32;
            add_distances(simd, -slopes[query.h] * base.unit(), distance, scores);
        }
        if let Some(added) = &self.added {
            let unit = base.unit();
            for (score, x) in scores.iter_mut().zip(&added.row(query)[start..]) {
                // In base 2, the lowest finite number would become -inf.
                let in_base = x * unit;
                *score += if in_base == f32::NEG_INFINITY && x.is_finite() { f32::MIN } else { in_base };
            }
        }
        self.mask.hide(query, self.keys, start, scores);
    }

    /// The sink of a head; `None` if it is -inf, which has no effect.
    #[inline(always)]
    pub(super) fn sink(&self, head: usize, base: Base) -> Option<f32> {
        let sink = self.sinks.as_ref().map(|sinks| sinks[head]).filter(|sink| *sink != f32::NEG_INFINITY)?;
        // In base 2, the lowest finite number would become -inf.
        let in_base = sink * base.unit();
        Some(if in_base < f32::MIN { f32::MIN } else { in_base })
    }

    /// The softmax of a row of products. Hidden keys get exactly 0, even if another score is NaN.
    #[inline(always)]
    pub(super) fn softmax<S: Simd>(&self, simd: S, query: Query, scores: &mut [f32]) {
        let first = self.keys_of(query.i).start;
        scores[..first].fill(f32::NEG_INFINITY);
        self.finish(simd, Base::E, query, first, &mut scores[first..]);
        let sink = self.sink(query.h, Base::E).unwrap_or(f32::NEG_INFINITY);
        // NaN and inf make all of the row NaN. Two questions, since valgrind errs where one comparison asks both.
        let (nan, inf) = scores.iter().fold((sink.is_nan(), sink == f32::INFINITY), |(nan, inf), x| {
            (nan || x.is_nan(), inf || *x == f32::INFINITY)
        });
        let keys = 0..scores.len();
        let is_hidden = |key: &usize| scores[*key] == f32::NEG_INFINITY;
        let hidden: Vec<usize> = if nan || inf { keys.filter(is_hidden).collect() } else { vec![] };
        SoftmaxRow { scores, sink }.with_simd(simd);
        for key in hidden {
            scores[key] = 0.0;
        }
    }
}

/// Adds `slope·|distance|` to each score; the first is `distance` away, the next one less.
#[inline(always)]
fn add_distances<S: Simd>(simd: S, slope: f32, distance: f32, scores: &mut [f32]) {
    let slopes = simd.splat_f32s(slope);
    let mut distances = simd.sub_f32s(simd.splat_f32s(distance), lanes(simd));
    let step = simd.splat_f32s(S::F32_LANES as f32);
    let (vectors, tail) = S::as_mut_simd_f32s(scores);
    for x in vectors {
        *x = simd.mul_add_e_f32s(slopes, simd.abs_f32s(distances), *x);
        distances = simd.sub_f32s(distances, step);
    }
    if !tail.is_empty() {
        let last = simd.partial_load_f32s(tail);
        simd.partial_store_f32s(tail, simd.mul_add_e_f32s(slopes, simd.abs_f32s(distances), last));
    }
}

/// The index of each lane.
#[inline(always)]
pub(super) fn lanes<S: Simd>(simd: S) -> S::f32s {
    /// One entry per lane of the widest vector.
    const LANES: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    simd.partial_load_f32s(&LANES[..S::F32_LANES])
}

/// A tensor (B or 1, H or 1, T, S) that is added to the scores.
#[derive(Debug)]
struct AddedScores {
    numbers: Vec<f32>,
    /// The distance between batch rows, between heads and between queries: 0 where all share.
    strides: [usize; 3],
    /// S
    keys: usize,
}

impl AddedScores {
    fn new(added: &Tensor) -> Result<Self> {
        let mut added = added.clone();
        for dim in 0..3 {
            if added.stride()[dim] == 0 && added.dim(dim)? > 1 {
                added = added.narrow(dim, 0, 1)?; // a broadcast view
            }
        }
        let (b, h, queries, keys) = added.dims4()?;
        let numbers = added.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let of_query = if queries == 1 { 0 } else { keys };
        let of_head = if h == 1 { 0 } else { queries * keys };
        let of_row = if b == 1 { 0 } else { h * queries * keys };
        Ok(Self { numbers, strides: [of_row, of_head, of_query], keys })
    }

    /// The numbers added to the scores of a query, (S).
    #[inline(always)]
    fn row(&self, query: Query) -> &[f32] {
        let [of_row, of_head, of_query] = self.strides;
        let start = query.b * of_row + query.h * of_head + query.i * of_query;
        &self.numbers[start..start + self.keys]
    }
}

/// `1 - tanh²`, the slope of the soft cap, from capped scores.
#[inline(always)]
pub(super) fn slopes_of_cap<S: Simd>(simd: S, cap: f32, capped: &[f32], slopes: &mut [f32]) {
    let inverse = simd.splat_f32s(1.0 / cap);
    let one = simd.splat_f32s(1.0);
    let (slopes, slopes_tail) = S::as_mut_simd_f32s(slopes);
    let (capped, capped_tail) = S::as_simd_f32s(capped);
    for (slope, x) in slopes.iter_mut().zip(capped) {
        let t = simd.mul_f32s(*x, inverse);
        *slope = simd.mul_f32s(simd.sub_f32s(one, t), simd.add_f32s(one, t));
    }
    for (slope, x) in slopes_tail.iter_mut().zip(capped_tail) {
        let t = x / cap;
        *slope = (1.0 - t) * (1.0 + t);
    }
}

/// Softmax of a row of scores in place, with a sink or -inf; all zeros if every score is -inf.
struct SoftmaxRow<'a> {
    scores: &'a mut [f32],
    sink: f32,
}

impl WithSimd for SoftmaxRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { scores, sink } = self;
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY && !scores.iter().any(|x| x.is_nan()) {
            scores.fill(0.0);
            return;
        }
        let max = max.max(sink);
        let (vectors, tail) = S::as_mut_simd_f32s(scores);
        let minus = simd.splat_f32s(-max);
        let log2_e = simd.splat_f32s(std::f32::consts::LOG2_E);
        let mut sum = simd.splat_f32s(0.0);
        for x in vectors.iter_mut() {
            *x = exp2(simd, simd.mul_f32s(simd.add_f32s(*x, minus), log2_e));
            sum = simd.add_f32s(sum, *x);
        }
        let mut total = simd.reduce_sum_f32s(sum);
        for x in tail.iter_mut() {
            *x = ((*x - max) * std::f32::consts::LOG2_E).exp2();
            total += *x;
        }
        total += ((sink - max) * std::f32::consts::LOG2_E).exp2();
        let factor = simd.splat_f32s(1.0 / total);
        for x in vectors {
            *x = simd.mul_f32s(*x, factor);
        }
        for x in tail {
            *x /= total;
        }
    }
}
