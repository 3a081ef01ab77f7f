//! The right factor of a matrix product, as the tiles read it: panels of [`PANEL`] columns, one row after the other.

use super::lanes::{Kernel, Lanes, dispatch};
use super::numbers::{Bf16Pair, PANEL, PanelNumber, STRIP};
use super::transpose::{BLOCK, Square, transpose};
use crate::cpu::isa;
use crate::cpu::memory::{CacheLines, fetch};
use half::bf16;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix (depth, width) in panels. Zeros make the depth even and the number of panels a multiple of [`STRIP`].
pub(crate) struct Panels<E> {
    lines: CacheLines<E>,
    depth: usize,
    width: usize,
}

impl<E: PanelNumber> Panels<E> {
    /// Packs the matrix whose number (k, c) is `data[k·row + c·column]`, on all threads.
    ///
    /// # Panics
    /// When `data` is too short.
    pub(crate) fn pack(data: &[E], (depth, width): (usize, usize), (row, column): (usize, usize)) -> Self {
        let last = |n: usize, stride: usize| n.saturating_sub(1) * stride;
        assert!(depth * width == 0 || last(depth, row) + last(width, column) < data.len());
        Self::from_blocks((depth, width), &Strided { data, row, column })
    }

    /// Packs the transpose of some columns, from a multiple of [`PANEL`] on: (`columns.len()`, depth).
    ///
    /// # Panics
    /// When the columns are outside the matrix, or start elsewhere.
    pub(crate) fn transposed(&self, columns: Range<usize>) -> Self {
        assert!(columns.start.is_multiple_of(PANEL) && columns.end <= self.width);
        let turned = Turned { panels: self, first: columns.start / PANEL };
        Self::from_blocks((columns.len(), self.depth), &turned)
    }

    /// Packs the blocks of a matrix (depth, width).
    pub(super) fn from_blocks((depth, width): (usize, usize), blocks: &impl ReadBlocks<E>) -> Self {
        let per_panel = depth.next_multiple_of(2) * PANEL;
        let arch = isa::arch();
        let fill = |strip: usize, panels: &mut [MaybeUninit<E>]| {
            dispatch(arch, PackStrip { blocks, depth, width, first: strip * STRIP, panels });
        };
        let strips = width.div_ceil(PANEL * STRIP);
        // SAFETY: the blocks cover all rows of all panels, and an odd depth has a row of zeros more. Any bytes make a
        // number of the three dtypes that are stored.
        let lines = unsafe { CacheLines::filled(strips, STRIP * per_panel, fill) };
        Self { lines, depth, width }
    }

    /// The number of rows, without those added.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The number of columns, without those added.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The number of rows of each panel: even.
    pub(crate) fn rows(&self) -> usize {
        self.depth.next_multiple_of(2)
    }

    /// The panels from number `panel` on.
    pub(crate) fn starting_at(&self, panel: usize) -> &[E] {
        &self.lines.as_slice()[panel * self.rows() * PANEL..]
    }

    /// Writes column `j`.
    pub(crate) fn column(&self, j: usize, out: &mut [E]) {
        let panel = self.starting_at(j / PANEL);
        for (k, out) in out[..self.depth].iter_mut().enumerate() {
            *out = panel[E::place(k, j % PANEL)];
        }
    }
}

/// A matrix that is read in blocks.
pub(super) trait ReadBlocks<E>: Sync {
    /// Rows `first..first + rows`, at most [`BLOCK`], of some columns, at most [`PANEL`]; the rest of the block is 0.
    fn read<S: Lanes>(&self, simd: S, rows: (usize, usize), columns: Range<usize>) -> Square<E>;
}

/// Writes the panels from number `first` on.
struct PackStrip<'a, E, B> {
    blocks: &'a B,
    depth: usize,
    width: usize,
    first: usize,
    panels: &'a mut [MaybeUninit<E>],
}

impl<E: PanelNumber, B: ReadBlocks<E>> Kernel for PackStrip<'_, E, B> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, simd: S) {
        let Self { blocks, depth, width, first, panels } = self;
        let per_panel = depth.next_multiple_of(2) * PANEL;
        for top in (0..depth).step_by(BLOCK) {
            let rows = BLOCK.min(depth - top);
            for (p, panel) in (first..).zip(panels.chunks_exact_mut(per_panel)) {
                let columns = (p * PANEL).min(width)..((p + 1) * PANEL).min(width);
                let block = blocks.read(simd, (top, rows), columns);
                let out = panel[top * PANEL..].as_chunks_mut::<{ 2 * PANEL }>().0;
                for (out, [even, odd]) in out.iter_mut().zip(block.as_chunks::<2>().0) {
                    E::place_pair(even, odd, out);
                }
            }
        }
    }
}

/// The matrix whose number (k, c) is `data[k·row + c·column]`.
pub(super) struct Strided<'a, E> {
    pub(super) data: &'a [E],
    pub(super) row: usize,
    pub(super) column: usize,
}

