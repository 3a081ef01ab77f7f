//! One tile of queries against all keys that they see: online softmax as in FlashAttention-2
//! (Dao 2023, algorithm 1), with scores in base 2.

use super::attention_weights::SummaryOfRow;
use super::blocks::{
    Blocks, HEADROOM, KEYS, MatrixStrides, NARROW_SCORES, NARROW_SUMS, QUERIES, WIDE_SCORES, WIDE_SUMS,
    add_rows, outer,
};
use super::decode::{AddSpan, QueryOfHeads, Span, SpanRows, SpanScratch};
use super::pack::{PackedHead, transpose};
use super::pass_inputs::{PassInputs, SharedOutput};
use super::summary::{Moments, RunningSummary};
use super::views::HeadAt;
use crate::attention::scores::Base;
use crate::cpu::vector::exp2;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// A tile's working memory.
pub(super) struct TileScratch {
    /// Scaled queries, depth-major in groups of a block's rows: `queries[group][d][row]`.
    queries: Vec<f32>,
    /// Queries that memory does not hold as rows of f32.
    copied_rows: Vec<f32>,
    scores: Vec<f32>,
    /// The unnormalized context, `QUERIES` rows of `width`.
    context: Vec<f32>,
    max: [f32; QUERIES],
    sum: [f32; QUERIES],
    /// The running summary of each query's weights.
    summaries: [RunningSummary; QUERIES],
}

impl TileScratch {
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
pub(super) struct QueryTile<'a> {
    pub(super) problem: &'a PassInputs<'a>,
    pub(super) packed: &'a PackedHead,
    pub(super) head: HeadAt,
    pub(super) first: usize,
    /// Up to [`QUERIES`].
    pub(super) rows: usize,
    /// Dv, padded to whole vectors.
    pub(super) width: usize,
    pub(super) out: &'a SharedOutput<'a>,
}

/// A tile, from q to the output, and its thread's memory.
pub(super) struct TileTask<'a> {
    pub(super) tile: QueryTile<'a>,
    pub(super) scratch: &'a mut TileScratch,
}

impl WithSimd for TileTask<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { tile, scratch } = self;
        if !tile.packed.summable {
            tile.run_row_by_row(simd);
        } else if tile.out.summarizes() {
            tile.run::<S, true>(simd, scratch);
        } else {
            tile.run::<S, false>(simd, scratch);
        }
    }
}

