//! The steps of attention that read rows of keys or values.
//!
//! A score is the sum of one vector of sums, and a context is added up in the order of the keys, however many rows are read at a
//! time. Which rows lie together therefore changes no bit.

use super::rows::{EvenRows, RowElement, RowStep, begins_line};
use crate::cpu::memory::LINE;
use crate::cpu::row_sums::row_sums;
use pulp::Simd;
use std::ops::Range;

/// The products of queries with keys.
pub(super) struct ScoreKeys<'a> {
    /// (heads, D)
    pub(super) queries: &'a [f32],
    /// (heads, span)
    pub(super) scores: &'a mut [f32],
    pub(super) span: Range<usize>,
}

impl RowStep for ScoreKeys<'_> {
    #[inline(always)]
    fn take<S: Simd, E: RowElement>(&mut self, simd: S, rows: EvenRows<E>, first: usize) {
        let d = rows.width;
        let heads = self.queries.len() / d;
        let stride = self.scores.len() / heads;
        let mut n = 0;
        while n < rows.count {
            let some = rows.chunk(n, heads);
            let mut scores = &mut self.scores[first - self.span.start + n..];
            let mut queries = self.queries;
            while queries.len() > d {
                let (pair, others) = queries.split_at(2 * d);
                score::<S, E, 2, 4>(simd, some, pair, scores, stride);
                queries = others;
                scores = scores.get_mut(2 * stride..).unwrap_or_default();
            }
            if !queries.is_empty() {
                score::<S, E, 1, 8>(simd, some, queries, scores, stride);
            }
            n += some.count;
        }
    }
}

/// `scores[m·stride + n] = Σ_c queries[m][c]·rows[n][c]` for M queries (M, D), N rows at a time.
#[inline(always)]
fn score<S: Simd, E: RowElement, const M: usize, const N: usize>(
    simd: S,
    rows: EvenRows<E>,
    queries: &[f32],
    scores: &mut [f32],
    stride: usize,
) {
    assert!(queries.len() == M * rows.width && scores.len() >= (M - 1) * stride + rows.count);
    let whole = rows.count - rows.count % N;
    let mut n = 0;
    while n < whole {
        // SAFETY: the queries are as long as the rows, of which there are N more.
        let products = unsafe { dots::<S, E, M, N>(simd, rows, n, queries) };
        for (m, products) in products.into_iter().enumerate() {
            // SAFETY: there is a score for each row.
            unsafe { scores.as_mut_ptr().add(m * stride + n).cast::<[f32; N]>().write(products) };
        }
        n += N;
    }
    while n < rows.count {
        // SAFETY: as above, one more.
        let products = unsafe { dots::<S, E, M, 1>(simd, rows, n, queries) };
        for (m, [product]) in products.into_iter().enumerate() {
            scores[m * stride + n] = product;
        }
        n += 1;
    }
}

/// `Σ_c queries[m][c]·rows[first + n][c]` for M queries (M, D) and N rows.
///
/// # Safety
/// There are N rows from `first` on, and M queries of their length.
#[inline(always)]
unsafe fn dots<S: Simd, E: RowElement, const M: usize, const N: usize>(
    simd: S,
    rows: EvenRows<E>,
    first: usize,
    queries: &[f32],
) -> [[f32; N]; M] {
    let d = rows.width;
    let whole = d - d % S::F32_LANES;
    let ahead = rows.ahead(first + N - 1);
    let mut factors = [1.0; N];
    for (n, factor) in factors.iter_mut().enumerate() {
        // SAFETY: `EvenRows::new` has found the rows and what follows each.
        *factor = unsafe { E::factor(rows.row(first + n).add(d)) };
    }
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    let mut c = 0;
    while c < whole {
        let mut q = [simd.splat_f32s(0.0); M];
        for (m, q) in q.iter_mut().enumerate() {
            // SAFETY: the M queries have `d` numbers each.
            *q = unsafe { f32::vector(simd, queries.as_ptr().add(m * d + c)) };
        }
        if begins_line::<S, E>(c) {
            for n in 0..N {
                E::fetch(rows.row(first + n).wrapping_add(ahead + c));
            }
        }
        for n in 0..N {
            // SAFETY: the row is among the elements, as `EvenRows::new` has found, with `d` numbers.
            let mut x = unsafe { E::vector(simd, rows.row(first + n).add(c)) };
            if E::EXTRA > 0 {
                x = simd.mul_f32s(x, simd.splat_f32s(factors[n]));
            }
            for (sums, q) in sums.iter_mut().zip(q) {
                sums[n] = simd.mul_add_e_f32s(q, x, sums[n]);
            }
        }
        c += S::F32_LANES;
    }
    let mut totals = row_sums(simd, sums);
    for (m, totals) in totals.iter_mut().enumerate() {
        for (n, total) in totals.iter_mut().enumerate() {
            let row = rows.row(first + n);
            for c in whole..d {
                // SAFETY: as above.
                *total += queries[m * d + c] * (unsafe { row.add(c).read() }.wide() * factors[n]);
            }
        }
    }
    totals
}

