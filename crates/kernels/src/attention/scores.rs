//! What happens to a score between `q·k` and the softmax, on the CPU: soft cap, ALiBi, an added tensor and masks.
//!
//! ```text
//! score = cap·tanh(q·k·scale / cap) - slope·|position - key| + added        -inf for a hidden key
//! ```
//!
//! Soft capping is that of Gemma Team 2024, "Gemma 2", §2; ALiBi that of Press et al. 2022, "Train Short, Test Long", which
//! is written here with absolute distances, so that it also serves without the causal rule.

use super::mask::{CpuMask, Mask};
use super::window::Window;
use crate::vector::tanh;
use candle_core::{DType, Result, Tensor};
use pulp::Simd;
use std::f32::consts::LOG2_E;
use std::ops::Range;
use std::sync::Arc;

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

/// What makes a score of a product, in every call alike.
#[derive(Debug, Clone)]
pub(super) struct Scoring {
    pub(super) scale: f64,
    pub(super) window: Window,
    pub(super) softcap: Option<f64>,
    /// ALiBi's slope of each head.
    pub(super) slopes: Option<Arc<[f32]>>,
}

impl Scoring {
    /// Only a scale, and the causal window.
    pub(super) fn causal(scale: f64) -> Self {
        Self { scale, window: Window::CAUSAL, softcap: None, slopes: None }
    }
}

/// The rules for T queries against S keys in one call.
#[derive(Debug)]
pub(super) struct ScoreRules {
    scoring: Scoring,
    /// T
    pub(super) queries: usize,
    /// S
    pub(super) keys: usize,
    added: Option<Added>,
    pub(super) mask: CpuMask,
}

impl ScoreRules {
    /// For `q` (B, H, T, D) against S keys.
    pub(super) fn new(scoring: &Scoring, mask: Mask, q: &Tensor, keys: usize) -> Result<Self> {
        let (_, heads, queries, _) = q.dims4()?;
        let added = mask.added.map(Added::new).transpose()?;
        Ok(Self { scoring: scoring.clone(), queries, keys, added, mask: mask.on_cpu(heads)? })
    }

    /// The factor on the scores.
    pub(super) fn scale(&self) -> f64 {
        self.scoring.scale
    }

    /// The soft cap.
    pub(super) fn softcap(&self) -> Option<f64> {
        self.scoring.softcap
    }

    /// The keys that a query sees by its position.
    #[inline(always)]
    pub(super) fn keys_of(&self, i: usize) -> Range<usize> {
        self.scoring.window.keys(i, self.queries, self.keys)
    }

    /// Which of `count` keys from `start` on a query sees by its position, counted from `start`.
    #[inline(always)]
    pub(super) fn keys_in(&self, i: usize, start: usize, count: usize) -> Range<usize> {
        let seen = self.keys_of(i);
        let end = seen.end.saturating_sub(start).min(count);
        seen.start.saturating_sub(start).min(end)..end
    }

    /// The queries that see some of these keys by their position.
    #[inline(always)]
    pub(super) fn queries_of(&self, keys: Range<usize>) -> Range<usize> {
        self.scoring.window.queries(keys, self.queries, self.keys)
    }

    /// A query's own position: negative before the first key.
    #[inline(always)]
    #[allow(clippy::cast_possible_wrap)] // there are fewer than 2^32 keys
    pub(super) fn position(&self, i: usize) -> isize {
        (self.keys + i) as isize - self.queries as isize
    }

    /// The most keys that a query sees by its position.
    pub(super) fn most_keys(&self) -> usize {
        match (self.scoring.window.left, self.scoring.window.right) {
            (Some(left), Some(right)) => left.saturating_add(right).saturating_add(1).min(self.keys),
            _ => self.keys,
        }
    }

    /// The factor on q that makes q·k what [`finish`](Self::finish) takes.
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    pub(super) fn query_factor(&self, base: Base) -> f32 {
        match self.scoring.softcap {
            Some(cap) => (self.scoring.scale / cap) as f32,
            None => (self.scoring.scale * f64::from(base.unit())) as f32,
        }
    }

    /// Makes scores of the products of query (b, h, i) with the keys from `start` on. Does not look at the window.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(
        &self,
        simd: S,
        base: Base,
        query: (usize, usize, usize),
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
        self.scoring.softcap.map(|cap| (cap * f64::from(base.unit())) as f32)
    }

    /// What follows the soft cap.
    #[inline(always)]
    pub(super) fn add_and_hide<S: Simd>(
        &self,
        simd: S,
        base: Base,
        query @ (b, h, i): (usize, usize, usize),
        start: usize,
        scores: &mut [f32],
    ) {
        if let Some(slopes) = &self.scoring.slopes {
            let distance = self.position(i) as f32 - start as f32;
            add_distances(simd, -slopes[h] * base.unit(), distance, scores);
        }
        if let Some(added) = &self.added {
            let unit = base.unit();
            for (score, x) in scores.iter_mut().zip(&added.row(b, h, i)[start..]) {
                // In base 2, the lowest finite number would become -inf.
                let in_base = x * unit;
                *score += if in_base == f32::NEG_INFINITY && x.is_finite() { f32::MIN } else { in_base };
            }
        }
        self.mask.hide(query, self.keys, start, scores);
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
struct Added {
    numbers: Vec<f32>,
    /// The distance between batch rows and between heads: 0 where all share.
    strides: [usize; 2],
    /// S
    keys: usize,
}

impl Added {
    fn new(added: &Tensor) -> Result<Self> {
        let mut added = added.clone();
        for dim in 0..2 {
            if added.stride()[dim] == 0 && added.dim(dim)? > 1 {
                added = added.narrow(dim, 0, 1)?; // a broadcast view
            }
        }
        let (b, h, queries, keys) = added.dims4()?;
        let numbers = added.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let of_head = if h == 1 { 0 } else { queries * keys };
        let of_row = if b == 1 { 0 } else { h * queries * keys };
        Ok(Self { numbers, strides: [of_row, of_head], keys })
    }

    /// What is added to the scores of a query, (S).
    #[inline(always)]
    fn row(&self, b: usize, h: usize, i: usize) -> &[f32] {
        let start = b * self.strides[0] + h * self.strides[1] + i * self.keys;
        &self.numbers[start..start + self.keys]
    }
}

/// `1 - tanh²`, the slope of the soft cap, from capped scores.
#[inline(always)]
pub(super) fn slopes_of_cap<S: Simd>(simd: S, cap: f32, capped: &[f32], slopes: &mut [f32]) {
    let (inverse, one) = (simd.splat_f32s(1.0 / cap), simd.splat_f32s(1.0));
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
