//! One tile of queries against all keys that they see: online softmax as in FlashAttention-2
//! (Dao 2023, algorithm 1), with scores in base 2.

use super::blocks::{Strides, add_rows, outer};
use super::pack::Packed;
use super::sizes::{Blocks, HEADROOM, KEYS, NARROW_SCORES, NARROW_SUMS, QUERIES, WIDE_SCORES, WIDE_SUMS};
use super::summary::{Moments, RunningSummary};
use crate::attention::scores::{Base, ScoreRules};
use crate::vector::exp2;
use pulp::Simd;
use std::ops::Range;

/// A tile's working memory.
pub(super) struct Scratch {
    /// Scaled queries, depth-major in groups of a block's rows: `queries[group][d][row]`.
    pub(super) queries: Vec<f32>,
    /// Queries that memory does not hold as rows of f32.
    pub(super) copied_rows: Vec<f32>,
    scores: Vec<f32>,
    /// The unnormalized context, `QUERIES` rows of `width`.
    pub(super) context: Vec<f32>,
    pub(super) max: [f32; QUERIES],
    pub(super) sum: [f32; QUERIES],
    /// The running summary of each query's weights.
    pub(super) summaries: [RunningSummary; QUERIES],
}

impl Scratch {
    pub(super) fn new(d: usize, width: usize) -> Self {
        Self {
            queries: vec![0.0; QUERIES * d],
            copied_rows: vec![],
            scores: vec![0.0; QUERIES * KEYS],
            context: vec![0.0; QUERIES * width],
            max: [0.0; QUERIES],
            sum: [0.0; QUERIES],
            summaries: [RunningSummary::NOTHING; QUERIES],
        }
    }
}

