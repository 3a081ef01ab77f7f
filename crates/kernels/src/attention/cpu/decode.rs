//! Attention for one query of a few heads at a time, reading k and v in place. Decoding uses it, because it reads each key
//! once, and packing a key would cost as much as using it. So do passes with values that are infinite, NaN or
//! close to overflow: here a hidden value is never touched, and a visible one is weighted before it is added.
//!
//! The keys are split into spans of a fixed length; tasks compute spans that follow each other, and the results of all spans are merged
//! in order. A long past therefore keeps all threads busy, and the result does not depend on how many
//! there are.

use super::pass_inputs::{LogSum, PassInputs};
use super::row_steps::{AddValues, ScoreKeys};
use super::views::HeadAt;
use crate::attention::heads::Query;
use crate::attention::scores::Base;
use crate::cpu::vector::exp2;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Keys per span: enough work to be worth a task.
const SPAN: usize = 512;
/// A whole number of vectors on every instruction set.
const LANES: usize = 16;
/// The most heads that share their keys in one span: each row of keys is read once for all of them.
const HEADS: usize = 4;

/// Query `i` of some heads of batch row `b` that share their keys.
#[derive(Debug, Clone)]
pub(super) struct QueryOfHeads {
    pub(super) b: usize,
    pub(super) heads: Range<usize>,
    pub(super) i: usize,
}

/// A query and a span of the keys: the least work of a task.
pub(super) struct Span<'a> {
    problem: &'a PassInputs<'a>,
    query: QueryOfHeads,
    keys: Range<usize>,
}

impl<'a> Span<'a> {
    /// All queries.
    pub(super) fn queries(problem: &PassInputs) -> Vec<QueryOfHeads> {
        let [b, h, t, _] = problem.q.dims;
        let group = problem.group();
        let firsts = (0..h).filter(|h| (h % group).is_multiple_of(HEADS));
        let heads: Vec<_> =
            firsts.map(|first| first..(first + HEADS).min(first - first % group + group)).collect();
        let mut queries = Vec::with_capacity(b * heads.len() * t);
        // Loops, because valgrind reports what the compiler makes of nested iterators.
        for b in 0..b {
            for heads in &heads {
                queries.extend((0..t).map(|i| QueryOfHeads { b, heads: heads.clone(), i }));
            }
        }
        queries
    }

    /// The number of spans of each query.
    pub(super) fn count(problem: &PassInputs) -> usize {
        problem.rules.most_keys().div_ceil(SPAN)
    }

    /// The n-th span of a query; empty if the query sees none of its keys.
    pub(super) fn new(problem: &'a PassInputs<'a>, query: QueryOfHeads, n: usize) -> Self {
        let seen = problem.rules.keys_of(query.i);
        let at = |n: usize| (seen.start + n * SPAN).min(seen.end);
        Self { problem, query, keys: at(n)..at(n + 1) }
    }
}

/// Results of spans that follow one another: a row for each head of each span.
#[derive(Default)]
pub(super) struct SpanRows {
    sums: Vec<RowSum>,
    /// `Σ weight·v` with weights that sum to 1, (rows, Dv).
    contexts: Vec<f32>,
}

/// Memory that each span uses anew.
#[derive(Default)]
pub(super) struct SpanScratch {
    /// (heads, D)
    queries: Vec<f32>,
    /// (D)
    row: Vec<f32>,
    /// (heads, span)
    weights: Vec<f32>,
}

/// The largest score of a query in a head, and the sum of all in powers of 2.
#[derive(Clone, Copy)]
pub(super) struct RowSum {
    /// The highest score, in base 2; -inf if no key is visible.
    max: f32,
    /// `Σ 2^(score - max)`; 0 if no key is visible.
    sum: f32,
}

impl RowSum {
    /// The log-sum of all keys of a query and its head's sink, and the share of the context that the sink leaves.
    pub(super) fn finish(self, problem: &PassInputs, head: usize) -> (LogSum, f32) {
        let (log_sum, factor) = problem.finish_row(head, self.max, self.sum);
        (log_sum, if problem.rules.sink(head, Base::Two).is_some() { self.sum * factor } else { 1.0 })
    }
}

impl SpanRows {
    pub(super) fn clear(&mut self) {
        self.sums.clear();
        self.contexts.clear();
    }

    /// Appends the rows of the spans that follow.
    pub(super) fn append(&mut self, next: &Self) {
        self.sums.extend_from_slice(&next.sums);
        self.contexts.extend_from_slice(&next.contexts);
    }

    /// The sum and the context (Dv) of a head of a query from its rows, one of each span. A span that saw no key is left out, since its
    /// context may be NaN.
    #[allow(clippy::float_cmp)] // exactly 0 if a span saw no key
    pub(super) fn merge(&self, rows: impl Iterator<Item = usize> + Clone) -> (RowSum, Vec<f32>) {
        let dv = self.contexts.len() / self.sums.len();
        let max = rows.clone().fold(f32::NEG_INFINITY, |max, row| max.max(self.sums[row].max));
        let seen = || rows.clone().filter(|row| self.sums[*row].sum != 0.0);
        let part = |row: usize| self.sums[row].sum * (self.sums[row].max - max).exp2();
        let sum: f32 = seen().map(part).sum();
        let mut context = vec![0.0; dv];
        for row in seen() {
            let weight = part(row) / sum;
            for (out, x) in context.iter_mut().zip(&self.contexts[row * dv..]) {
                *out += weight * x;
            }
        }
        (RowSum { max, sum }, context)
    }
}