/// Adds weighted values to contexts, in the order of the keys.
pub(super) struct AddValues<'a> {
    /// (heads, span)
    pub(super) weights: &'a [f32],
    /// (heads, Dv)
    pub(super) contexts: &'a mut [f32],
    pub(super) span: Range<usize>,
}

impl RowStep for AddValues<'_> {
    #[inline(always)]
    fn take<S: Simd, E: RowElement>(&mut self, simd: S, rows: EvenRows<E>, first: usize) {
        let d = rows.width;
        let heads = self.contexts.len() / d;
        let stride = self.weights.len() / heads;
        let mut n = 0;
        while n < rows.count {
            let some = rows.chunk(n, heads);
            let mut weights = &self.weights[first - self.span.start + n..];
            let mut contexts = &mut *self.contexts;
            while contexts.len() > d {
                let (pair, others) = contexts.split_at_mut(2 * d);
                let c = add::<S, E, 2, 4>(simd, some, (weights, stride), pair, 0);
                add::<S, E, 2, 1>(simd, some, (weights, stride), pair, c);
                contexts = others;
                weights = weights.get(2 * stride..).unwrap_or_default();
            }
            if !contexts.is_empty() {
                let c = add::<S, E, 1, 8>(simd, some, (weights, stride), contexts, 0);
                let c = add::<S, E, 1, 4>(simd, some, (weights, stride), contexts, c);
                add::<S, E, 1, 1>(simd, some, (weights, stride), contexts, c);
            }
            n += some.count;
        }
    }
}

/// `contexts[m][c] += Σ_n weights[m·stride + n]·rows[n][c]` for M contexts (M, Dv), in columns from `first` on, C vectors at a time and
/// those that fill no vector with C = 1; returns the first column that is left.
#[inline(always)]
fn add<S: Simd, E: RowElement, const M: usize, const C: usize>(
    simd: S,
    rows: EvenRows<E>,
    (weights, stride): (&[f32], usize),
    contexts: &mut [f32],
    first: usize,
) -> usize {
    let d = rows.width;
    let lanes = S::F32_LANES;
    assert!(contexts.len() == M * d && weights.len() >= (M - 1) * stride + rows.count);
    let mut column = first;
    while column + C * lanes <= d {
        let mut sums = [[simd.splat_f32s(0.0); C]; M];
        for (m, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the M contexts have `d` numbers each.
                *sum = unsafe { f32::vector(simd, contexts.as_ptr().add(m * d + column + c * lanes)) };
            }
        }
        for n in 0..rows.count {
            let ahead = rows.ahead(n);
            let mut factors = [simd.splat_f32s(0.0); M];
            for (m, factor) in factors.iter_mut().enumerate() {
                // SAFETY: there is a weight for each row, and `EvenRows::new` has found what follows the row.
                *factor = simd.splat_f32s(unsafe {
                    *weights.get_unchecked(m * stride + n) * E::factor(rows.row(n).add(d))
                });
            }
            for c in 0..C {
                let from = rows.row(n).wrapping_add(column + c * lanes);
                // SAFETY: the row is among the elements, as `EvenRows::new` has found, with `d` numbers.
                let x = unsafe { E::vector(simd, from) };
                if begins_line::<S, E>(c * lanes) {
                    E::fetch(from.wrapping_add(ahead));
                }
                for (sums, factor) in sums.iter_mut().zip(factors) {
                    sums[c] = simd.mul_add_e_f32s(factor, x, sums[c]);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    contexts
                        .as_mut_ptr()
                        .add(m * d + column + c * lanes)
                        .cast::<S::f32s>()
                        .write_unaligned(sum);
                }
            }
        }
        column += C * lanes;
    }
    if C == 1 && column < d {
        for n in 0..rows.count {
            for (m, context) in contexts.chunks_exact_mut(d).enumerate() {
                // SAFETY: as above.
                let factor = weights[m * stride + n] * unsafe { E::factor(rows.row(n).add(d)) };
                for (c, sum) in context.iter_mut().enumerate().skip(column) {
                    // SAFETY: as above.
                    *sum += factor * unsafe { rows.row(n).add(c).read() }.wide();
                }
            }
        }
    }
    column
}

/// Fetches the first rows, before anything is computed with them: as many as others are fetched ahead.
#[derive(Default)]
pub(super) struct FetchFirst {
    fetched: usize,
}

impl RowStep for FetchFirst {
    #[inline(always)]
    fn take<S: Simd, E: RowElement>(&mut self, _: S, rows: EvenRows<E>, _: usize) {
        for n in 0..rows.rows_ahead.saturating_sub(self.fetched).min(rows.count) {
            let from = rows.row(n);
            (0..rows.width).step_by(LINE / size_of::<E>()).for_each(|c| E::fetch(from.wrapping_add(c)));
        }
        self.fetched += rows.count;
    }
}
