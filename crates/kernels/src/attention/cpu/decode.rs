//! Attention for one query of a few heads at a time, reading k and v in place. Decoding uses it, because it reads each key
//! once, and packing a key would cost as much as using it. So do passes with values that are infinite, NaN or
//! close to overflow: here a hidden value is never touched, and a visible one is weighted before it is added.
//!
//! The keys are split into spans of a fixed length; tasks compute the spans, and their results are merged
//! in order. A long past therefore keeps all threads busy, and the result does not depend on how many
//! there are.

use super::pass_inputs::{LogSum, PassInputs};
use super::views::{HeadAt, Heads};
use crate::attention::heads::Query;
use crate::attention::scores::Base;
use crate::cpu::dot_products::{add_scaled, add_scaled_to, dots, dots_of};
use crate::cpu::vector::exp2;
use pulp::{Simd, WithSimd};
use std::iter::StepBy;
use std::ops::Range;

/// Keys per span: enough work to be worth a task of its own.
const SPAN: usize = 256;
/// The number of keys read at a time.
const STREAMS: usize = 4;

/// The distance, in bytes, at which rows are fetched ahead: processors do so themselves, but not beyond the end of a page.
const AHEAD: usize = 4096;

/// The most heads that share their keys in one task: each row of keys is read once for all of them.
const HEADS: usize = 4;

/// Query `i` of some heads of batch row `b` that share their keys.
#[derive(Debug, Clone)]
pub(super) struct QueryOfHeads {
    pub(super) b: usize,
    pub(super) heads: Range<usize>,
    pub(super) i: usize,
}

/// A query and a span of the keys: the work of one task.
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

/// One query's attention over some of the keys, before merging with the other spans.
pub(super) struct SpanAttention {
    /// The highest score, in base 2; -inf if no key is visible.
    max: f32,
    /// `Σ 2^(score - max)`; 0 if no key is visible.
    sum: f32,
    /// `Σ weight·v` with weights that sum to 1, (Dv).
    pub(super) context: Vec<f32>,
}

impl SpanAttention {
    /// The log-sum of all keys of a query and its head's sink, and the share of the context that the sink leaves.
    pub(super) fn finish(&self, problem: &PassInputs, head: usize) -> (LogSum, f32) {
        let (log_sum, factor) = problem.finish_row(head, self.max, self.sum);
        (log_sum, if problem.rules.sink(head, Base::Two).is_some() { self.sum * factor } else { 1.0 })
    }

    /// Merges the spans of the n-th head of a query, but for those that saw no key, whose context may be NaN.
    #[allow(clippy::float_cmp)] // exactly 0 if a span saw no key
    pub(super) fn merge(spans: &[Vec<Self>], n: usize) -> Self {
        let spans = || spans.iter().map(|heads| &heads[n]);
        let max = spans().fold(f32::NEG_INFINITY, |max, span| max.max(span.max));
        let seen = || spans().filter(|span| span.sum != 0.0);
        let part = |span: &Self| span.sum * (span.max - max).exp2();
        let sum: f32 = seen().map(part).sum();
        let mut context = vec![0.0; spans().next().map_or(0, |span| span.context.len())];
        for span in seen() {
            let weight = part(span) / sum;
            for (out, x) in context.iter_mut().zip(&span.context) {
                *out += weight * x;
            }
        }
        Self { max, sum, context }
    }
}

/// The keys of a span that some heads see.
struct SeenKeys {
    /// The head of keys and values.
    head: HeadAt,
    /// The places of the keys in the span, in order.
    places: Places,
}

/// Places in a span, in order.
enum Places {
    /// All places below a number.
    All(usize),
    Some(Vec<usize>),
}

impl Places {
    fn count(&self) -> usize {
        match self {
            Self::All(count) => *count,
            Self::Some(places) => places.len(),
        }
    }

    /// The n-th place.
    #[inline(always)]
    fn at(&self, n: usize) -> usize {
        match self {
            Self::All(_) => n,
            Self::Some(places) => places[n],
        }
    }

    /// The first of each [`STREAMS`] places, and of those that are left.
    fn groups(&self) -> (StepBy<Range<usize>>, Range<usize>) {
        let count = self.count();
        let whole = count - count % STREAMS;
        ((0..whole).step_by(STREAMS), whole..count)
    }

    /// [`STREAMS`] places from the n-th on.
    #[inline(always)]
    fn group(&self, n: usize) -> [usize; STREAMS] {
        std::array::from_fn(|i| self.at(n + i))
    }
}

