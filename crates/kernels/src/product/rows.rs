//! The left factor of a matrix product, as the tiles read it: in f32, in groups of rows that share a tile.
//!
//! A group of M rows holds [`STEP`] numbers of each row, then the next STEP of each, and so on: number k of row m is at
//! `k / STEP · STEP · M + m · STEP + k % STEP`. Copying whole cache lines makes this, and a tile walks through it in
//! order.

use crate::element::Element;
#[cfg(amx)]
use half::bf16;

/// How many numbers of a row lie side by side: a cache line of f32.
pub(crate) const STEP: usize = 16;

/// Where the left factor comes from.
pub(crate) trait Source: Sync {
    /// The rows as they are, one after the other, if they are bf16.
    #[cfg(amx)]
    fn as_bf16s(&self) -> Option<&[bf16]> {
        None
    }

    /// Writes numbers `first..first + STEP` of `row`.
    fn copy(&self, row: usize, first: usize, out: &mut [f32; STEP]);

    /// Writes numbers from `first` on; there are fewer than [`STEP`].
    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]);
}

/// Rows of `depth` numbers, one after the other.
pub(crate) struct Rows<'a, E> {
    pub(crate) data: &'a [E],
    pub(crate) depth: usize,
}

impl<E: Element> Source for Rows<'_, E> {
    #[cfg(amx)]
    fn as_bf16s(&self) -> Option<&[bf16]> {
        E::as_bf16s(self.data)
    }

    #[inline(always)]
    fn copy(&self, row: usize, first: usize, out: &mut [f32; STEP]) {
        for (out, x) in out.iter_mut().zip(&self.data[row * self.depth + first..][..STEP]) {
            *out = x.to_f32();
        }
    }

    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]) {
        E::widen(&self.data[row * self.depth + first..][..out.len()], out);
    }
}

/// A matrix in a slice: its rows are `row` numbers apart, and the numbers within a row `column` apart.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `width` numbers, one after the other.
    pub(crate) fn rows(data: &'a [f32], width: usize) -> Self {
        Self { data, row: width, column: 1 }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    pub(super) fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = |n: usize, stride: usize| (n - 1).checked_mul(stride);
        let end = || last(rows, self.row)?.checked_add(last(columns, self.column)?);
        rows == 0 || columns == 0 || end().is_some_and(|end| end < self.data.len())
    }
}

impl Source for Matrix<'_> {
    #[inline(always)]
    fn copy(&self, row: usize, first: usize, out: &mut [f32; STEP]) {
        let start = row * self.row + first * self.column;
        if let (1, Some(from)) = (self.column, self.data[start..].first_chunk::<STEP>()) {
            *out = *from;
        } else {
            self.copy_rest(row, first, out);
        }
    }

    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]) {
        let start = row * self.row + first * self.column;
        for (i, out) in out.iter_mut().enumerate() {
            *out = self.data[start + i * self.column];
        }
    }
}

/// The length of [`pack`]'s result for each row.
pub(crate) fn packed_len(depth: usize) -> usize {
    depth.next_multiple_of(STEP)
}

/// Writes `rows` in groups of up to `group` rows; what is beyond `depth` becomes 0.
#[inline(always)]
pub(crate) fn pack(
    source: &impl Source,
    rows: std::ops::Range<usize>,
    depth: usize,
    group: usize,
    out: &mut [f32],
) {
    let whole = packed_len(depth);
    if whole == 0 {
        return;
    }
    let starts = rows.clone().step_by(group);
    for (start, out) in starts.zip(out.chunks_mut(group * whole)) {
        let count = group.min(rows.end - start);
        for (first, out) in (0..depth).step_by(STEP).zip(out.chunks_exact_mut(count * STEP)) {
            let length = STEP.min(depth - first);
            for (row, out) in (start..).zip(out.as_chunks_mut::<STEP>().0) {
                if length == STEP {
                    source.copy(row, first, out);
                } else {
                    source.copy_rest(row, first, &mut out[..length]);
                    out[length..].fill(0.0);
                }
            }
        }
    }
}