impl QueryTile<'_> {
    /// For values that a tile cannot sum.
    #[inline(always)]
    fn run_row_by_row<S: Simd>(&self, simd: S) {
        let HeadAt { b, h } = self.head;
        let spans = Span::count(self.problem);
        let mut rows = SpanRows::default();
        let mut scratch = SpanScratch::default();
        for i in self.first..self.first + self.rows {
            rows.clear();
            for n in 0..spans {
                let span = Span::new(self.problem, QueryOfHeads { b, heads: h..h + 1, i }, n);
                AddSpan { span, rows: &mut rows, scratch: &mut scratch }.with_simd(simd);
            }
            let (sum, context) = rows.merge(0..spans);
            let query = self.head.query(i);
            let (log_sum, share) = sum.finish(self.problem, h);
            // SAFETY: each query is written once, because tiles do not overlap.
            unsafe {
                self.out.write(query, &context, share, log_sum);
                self.out
                    .write_summary(query, || SummaryOfRow { problem: self.problem, query }.with_simd(simd));
            }
        }
    }

    #[inline(always)]
    fn run<S: Simd, const SUMMARY: bool>(&self, simd: S, scratch: &mut TileScratch) {
        self.load_queries(simd, Blocks::of::<S>().rows(), scratch);
        self.sum::<S, SUMMARY>(simd, scratch);
        for r in 0..self.rows {
            let sum = scratch.sum[r];
            let (log_sum, factor) = self.problem.finish_row(self.head.h, scratch.max[r], sum);
            let row = &scratch.context[r * self.width..(r + 1) * self.width];
            let query = self.head.query(self.first + r);
            // SAFETY: each query is written once, because tiles do not overlap.
            unsafe {
                self.out.write(query, row, factor, log_sum);
                self.out.write_summary(query, || scratch.summaries[r].finish(sum, factor, log_sum));
            }
        }
    }

    /// The queries times the rules' factor, depth-major in groups of `group` rows.
    #[inline(always)]
    fn load_queries<S: Simd>(&self, simd: S, group: usize, scratch: &mut TileScratch) {
        let q = &self.problem.q;
        for (i, out) in scratch.queries.chunks_exact_mut(group * q.dims[3]).enumerate() {
            let rows = (i * group).min(self.rows)..((i + 1) * group).min(self.rows);
            let rows = self.first + rows.start..self.first + rows.end;
            transpose(
                simd,
                q,
                self.head,
                rows,
                self.problem.query_factor(),
                (out, group),
                &mut scratch.copied_rows,
            );
        }
    }

    /// Writes `Σ 2^(s-max)·v` to `scratch.context` and `Σ 2^(s-max)` to `scratch.sum`; both are 0 for a
    /// query that sees no key. With `SUMMARY`, it also fills `scratch.summaries`.
    #[inline(always)]
    fn sum<S: Simd, const SUMMARY: bool>(&self, simd: S, scratch: &mut TileScratch) {
        scratch.context.fill(0.0);
        scratch.max.fill(f32::NEG_INFINITY);
        scratch.sum.fill(0.0);
        scratch.summaries.fill(RunningSummary::NOTHING);
        let rules = self.problem.rules;
        let b = self.head.b;
        let visible = rules.mask.visible(b, rules.keys);
        // From the first key that the first query sees, at the start of its panel, to the last that the last one sees.
        let of_mask = rules.mask.first_of_any(b, self.first..self.first + self.rows);
        let first = rules.keys_of(self.first).start.max(of_mask);
        let first = first - first % Blocks::of::<S>().panel::<S>();
        let end = rules.keys_of(self.first + self.rows - 1).end;
        let first_key = rules.mask.first_key(b, rules.keys);
        for start in (first..end).step_by(KEYS) {
            let keys = KEYS.min(end - start);
            if visible.is_some_and(|v| v[start..start + keys].iter().all(|&x| x == 0)) {
                continue;
            }
            if !rules.mask.ranges_reach(b, self.first..self.first + self.rows, start..start + keys) {
                continue;
            }
            self.scores(simd, scratch, start, keys);
            self.softmax::<S, SUMMARY>(simd, scratch, start, keys, first_key);
            self.context(simd, scratch, start, keys);
        }
    }

    /// The keys that row `r` sees by its position, of `keys` keys from `start` on, counted from `start`.
    #[inline(always)]
    fn seen(&self, r: usize, start: usize, keys: usize) -> Range<usize> {
        self.problem.rules.keys_in(self.first + r, start, keys)
    }

    #[inline(always)]
    fn scores<S: Simd>(&self, simd: S, scratch: &mut TileScratch, start: usize, keys: usize) {
        if const { Blocks::are_wide::<S>() } {
            self.scores_in::<S, { WIDE_SCORES.rows }, { WIDE_SCORES.vectors }>(simd, scratch, start, keys);
        } else {
            self.scores_in::<S, { NARROW_SCORES.rows }, { NARROW_SCORES.vectors }>(
                simd, scratch, start, keys,
            );
        }
    }

    #[inline(always)]
    fn scores_in<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        scratch: &mut TileScratch,
        start: usize,
        keys: usize,
    ) {
        let panel = N * S::F32_LANES;
        let d = self.problem.q.dims[3];
        assert!(KEYS.is_multiple_of(panel) && QUERIES.is_multiple_of(M) && start.is_multiple_of(panel));
        assert!(scratch.queries.len() == QUERIES * d && scratch.scores.len() == QUERIES * KEYS);
        assert!(self.packed.keys.len() >= (start + keys).div_ceil(panel) * panel * d);
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
                        d,
                        scratch.queries.as_ptr().add(r * d),
                        self.packed.keys.as_ptr().add((start + c) * d),
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
        scratch: &mut TileScratch,
        start: usize,
        keys: usize,
        first_key: usize,
    ) {
        let rules = self.problem.rules;
        let lanes = S::F32_LANES;
        let columns = keys.next_multiple_of(lanes); // KEYS is a multiple of the lanes
        for r in 0..self.rows {
            let row = &mut scratch.scores[r * KEYS..(r + 1) * KEYS];
            let seen = self.seen(r, start, keys);
            row[..seen.start].fill(f32::NEG_INFINITY);
            row[seen.end..columns].fill(f32::NEG_INFINITY);
            let query = self.head.query(self.first + r);
            rules.finish(simd, Base::Two, query, start + seen.start, &mut row[seen.clone()]);
            let position = rules.position(query.i);
            let mut highest = simd.splat_f32s(f32::NEG_INFINITY);
            for x in S::as_simd_f32s(&row[..columns]).0 {
                highest = simd.max_f32s(highest, *x);
            }
            let before = scratch.max[r];
            let highest = simd.reduce_max_f32s(highest);
            if SUMMARY {
                scratch.summaries[r].look(&row[..columns], start, position, first_key, highest);
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
            self.problem.drop_weights(query, start + seen.start, &mut row[seen]);
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
    fn context<S: Simd>(&self, simd: S, scratch: &mut TileScratch, start: usize, keys: usize) {
        if const { Blocks::are_wide::<S>() } {
            self.context_in::<S, { WIDE_SUMS.rows }, { WIDE_SUMS.vectors }>(simd, scratch, start, keys);
        } else {
            self.context_in::<S, { NARROW_SUMS.rows }, { NARROW_SUMS.vectors }>(simd, scratch, start, keys);
        }
    }

    #[inline(always)]
    fn context_in<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        scratch: &mut TileScratch,
        start: usize,
        keys: usize,
    ) {
        // A block of the values' columns stays in the first-level cache for all rows.
        let block = N * S::F32_LANES;
        for c in (0..self.width).step_by(block) {
            let columns = block.min(self.width - c);
            let v = &self.packed.values[c * self.problem.rules.keys..];
            let strides = MatrixStrides { p: (KEYS, 1), v: columns, out: self.width };
            for r in (0..self.rows).step_by(M) {
                let (before, after) =
                    (self.seen(r, start, keys).start, self.seen(r + M - 1, start, keys).end);
                let p = &scratch.scores[r * KEYS + before..];
                let v = &v[(start + before) * columns..];
                let out = &mut scratch.context[r * self.width + c..];
                add_rows::<S, M, N>(simd, after.saturating_sub(before), columns, p, v, out, strides);
            }
        }
    }
}