/// The number of rows to fetch ahead.
fn rows_ahead(x: &Heads) -> usize {
    AHEAD.div_ceil(x.row_bytes())
}

/// Rows of a head.
#[inline(always)]
fn streams<'a, 'b: 'a, S: Simd>(
    simd: S,
    x: &Heads<'b>,
    head: HeadAt,
    rows: [usize; STREAMS],
    scratch: &'a mut [Vec<f32>; STREAMS],
) -> [&'a [f32]; STREAMS] {
    let [i, j, k, l] = rows;
    let [p, q, r, s] = scratch;
    [x.row(simd, head, i, p), x.row(simd, head, j, q), x.row(simd, head, k, r), x.row(simd, head, l, s)]
}

impl WithSimd for Span<'_> {
    /// One for each head.
    type Output = Vec<SpanAttention>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Vec<SpanAttention> {
        let heads = &self.query.heads;
        if self.problem.rules.mask.hidden.is_empty() {
            return self.of_heads(simd, heads.clone());
        }
        // Each head may see other keys.
        let mut partials = vec![];
        for h in heads.clone() {
            partials.extend(self.of_heads(simd, h..h + 1));
        }
        partials
    }
}

impl Span<'_> {
    /// Computes heads that see the same keys.
    #[inline(always)]
    fn of_heads<S: Simd>(&self, simd: S, heads: Range<usize>) -> Vec<SpanAttention> {
        let QueryOfHeads { b, i, .. } = self.query;
        let d = self.problem.q.dims[3];
        let dv = self.problem.v.dims[3];
        let mut scratch: [Vec<f32>; STREAMS] = std::array::from_fn(|_| vec![0.0; d.max(dv)]);
        let queries = self.scaled_queries(simd, heads.clone(), &mut scratch[0]);
        let keys = self.seen_keys(heads.start);
        // A hidden key keeps the score -inf, and so does everything beyond the span.
        let mut weights = vec![f32::NEG_INFINITY; heads.len() * SPAN];
        self.score(simd, &queries, &keys, &mut scratch, &mut weights);
        let mut partials = Vec::with_capacity(heads.len());
        for (h, weights) in heads.zip(weights.chunks_exact_mut(SPAN)) {
            partials.push(self.softmax(simd, Query { b, h, i }, weights));
        }
        self.add_values(simd, &weights, &keys, &mut scratch, &mut partials);
        partials
    }

    /// The rows of q for these heads, times the factor on their scores: (heads, D)
    #[inline(always)]
    fn scaled_queries<S: Simd>(&self, simd: S, heads: Range<usize>, scratch: &mut [f32]) -> Vec<f32> {
        let q = &self.problem.q;
        let QueryOfHeads { b, i, .. } = self.query;
        let factor = self.problem.query_factor();
        let mut queries = Vec::with_capacity(heads.len() * q.dims[3]);
        for h in heads {
            queries.extend(q.row(simd, HeadAt { b, h }, i, scratch).iter().map(|x| x * factor));
        }
        queries
    }

    /// The keys of the span that head `h` sees.
    #[inline(always)]
    fn seen_keys(&self, h: usize) -> SeenKeys {
        let rules = self.problem.rules;
        let QueryOfHeads { b, i, .. } = self.query;
        let head = self.problem.key_head(HeadAt { b, h });
        if rules.mask.hides_nothing() {
            return SeenKeys { head, places: Places::All(self.keys.len()) };
        }
        let visible = rules.mask.visible(b, rules.keys).map(|visible| &visible[self.keys.clone()]);
        let sees = |&j: &usize| {
            visible.is_none_or(|visible| visible[j] != 0)
                && rules.mask.lets_see(b, i, self.keys.start + j)
                && !rules.mask.hidden.hides(h, i, self.keys.start + j)
        };
        SeenKeys { head, places: Places::Some((0..self.keys.len()).filter(sees).collect()) }
    }

    /// Writes the products of the queries (heads, D) with the keys to `weights` (heads, SPAN).
    #[inline(always)]
    fn score<S: Simd>(
        &self,
        simd: S,
        queries: &[f32],
        keys: &SeenKeys,
        scratch: &mut [Vec<f32>; STREAMS],
        weights: &mut [f32],
    ) {
        let k = &self.problem.k;
        let d = self.problem.q.dims[3];
        let (groups, rest) = keys.places.groups();
        let ahead = rows_ahead(k);
        for n in groups {
            let group = keys.places.group(n);
            let next = group[0] + ahead;
            for j in next..next + STREAMS {
                // After the last keys come the first values.
                if j < self.keys.len() {
                    k.fetch_row(keys.head, self.keys.start + j);
                } else {
                    self.problem.v.fetch_row(keys.head, self.keys.start + j - self.keys.len());
                }
            }
            let rows = streams(simd, k, keys.head, group.map(|j| self.keys.start + j), scratch);
            for (queries, weights) in queries.chunks(2 * d).zip(weights.chunks_mut(2 * SPAN)) {
                let (query, second) = queries.split_at(d);
                if second.is_empty() {
                    for (j, score) in group.into_iter().zip(dots(simd, query, rows)) {
                        weights[j] = score;
                    }
                    continue;
                }
                let scores = dots_of(simd, [query, second], rows);
                for (weights, scores) in weights.chunks_exact_mut(SPAN).zip(scores) {
                    for (j, score) in group.into_iter().zip(scores) {
                        weights[j] = score;
                    }
                }
            }
        }
        for j in rest.map(|n| keys.places.at(n)) {
            let row = k.row(simd, keys.head, self.keys.start + j, &mut scratch[0]);
            for (query, weights) in queries.chunks_exact(d).zip(weights.chunks_exact_mut(SPAN)) {
                [weights[j]] = dots(simd, query, [row]);
            }
        }
    }

    /// Turns a head's scores (SPAN) into weights, which sum to 1 before dropout. The context of the result is still 0.
    #[inline(always)]
    fn softmax<S: Simd>(&self, simd: S, query: Query, weights: &mut [f32]) -> SpanAttention {
        let dv = self.problem.v.dims[3];
        let count = self.keys.len();
        let mut partial = SpanAttention { max: f32::NEG_INFINITY, sum: 0.0, context: vec![0.0; dv] };
        self.problem.rules.finish(simd, Base::Two, query, self.keys.start, &mut weights[..count]);
        // Whatever is not seen has the score -inf.
        let mut highest = simd.splat_f32s(f32::NEG_INFINITY);
        for x in S::as_simd_f32s(weights).0 {
            highest = simd.max_f32s(highest, *x);
        }
        let max = simd.reduce_max_f32s(highest);
        partial.max = max;
        // With NaN the maximum is arbitrary; the sum is NaN either way.
        if max == f32::NEG_INFINITY && !weights.iter().any(|x| x.is_nan()) {
            return partial;
        }
        let mut sum = simd.splat_f32s(0.0);
        for x in S::as_mut_simd_f32s(weights).0 {
            *x = exp2(simd, simd.sub_f32s(*x, simd.splat_f32s(max)));
            sum = simd.add_f32s(sum, *x);
        }
        partial.sum = simd.reduce_sum_f32s(sum);
        self.problem.drop_weights(query, self.keys.start, &mut weights[..count]);
        let share = 1.0 / partial.sum;
        for x in weights {
            *x *= share;
        }
        partial
    }

    /// Adds the weighted values to the contexts, in the order of the keys.
    #[inline(always)]
    fn add_values<S: Simd>(
        &self,
        simd: S,
        weights: &[f32],
        keys: &SeenKeys,
        scratch: &mut [Vec<f32>; STREAMS],
        partials: &mut [SpanAttention],
    ) {
        let v = &self.problem.v;
        let (groups, rest) = keys.places.groups();
        let ahead = rows_ahead(v);
        for n in groups {
            let group = keys.places.group(n);
            let next = self.keys.start + group[0] + ahead;
            (next..(next + STREAMS).min(self.keys.end)).for_each(|j| v.fetch_row(keys.head, j));
            let rows = streams(simd, v, keys.head, group.map(|j| self.keys.start + j), scratch);
            for (partials, weights) in partials.chunks_mut(2).zip(weights.chunks(2 * SPAN)) {
                let (first, second) = weights.split_at(SPAN);
                let of_first = group.map(|j| first[j]);
                match partials {
                    [a, b] => {
                        let factors = [of_first, group.map(|j| second[j])];
                        add_scaled_to(simd, [&mut a.context, &mut b.context], factors, rows);
                    }
                    some => {
                        for one in some {
                            add_scaled(simd, &mut one.context, of_first, rows);
                        }
                    }
                }
            }
        }
        for j in rest.map(|n| keys.places.at(n)) {
            let row = v.row(simd, keys.head, self.keys.start + j, &mut scratch[0]);
            for (partial, weights) in partials.iter_mut().zip(weights.chunks_exact(SPAN)) {
                add_scaled(simd, &mut partial.context, [weights[j]], [row]);
            }
        }
    }
}
