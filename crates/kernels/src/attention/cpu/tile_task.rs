//! One tile of queries of one head, from q to the output.

use super::log_sum::LogSum;
use super::output::Output;
use super::pack::{Packed, transpose};
use super::problem::Problem;
use super::row_summary::SummaryOfRow;
use super::rows::{Partial, Span};
use super::sizes::{Blocks, QUERIES};
use super::tile::{Scratch, Tile};
use crate::element::Element;
use pulp::{Simd, WithSimd};

/// One tile of one head, from q to the output.
pub(super) struct TileTask<'a, E, K> {
    pub(super) problem: &'a Problem<'a, E, K>,
    pub(super) packed: &'a Packed,
    pub(super) head: (usize, usize),
    /// The first query.
    pub(super) first: usize,
    /// Dv, padded to whole vectors.
    pub(super) width: usize,
    pub(super) scratch: &'a mut Scratch,
    pub(super) out: &'a Output<E>,
}

impl<E: Element, K: Element> WithSimd for TileTask<'_, E, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let [_, _, t, d] = self.problem.q.dims;
        let (b, h) = self.head;
        let rows = QUERIES.min(t - self.first);
        if !self.packed.summable {
            for i in self.first..self.first + rows {
                let span = |n| Span::new(self.problem, (b, h..h + 1, i), n).with_simd(simd);
                let spans: Vec<Vec<Partial>> = (0..Span::count(self.problem)).map(span).collect();
                let row = Partial::merge(&spans, 0);
                // SAFETY: each (head, i) is written once, because tiles do not overlap.
                unsafe {
                    self.out.write((b, h, i), &row.context, 1.0, row.log_sum());
                    self.out
                        .write_summary((b, h, i), || SummaryOfRow(self.problem, (b, h, i)).with_simd(simd));
                }
            }
            return;
        }
        self.load_queries(Blocks::of::<S>().rows(), rows);
        let problem = self.problem;
        let tile = Tile {
            packed: self.packed,
            drop: |i, start, weights: &mut [f32]| problem.drop_weights((b, h), i, start, weights),
            rules: problem.rules,
            head: self.head,
            d,
            width: self.width,
            first_key: problem.rules.mask.first_key(b, problem.rules.keys),
            first: self.first,
            rows,
        };
        if self.out.summaries.is_some() {
            tile.run::<S, true>(simd, self.scratch);
        } else {
            tile.run::<S, false>(simd, self.scratch);
        }
        for r in 0..rows {
            let sum = self.scratch.sum[r];
            let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            let log_sum = LogSum { max: self.scratch.max[r], rest: sum.log2() };
            let row = &self.scratch.context[r * self.width..(r + 1) * self.width];
            // SAFETY: each (head, i) is written once, because tiles do not overlap.
            unsafe {
                let query = (b, h, self.first + r);
                self.out.write(query, row, factor, log_sum);
                self.out.write_summary(query, || self.scratch.summaries[r].finish(sum, log_sum));
            }
        }
    }
}

impl<E: Element, K: Element> TileTask<'_, E, K> {
    /// The queries times the rules' factor, depth-major in groups of `group` rows.
    #[inline(always)]
    fn load_queries(&mut self, group: usize, rows: usize) {
        let q = &self.problem.q;
        let d = q.dims[3];
        let Scratch { queries, copied_rows, .. } = &mut *self.scratch;
        for (i, out) in queries.chunks_exact_mut(group * d).enumerate() {
            let rows = (i * group).min(rows)..((i + 1) * group).min(rows);
            let rows = self.first + rows.start..self.first + rows.end;
            transpose(q, self.head, rows, self.problem.query_factor(), (out, group), copied_rows);
        }
    }
}