impl<E: PanelNumber> ReadBlocks<E> for Strided<'_, E> {
    #[inline(always)]
    fn read<S: Lanes>(&self, simd: S, (first, rows): (usize, usize), columns: Range<usize>) -> Square<E> {
        let Self { data, row, column } = *self;
        // Rows may lie more than a page apart, and processors seldom fetch across pages by themselves.
        let fetch_from = |at: usize| fetch(data.as_ptr().wrapping_add(at).cast());
        let mut block = [[E::from_f32(0.0); PANEL]; BLOCK];
        if column == 1 && columns.len() == PANEL {
            for (k, out) in (first..first + rows).zip(&mut block) {
                fetch_from(row.wrapping_mul(k + BLOCK).wrapping_add(columns.start));
                out.copy_from_slice(&data[k * row + columns.start..][..PANEL]);
            }
        } else if row == 1 && rows == BLOCK {
            for (j, row) in columns.zip(&mut block) {
                fetch_from(j * column + first + BLOCK);
                row.copy_from_slice(&data[j * column + first..][..BLOCK]);
            }
            block = transpose(simd, &block);
        } else {
            for (k, out) in (first..first + rows).zip(&mut block) {
                for (out, j) in out.iter_mut().zip(columns.clone()) {
                    *out = data[k * row + j * column];
                }
            }
        }
        block
    }
}

/// The transpose of panels, from panel `first` on.
struct Turned<'a, E> {
    panels: &'a Panels<E>,
    first: usize,
}

impl<E: PanelNumber> ReadBlocks<E> for Turned<'_, E> {
    #[inline(always)]
    fn read<S: Lanes>(&self, simd: S, (first, rows): (usize, usize), columns: Range<usize>) -> Square<E> {
        let panel = self.panels.starting_at(self.first + first / PANEL);
        // The blocks of the next rows lie a whole panel further on.
        let next = panel.as_ptr().wrapping_add(self.panels.rows() * PANEL);
        let mut block = [[E::from_f32(0.0); PANEL]; BLOCK];
        for (k, row) in columns.zip(&mut block) {
            fetch(next.wrapping_add(k * PANEL).cast());
            for (r, out) in row[..rows].iter_mut().enumerate() {
                *out = panel[E::place(k, r)];
            }
        }
        transpose(simd, &block)
    }
}

impl Panels<bf16> {
    /// The panels from number `panel` on, in pairs of rows.
    pub(super) fn pairs(&self, panel: usize) -> &[Bf16Pair] {
        let numbers = self.starting_at(panel).as_chunks::<2>().0;
        // SAFETY: two bf16 numbers have the size of a pair, and panels begin at cache lines, so they are aligned for one.
        unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn check<E: PanelNumber + PartialEq + std::fmt::Debug>() {
        for (depth, width) in [(1, 1), (2, 16), (3, 17), (16, 64), (33, 70)] {
            let data: Vec<E> = (0..depth * width).map(|i| E::from_f32((i % 251) as f32)).collect();
            let rows = Panels::pack(&data, (depth, width), (width, 1));
            // The same matrix from its transpose.
            let at = |i: usize| data[i % depth * width + i / depth];
            let transposed: Vec<E> = (0..depth * width).map(at).collect();
            let columns = Panels::pack(&transposed, (depth, width), (1, depth));
            assert_eq!(rows.lines.as_slice(), columns.lines.as_slice());
            let turned = Panels::pack(&data, (width, depth), (1, width));
            assert_eq!(rows.transposed(0..width).lines.as_slice(), turned.lines.as_slice());
            if width > PANEL {
                let part = rows.transposed(PANEL..width);
                let expected = Panels::pack(&data[PANEL..], (width - PANEL, depth), (1, width));
                assert_eq!(part.lines.as_slice(), expected.lines.as_slice());
            }
            for (j, expected) in transposed.chunks(depth).enumerate() {
                let mut column = vec![E::from_f32(-1.0); depth];
                rows.column(j, &mut column);
                assert_eq!(column, expected);
            }
            let others = |all: &[E]| all.iter().filter(|x| x.to_f32() != 0.0).count();
            assert_eq!(others(rows.lines.as_slice()), others(&data), "the rest is 0");
        }
    }

    /// A stride of 0 repeats a row or a column.
    #[test]
    fn every_stride_is_read_as_it_is() {
        let data: Vec<f32> = (1..3000u16).map(f32::from).collect();
        for (row, column) in [(0, 0), (0, 1), (0, 2), (1, 0), (2, 1), (2, 3), (3, 5), (40, 1), (1, 40)] {
            for (depth, width) in [(8, 64), (7, 20), (40, 20)] {
                let packed = Panels::pack(&data, (depth, width), (row, column));
                for c in 0..width {
                    let mut got = vec![0.0; depth];
                    packed.column(c, &mut got);
                    let expected: Vec<f32> = (0..depth).map(|k| data[k * row + c * column]).collect();
                    assert_eq!(got, expected, "strides {row}, {column}");
                }
            }
        }
    }

    #[test]
    fn what_is_packed_is_read_back_and_the_rest_is_zero() {
        check::<f32>();
        check::<f16>();
        check::<bf16>();
    }
}