/// Computes a span and appends what it finds.
pub(super) struct AddSpan<'a, 'b> {
    pub(super) span: Span<'a>,
    pub(super) rows: &'b mut SpanRows,
    pub(super) scratch: &'b mut SpanScratch,
}

impl WithSimd for AddSpan<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { span, rows: SpanRows { sums, contexts }, scratch } = self;
        let heads = &span.query.heads;
        let dv = span.problem.v.dims[3];
        let first = contexts.len();
        contexts.resize(first + heads.len() * dv, 0.0);
        let contexts = &mut contexts[first..];
        if span.problem.rules.mask.hidden.is_empty() {
            span.of_heads(simd, heads.clone(), sums, contexts, scratch);
        } else {
            // Each head may see other keys.
            for (h, context) in heads.clone().zip(contexts.chunks_exact_mut(dv)) {
                span.of_heads(simd, h..h + 1, sums, context, scratch);
            }
        }
    }
}

impl Span<'_> {
    /// Computes heads that see the same keys: appends to `sums`, and adds to their `contexts` (heads, Dv).
    #[inline(always)]
    fn of_heads<S: Simd>(
        &self,
        simd: S,
        heads: Range<usize>,
        sums: &mut Vec<RowSum>,
        contexts: &mut [f32],
        SpanScratch { queries, row, weights }: &mut SpanScratch,
    ) {
        let QueryOfHeads { b, i, .. } = self.query;
        let PassInputs { k, v, .. } = self.problem;
        let head = self.problem.key_head(HeadAt { b, h: heads.start });
        let seen = self.seen_keys(heads.start);
        k.fetch_first(simd, head, &seen);
        self.scale_queries(simd, heads.clone(), queries, row);
        let span = self.keys.clone();
        // A hidden key keeps the score -inf, and so does what fills the last vector.
        let stride = span.len().max(1).next_multiple_of(LANES);
        weights.clear();
        weights.resize(heads.len() * stride, f32::NEG_INFINITY);
        for keys in &seen {
            let mut step = ScoreKeys { queries, scores: weights, span: span.clone() };
            k.take(simd, head, keys.clone(), &mut step);
        }
        v.fetch_first(simd, head, &seen);
        for (h, weights) in heads.zip(weights.chunks_exact_mut(stride)) {
            sums.push(self.softmax(simd, Query { b, h, i }, weights));
        }
        for keys in seen {
            let mut step = AddValues { weights, contexts, span: span.clone() };
            v.take(simd, head, keys, &mut step);
        }
    }

    /// Writes the rows of q for these heads, times the factor on their scores, to `queries` (heads, D).
    #[inline(always)]
    fn scale_queries<S: Simd>(
        &self,
        simd: S,
        heads: Range<usize>,
        queries: &mut Vec<f32>,
        row: &mut Vec<f32>,
    ) {
        let q = &self.problem.q;
        let d = q.dims[3];
        let QueryOfHeads { b, i, .. } = self.query;
        let factor = self.problem.query_factor();
        queries.resize(heads.len() * d, 0.0);
        row.resize(d, 0.0);
        for (h, scaled) in heads.zip(queries.chunks_exact_mut(d)) {
            for (out, x) in scaled.iter_mut().zip(q.row(simd, HeadAt { b, h }, i, row)) {
                *out = x * factor;
            }
        }
    }

    /// The keys of the span that head `h` sees: ranges in order.
    #[inline(always)]
    fn seen_keys(&self, h: usize) -> Vec<Range<usize>> {
        let rules = self.problem.rules;
        let QueryOfHeads { b, i, .. } = self.query;
        if rules.mask.hides_nothing() {
            return vec![self.keys.clone()];
        }
        let visible = rules.mask.visible(b, rules.keys);
        let mut seen: Vec<Range<usize>> = vec![];
        for j in self.keys.clone() {
            if visible.is_some_and(|visible| visible[j] == 0)
                || !rules.mask.lets_see(b, i, j)
                || rules.mask.hidden.hides(h, i, j)
            {
                continue;
            }
            match seen.last_mut() {
                Some(last) if last.end == j => last.end += 1,
                _ => seen.push(j..j + 1),
            }
        }
        seen
    }

    /// Turns a head's scores into weights, which sum to 1 before dropout.
    #[inline(always)]
    fn softmax<S: Simd>(&self, simd: S, query: Query, weights: &mut [f32]) -> RowSum {
        let count = self.keys.len();
        self.problem.rules.finish(simd, Base::Two, query, self.keys.start, &mut weights[..count]);
        // Whatever is not seen has the score -inf.
        let mut highest = simd.splat_f32s(f32::NEG_INFINITY);
        for x in S::as_simd_f32s(weights).0 {
            highest = simd.max_f32s(highest, *x);
        }
        let max = simd.reduce_max_f32s(highest);
        // With NaN the maximum is arbitrary; the sum is NaN either way.
        if max == f32::NEG_INFINITY && !weights.iter().any(|x| x.is_nan()) {
            return RowSum { max, sum: 0.0 };
        }
        let mut sum = simd.splat_f32s(0.0);
        for x in S::as_mut_simd_f32s(weights).0 {
            *x = exp2(simd, simd.sub_f32s(*x, simd.splat_f32s(max)));
            sum = simd.add_f32s(sum, *x);
        }
        let sum = simd.reduce_sum_f32s(sum);
        self.problem.drop_weights(query, self.keys.start, &mut weights[..count]);
        let share = 1.0 / sum;
        for x in weights {
            *x *= share;
        }
        RowSum { max, sum }
    }
}
