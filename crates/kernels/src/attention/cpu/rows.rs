//! Attention for one query at a time, reading k and v in place. Decoding uses it, because it reads each key
//! once, and packing a key would cost as much as using it. So do passes with values that are infinite, NaN or
//! close to overflow: here a hidden value is never touched, and a visible one is weighted before it is added.
//!
//! The keys are split into spans of a fixed length; tasks compute the spans, and their results are merged
//! in order. A long past therefore keeps all threads busy, and the result does not depend on how many
//! there are.

use super::heads::Heads;
use super::problem::Problem;
use crate::element::Element;
use crate::streams::{add_scaled, dots};
use crate::vector::exp2;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Keys per span: enough work to be worth a task of its own.
const SPAN: usize = 256;
/// The number of keys read at a time.
const STREAMS: usize = 4;

/// A query (b, h, i) and a span of the keys: the work of one task.
pub(super) struct Span<'a, E, K> {
    problem: &'a Problem<'a, E, K>,
    query: (usize, usize, usize),
    keys: Range<usize>,
}

impl<'a, E: Element, K: Element> Span<'a, E, K> {
    /// How many spans each query has.
    pub(super) fn count(problem: &Problem<E, K>) -> usize {
        problem.k.dims[2].div_ceil(SPAN)
    }

    /// The n-th span of a query; empty if the query sees none of its keys.
    pub(super) fn new(problem: &'a Problem<'a, E, K>, query: (usize, usize, usize), n: usize) -> Self {
        let seen = problem.k.dims[2] - problem.q.dims[2] + query.2 + 1;
        Self { problem, query, keys: (n * SPAN).min(seen)..((n + 1) * SPAN).min(seen) }
    }
}

/// One query's attention over some of the keys, before merging with the other spans.
pub(super) struct Partial {
    /// The highest score, in base 2; -inf if no key is visible.
    max: f32,
    /// `Σ 2^(score - max)`; 0 if no key is visible.
    sum: f32,
    /// `Σ weight·v` with weights that sum to 1, (D).
    pub(super) context: Vec<f32>,
}

impl Partial {
    /// The base-2 logarithm of `Σ 2^score`.
    pub(super) fn log_sum(&self) -> f32 {
        self.max + self.sum.log2()
    }

    /// Merges the spans of one query.
    #[allow(clippy::float_cmp)] // exactly 0 if a span saw no key; a maximum equals one of its inputs
    pub(super) fn merge(spans: &[Self]) -> Self {
        let max = spans.iter().fold(f32::NEG_INFINITY, |max, span| max.max(span.max));
        let seen = || spans.iter().filter(|span| span.sum != 0.0);
        let part = |span: &Self| if span.max == max { span.sum } else { span.sum * (span.max - max).exp2() };
        let sum: f32 = seen().map(part).sum();
        let mut context = vec![0.0; spans.first().map_or(0, |span| span.context.len())];
        for span in seen() {
            let weight = part(span) / sum;
            for (out, x) in context.iter_mut().zip(&span.context) {
                *out += weight * x;
            }
        }
        Self { max, sum, context }
    }
}

/// Rows of a head.
#[inline(always)]
fn streams<'a, 'b: 'a, E: Element>(
    x: &Heads<'b, E>,
    (b, h): (usize, usize),
    rows: [usize; STREAMS],
    scratch: &'a mut [Vec<f32>; STREAMS],
) -> [&'a [f32]; STREAMS] {
    let ([i, j, k, l], [p, q, r, s]) = (rows, scratch);
    [x.row(b, h, i, p), x.row(b, h, j, q), x.row(b, h, k, r), x.row(b, h, l, s)]
}

impl<E: Element, K: Element> WithSimd for Span<'_, E, K> {
    type Output = Partial;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Partial {
        let Problem { q, k, v, .. } = self.problem;
        let ((b, h, i), d) = (self.query, q.dims[3]);
        let mut scratch: [Vec<f32>; STREAMS] = std::array::from_fn(|_| vec![0.0; d]);
        let factor = self.problem.base_2_scale();
        let query: Vec<f32> = q.row(b, h, i, &mut scratch[0]).iter().map(|x| x * factor).collect();
        let mut partial = Partial { max: f32::NEG_INFINITY, sum: 0.0, context: vec![0.0; d] };

        // A hidden key keeps the score -inf, and so does everything beyond the span.
        let mut weights = [f32::NEG_INFINITY; SPAN];
        let mask = self.problem.mask;
        let visible = mask.visible(b, k.dims[2]).map(|visible| &visible[self.keys.clone()]);
        let sees = |&j: &usize| {
            visible.is_none_or(|visible| visible[j] != 0) && !mask.hidden.hides(h, i, self.keys.start + j)
        };
        let seen: Vec<usize> = (0..self.keys.len()).filter(sees).collect();
        let (groups, rest) = seen.as_chunks::<STREAMS>();
        for group in groups {
            let rows = streams(k, (b, h), group.map(|j| self.keys.start + j), &mut scratch);
            for (j, score) in group.iter().zip(dots(simd, &query, rows)) {
                weights[*j] = score;
            }
        }
        for j in rest {
            let row = k.row(b, h, self.keys.start + j, &mut scratch[0]);
            [weights[*j]] = dots(simd, &query, [row]);
        }
        partial.max = seen.iter().fold(f32::NEG_INFINITY, |max, &j| max.max(weights[j]));
        if partial.max == f32::NEG_INFINITY && !seen.iter().any(|&j| weights[j].is_nan()) {
            return partial;
        }

        let mut sum = simd.splat_f32s(0.0);
        for x in S::as_mut_simd_f32s(&mut weights).0 {
            *x = exp2(simd, simd.sub_f32s(*x, simd.splat_f32s(partial.max)));
            sum = simd.add_f32s(sum, *x);
        }
        partial.sum = simd.reduce_sum_f32s(sum);
        self.problem.drop_weights((b, h), i, self.keys.start, &mut weights[..self.keys.len()]);
        let share = 1.0 / partial.sum;
        for group in groups {
            let rows = streams(v, (b, h), group.map(|j| self.keys.start + j), &mut scratch);
            add_scaled(simd, &mut partial.context, group.map(|j| weights[j] * share), rows);
        }
        for j in rest {
            let row = v.row(b, h, self.keys.start + j, &mut scratch[0]);
            add_scaled(simd, &mut partial.context, [weights[*j] * share], [row]);
        }
        partial
    }
}
