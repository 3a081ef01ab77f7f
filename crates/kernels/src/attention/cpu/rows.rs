//! A query at a time, reading k and v where they lie: for decoding, where a key is met once and packing
//! it would cost as much as using it, and for values that are not finite or near it, of which a hidden one must
//! not be touched and a visible one is weighted before it is added.

use super::Problem;
use super::heads::Element;
use super::tile::{add_scaled, dot};
use crate::vector::exp2;
use pulp::{Simd, WithSimd};

/// One head's rows, and the memory of one.
pub(super) struct Rows<'a, E> {
    problem: &'a Problem<'a, E>,
    head: (usize, usize),
    /// The last row's context, (D).
    pub(super) context: Vec<f32>,
    /// The base-2 logarithm of the last row's `Σ 2^score`.
    pub(super) log_sum: f32,
    query: Vec<f32>,
    weights: Vec<f32>,
    scratch: Vec<f32>,
}

impl<'a, E: Element> Rows<'a, E> {
    pub(super) fn new(problem: &'a Problem<'a, E>, head: (usize, usize)) -> Self {
        let [_, _, s, d] = problem.k.dims;
        Self {
            problem,
            head,
            context: vec![0.0; d],
            log_sum: f32::NEG_INFINITY,
            query: vec![0.0; d],
            weights: vec![0.0; s.next_multiple_of(64)],
            scratch: vec![0.0; d],
        }
    }

    /// Leaves the context of query `i` in `self.context`.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&mut self, simd: S, i: usize) {
        let Problem { q, k, v, .. } = self.problem;
        let (b, h) = self.head;
        let seen = k.dims[2] - q.dims[2] + i + 1;
        let visible = self.problem.visible(b);
        let hidden = |j: usize| visible.is_some_and(|v| v[j] == 0);
        let scale = self.problem.base_2_scale();
        for (x, out) in q.row(b, h, i, &mut self.scratch).iter().zip(&mut self.query) {
            *out = x * scale;
        }

        let weights = &mut self.weights[..seen.next_multiple_of(S::F32_LANES)];
        weights.fill(f32::NEG_INFINITY);
        let mut max = f32::NEG_INFINITY;
        for (j, weight) in weights.iter_mut().enumerate().take(seen) {
            if !hidden(j) {
                *weight = dot(simd, &self.query, k.row(b, h, j, &mut self.scratch));
                max = max.max(*weight);
            }
        }
        self.context.fill(0.0);
        if max == f32::NEG_INFINITY && !weights[..seen].iter().any(|x| x.is_nan()) {
            self.log_sum = f32::NEG_INFINITY;
            return;
        }
        let mut sum = simd.splat_f32s(0.0);
        for x in S::as_mut_simd_f32s(weights).0 {
            *x = exp2(simd, simd.sub_f32s(*x, simd.splat_f32s(max)));
            sum = simd.add_f32s(sum, *x);
        }
        let sum = simd.reduce_sum_f32s(sum);
        self.log_sum = max + sum.log2();
        let factor = 1.0 / sum;
        for (j, weight) in weights.iter().enumerate().take(seen) {
            if !hidden(j) {
                add_scaled(simd, &mut self.context, weight * factor, v.row(b, h, j, &mut self.scratch));
            }
        }
    }
}

/// [`Rows::run`] compiled for the instruction set.
pub(super) struct OneRow<'a, 'b, E> {
    pub(super) rows: &'a mut Rows<'b, E>,
    pub(super) i: usize,
}

impl<E: Element> WithSimd for OneRow<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.rows.run(simd, self.i);
    }
}
