//! The left factor of a matrix product, as the tiles read it: in f32, or pairs of bf16 as the bits of f32, in groups of rows that share a tile.
//!
//! A group of M rows holds [`STEP`] numbers of each row, then the next STEP of each, and so on: number k of row m is at
//! `k / STEP · STEP · M + m · STEP + k % STEP`. Copying whole cache lines makes this, and a tile walks through it in
//! order.

use crate::cpu::element::Element;
use crate::cpu::memory::copy_into;
use half::bf16;
use std::mem::MaybeUninit;

/// The number of elements of a row that lie side by side: a cache line of f32.
pub(crate) const STEP: usize = 16;

/// The left factor of a product.
pub(crate) trait LeftFactor: Sync {
    /// The rows as they are, one after the other, if they are bf16.
    fn as_bf16s(&self) -> Option<&[bf16]> {
        None
    }

    /// Numbers `first..first + STEP` of `row`.
    fn line(&self, row: usize, first: usize) -> [f32; STEP];

    /// The numbers of `row` from `first` on, at most [`STEP`], into `out`.
    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]);
}

/// Rows of `depth` numbers, one after the other.
pub(crate) struct Rows<'a, E> {
    pub(crate) data: &'a [E],
    pub(crate) depth: usize,
}

impl<E: Element> LeftFactor for Rows<'_, E> {
    fn as_bf16s(&self) -> Option<&[bf16]> {
        E::as_bf16s(self.data)
    }

    #[inline(always)]
    fn line(&self, row: usize, first: usize) -> [f32; STEP] {
        let mut line = [0.0; STEP];
        E::widen(&self.data[row * self.depth + first..][..STEP], &mut line);
        line
    }

    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]) {
        E::widen(&self.data[row * self.depth + first..][..out.len()], out);
    }
}

/// Rows of `depth` pairs of bf16 numbers, each pair as the bits of an f32.
pub(super) struct Pairs<'a> {
    pub(super) data: &'a [bf16],
    pub(super) depth: usize,
}

impl LeftFactor for Pairs<'_> {
    #[inline(always)]
    fn line(&self, row: usize, first: usize) -> [f32; STEP] {
        let mut line = [0.0; STEP];
        self.copy_rest(row, first, &mut line);
        line
    }

    #[inline(always)]
    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]) {
        let from = &self.data[2 * (row * self.depth + first)..][..2 * out.len()];
        for (out, [even, odd]) in out.iter_mut().zip(from.as_chunks::<2>().0) {
            *out = f32::from_bits(u32::from(odd.to_bits()) << 16 | u32::from(even.to_bits()));
        }
    }
}

/// A matrix (rows, columns) in a slice: number (r, c) is `data[r·strides[0] + c·strides[1]]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) shape: [usize; 2],
    pub(crate) strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// Rows of numbers, one after the other.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { data, shape: [rows, columns], strides: [columns, 1] }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        let [rows, columns] = self.shape;
        let [row, column] = self.strides;
        Self { shape: [columns, rows], strides: [column, row], ..self }
    }

    /// Whether the slice is long enough.
    pub(super) fn is_whole(&self) -> bool {
        let last = |axis: usize| (self.shape[axis] - 1).checked_mul(self.strides[axis]);
        let end = || last(0)?.checked_add(last(1)?);
        self.shape.contains(&0) || end().is_some_and(|end| end < self.data.len())
    }
}

impl LeftFactor for Matrix<'_> {
    #[inline(always)]
    fn line(&self, row: usize, first: usize) -> [f32; STEP] {
        let start = row * self.strides[0] + first * self.strides[1];
        if let (1, Some(line)) = (self.strides[1], self.data[start..].first_chunk::<STEP>()) {
            return *line;
        }
        let mut line = [0.0; STEP];
        self.copy_rest(row, first, &mut line);
        line
    }

    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]) {
        let start = row * self.strides[0] + first * self.strides[1];
        for (i, out) in out.iter_mut().enumerate() {
            *out = self.data[start + i * self.strides[1]];
        }
    }
}

/// The length of [`pack`]'s result for each row.
pub(crate) fn packed_len(depth: usize) -> usize {
    depth.next_multiple_of(STEP)
}

/// Writes all of `out`: `rows` in groups of up to `group` rows; what is beyond `depth` becomes 0.
#[inline(always)]
pub(crate) fn pack(
    source: &impl LeftFactor,
    rows: std::ops::Range<usize>,
    depth: usize,
    group: usize,
    out: &mut [MaybeUninit<f32>],
) {
    let whole = packed_len(depth);
    assert_eq!(out.len(), rows.len() * whole);
    if whole == 0 {
        return;
    }
    let starts = rows.clone().step_by(group);
    for (start, out) in starts.zip(out.chunks_mut(group * whole)) {
        let count = group.min(rows.end - start);
        for (first, out) in (0..depth).step_by(STEP).zip(out.chunks_exact_mut(count * STEP)) {
            let length = STEP.min(depth - first);
            for (row, out) in (start..).zip(out.as_chunks_mut::<STEP>().0) {
                let line = if length == STEP {
                    source.line(row, first)
                } else {
                    let mut line = [0.0; STEP];
                    source.copy_rest(row, first, &mut line[..length]);
                    line
                };
                copy_into(&line, out);
            }
        }
    }
}