/// Queries `first..first + rows` of a head.
pub(super) struct Tile<'a, F> {
    pub(super) packed: &'a Packed,
    /// Applies dropout to the weights of a query, starting at a key; does nothing without dropout.
    pub(super) drop: F,
    pub(super) rules: &'a ScoreRules,
    /// (b, h)
    pub(super) head: (usize, usize),
    /// D
    pub(super) d: usize,
    /// Dv, padded to whole vectors.
    pub(super) width: usize,
    /// The first key that is not padding.
    pub(super) first_key: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl<F: Fn(usize, usize, &mut [f32])> Tile<'_, F> {
    /// Writes `Σ 2^(s-max)·v` to `scratch.context` and `Σ 2^(s-max)` to `scratch.sum`; both are 0 for a
    /// query that sees no key. With `SUMMARY`, it also fills `scratch.summaries`.
    #[inline(always)]
    pub(super) fn run<S: Simd, const SUMMARY: bool>(&self, simd: S, scratch: &mut Scratch) {
        scratch.context.fill(0.0);
        scratch.max.fill(f32::NEG_INFINITY);
        scratch.sum.fill(0.0);
        scratch.summaries.fill(RunningSummary::NOTHING);
        let visible = self.rules.mask.visible(self.head.0, self.rules.keys);
        // From the first key that the first query sees, at the start of its panel, to the last that the last one sees.
        let of_mask = self.rules.mask.first_of_any(self.head.0, self.first..self.first + self.rows);
        let first = self.rules.keys_of(self.first).start.max(of_mask);
        let first = first - first % Blocks::of::<S>().panel::<S>();
        let end = self.rules.keys_of(self.first + self.rows - 1).end;
        for start in (first..end).step_by(KEYS) {
            let keys = KEYS.min(end - start);
            if visible.is_some_and(|v| v[start..start + keys].iter().all(|&x| x == 0)) {
                continue;
            }
            self.scores(simd, scratch, start, keys);
            self.softmax::<S, SUMMARY>(simd, scratch, start, keys);
            self.context(simd, scratch, start, keys);
        }
    }

    /// Which of the `keys` keys from `start` on row `r` sees by its position.
    #[inline(always)]
    fn seen(&self, r: usize, start: usize, keys: usize) -> Range<usize> {
        self.rules.keys_in(self.first + r, start, keys)
    }

    #[inline(always)]
    fn scores<S: Simd>(&self, simd: S, scratch: &mut Scratch, start: usize, keys: usize) {
        match Blocks::of::<S>() {
            Blocks::Wide => {
                self.scores_in::<S, { WIDE_SCORES.rows }, { WIDE_SCORES.vectors }>(
                    simd, scratch, start, keys,
                );
            }
            Blocks::Narrow => self.scores_in::<S, { NARROW_SCORES.rows }, { NARROW_SCORES.vectors }>(
                simd, scratch, start, keys,
            ),
        }
    }

    #[inline(always)]
    fn scores_in<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        scratch: &mut Scratch,
        start: usize,
        keys: usize,
    ) {
        let panel = N * S::F32_LANES;
        assert!(KEYS.is_multiple_of(panel) && QUERIES.is_multiple_of(M) && start.is_multiple_of(panel));
        assert!(scratch.queries.len() == QUERIES * self.d && scratch.scores.len() == QUERIES * KEYS);
        assert!(self.packed.keys.len() >= (start + keys).div_ceil(panel) * panel * self.d);
        for c in (0..keys).step_by(panel) {
            for r in (0..self.rows).step_by(M) {
                // The last row of the group sees the latest key, and the first one the earliest.
                let (before, after) =
                    (self.seen(r, start, keys).start, self.seen(r + M - 1, start, keys).end);
                if after <= c || before >= c + panel {
                    continue;
                }
                // SAFETY: the lengths above cover group r / M, panel (start + c) / panel, and M rows of
                // `panel` scores from column c on, since c + panel <= KEYS and r + M <= QUERIES.
                unsafe {
                    outer::<S, M, N>(
                        simd,
                        self.d,
                        scratch.queries.as_ptr().add(r * self.d),
                        self.packed.keys.as_ptr().add((start + c) * self.d),
                        scratch.scores.as_mut_ptr().add(r * KEYS + c),
                        KEYS,
                    );
                }
            }
        }
    }

    /// Turns scores into `2^(s - max)` and rescales the sums taken under an older maximum.
    #[inline(always)]
    fn softmax<S: Simd, const SUMMARY: bool>(
        &self,
        simd: S,
        scratch: &mut Scratch,
        start: usize,
        keys: usize,
    ) {
        let lanes = S::F32_LANES;
        let columns = keys.next_multiple_of(lanes); // KEYS is a multiple of the lanes
        for r in 0..self.rows {
            let row = &mut scratch.scores[r * KEYS..(r + 1) * KEYS];
            let seen = self.seen(r, start, keys);
            row[..seen.start].fill(f32::NEG_INFINITY);
            row[seen.end..columns].fill(f32::NEG_INFINITY);
            let query = (self.head.0, self.head.1, self.first + r);
            self.rules.finish(simd, Base::Two, query, start + seen.start, &mut row[seen.clone()]);
            let position = self.rules.position(self.first + r);
            let mut highest = simd.splat_f32s(f32::NEG_INFINITY);
            for x in S::as_simd_f32s(&row[..columns]).0 {
                highest = simd.max_f32s(highest, *x);
            }
            let before = scratch.max[r];
            let highest = simd.reduce_max_f32s(highest);
            if SUMMARY {
                let places = (start, position, self.first_key);
                scratch.summaries[r].look(&row[..columns], places, highest);
            }
            let max = if highest <= before + HEADROOM { before } else { highest };
            if max == f32::NEG_INFINITY {
                // No key seen yet, or only NaN, which taking a maximum ignores.
                if row[seen].iter().any(|x| x.is_nan()) {
                    scratch.sum[r] = f32::NAN;
                }
                row[..columns].fill(0.0);
                continue;
            }
            let minus = simd.splat_f32s(-max);
            let mut sum = simd.splat_f32s(0.0);
            let mut moments = Moments::<S>::new(simd, position, start);
            for x in S::as_mut_simd_f32s(&mut row[..columns]).0 {
                let exponent = simd.add_f32s(*x, minus);
                *x = exp2(simd, exponent);
                sum = simd.add_f32s(sum, *x);
                if SUMMARY {
                    moments.add(simd, exponent, *x);
                }
            }
            // The sum covers all weights; only the weights that dropout keeps multiply the values.
            (self.drop)(self.first + r, start + seen.start, &mut row[seen]);
            #[allow(clippy::float_cmp)] // exactly 1 if the maximum stays the same
            let scale = if before == max { 1.0 } else { (before - max).exp2() };
            scratch.max[r] = max;
            if SUMMARY {
                scratch.summaries[r].add(moments.sums(simd), max - before, scale, scratch.sum[r]);
            }
            scratch.sum[r] = scratch.sum[r] * scale + simd.reduce_sum_f32s(sum);
            #[allow(clippy::float_cmp)] // as above
            if scale != 1.0 {
                for x in &mut scratch.context[r * self.width..(r + 1) * self.width] {
                    *x *= scale;
                }
            }
        }
    }

    #[inline(always)]
    fn context<S: Simd>(&self, simd: S, scratch: &mut Scratch, start: usize, keys: usize) {
        match Blocks::of::<S>() {
            Blocks::Wide => {
                self.context_in::<S, { WIDE_SUMS.rows }, { WIDE_SUMS.vectors }>(simd, scratch, start, keys);
            }
            Blocks::Narrow => self
                .context_in::<S, { NARROW_SUMS.rows }, { NARROW_SUMS.vectors }>(simd, scratch, start, keys),
        }
    }

    #[inline(always)]
    fn context_in<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        scratch: &mut Scratch,
        start: usize,
        keys: usize,
    ) {
        // A block of the values' columns stays in the first-level cache for all rows.
        let block = N * S::F32_LANES;
        for c in (0..self.width).step_by(block) {
            let columns = block.min(self.width - c);
            let v = &self.packed.values[c * self.rules.keys..];
            let strides = Strides { p: (KEYS, 1), v: columns, out: self.width };
            for r in (0..self.rows).step_by(M) {
                let (before, after) =
                    (self.seen(r, start, keys).start, self.seen(r + M - 1, start, keys).end);
                let p = &scratch.scores[r * KEYS + before..];
                let (v, out) = (&v[(start + before) * columns..], &mut scratch.context[r * self.width + c..]);
                add_rows::<S, M, N>(simd, (after.saturating_sub(before), columns), (p, v, out), strides);
            }
        }
    }
}
