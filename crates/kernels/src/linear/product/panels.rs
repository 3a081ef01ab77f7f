//! The right factor of a matrix product, as the tiles read it: panels of [`PANEL`] columns, one row after the other.

use crate::cpu::element::Element;
use crate::cpu::memory::{CacheLines, copy_into};
use half::{bf16, f16};
use pulp::Simd;
use std::mem::MaybeUninit;
use std::ops::Range;

#[cfg(target_endian = "big")]
compile_error!("the kernels read a pair of bf16 as one little-endian number");

/// The number of columns in a panel: a cache line of f32, and a whole number of vectors on every instruction set.
pub(crate) const PANEL: usize = 16;

/// The most panels that a tile takes. There is always a multiple of it.
pub(crate) const STRIP: usize = 4;

/// The number of rows packed at a time: reading down the columns of a transposed matrix then uses whole cache lines.
pub(super) const BLOCK: usize = 16;

/// An instruction set, with what `pulp` does not offer: vectors of f16, products of pairs of bf16, and reading ahead.
pub(crate) trait Halves: Simd {
    /// Reads a vector of f16 numbers.
    ///
    /// # Safety
    /// `F32_LANES` numbers are readable at `from`.
    #[inline(always)]
    unsafe fn read_f16s(self, from: *const f16) -> Self::f32s {
        let mut wide = [0.0; 16];
        // SAFETY: the caller guarantees the length.
        let from = unsafe { std::slice::from_raw_parts(from, Self::F32_LANES) };
        Element::widen(from, &mut wide[..Self::F32_LANES]);
        self.partial_load_f32s(&wide[..Self::F32_LANES])
    }

    /// Writes a vector as f16 numbers, rounded to even.
    ///
    /// # Safety
    /// There is room for `F32_LANES` numbers at `to`, which may hold nothing yet.
    #[inline(always)]
    unsafe fn write_f16s(self, vector: Self::f32s, to: *mut f16) {
        let mut wide = [0.0; 16];
        let mut rounded = [f16::ZERO; 16];
        self.partial_store_f32s(&mut wide[..Self::F32_LANES], vector);
        Element::narrow(&wide[..Self::F32_LANES], &mut rounded[..Self::F32_LANES]);
        // SAFETY: the caller guarantees the room.
        unsafe { rounded.as_ptr().copy_to_nonoverlapping(to, Self::F32_LANES) };
    }

    /// Adds to each sum the two products of a pair of bf16 numbers in `x` and one in `w`. The vectors hold a pair as the bits of
    /// an f32.
    ///
    /// # Safety
    /// The code is compiled for the instruction that this uses, and the processor has it.
    #[inline(always)]
    unsafe fn dot_pairs(self, x: Self::f32s, w: Self::f32s, sum: Self::f32s) -> Self::f32s {
        let x = self.transmute_u32s_f32s(x);
        let w = self.transmute_u32s_f32s(w);
        let odd = |pairs| self.transmute_f32s_u32s(self.and_u32s(pairs, self.splat_u32s(0xffff_0000)));
        let even = |pairs| self.transmute_f32s_u32s(self.wrapping_dyn_shl_u32s(pairs, self.splat_u32s(16)));
        self.mul_add_e_f32s(even(x), even(w), self.mul_add_e_f32s(odd(x), odd(w), sum))
    }
}

/// An element of a panel that a tile multiplies by its rows: a number, or a [`Bf16Pair`] of them.
pub(crate) trait Factor: Copy + 'static {
    /// Vector `i` of row `k` of a panel: numbers in f32, or pairs as they are.
    ///
    /// # Safety
    /// The panel has that row.
    unsafe fn vector<S: Halves>(simd: S, panel: *const Self, k: usize, i: usize) -> S::f32s;

    /// `sum + x·w`.
    ///
    /// # Safety
    /// If these are pairs, the conditions of [`Halves::dot_pairs`] hold.
    #[inline(always)]
    unsafe fn mul_add<S: Halves>(simd: S, x: S::f32s, w: S::f32s, sum: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(x, w, sum)
    }
}

/// Two numbers of a column of a panel of bf16, the one of the even row in the lower half.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16Pair(u32);

impl Factor for Bf16Pair {
    #[inline(always)]
    unsafe fn vector<S: Halves>(_: S, panel: *const Self, k: usize, i: usize) -> S::f32s {
        // SAFETY: the caller's row has PANEL pairs; every bit pattern is a vector of floats.
        unsafe { panel.add(k * PANEL + i * S::F32_LANES).cast::<S::f32s>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn mul_add<S: Halves>(simd: S, x: S::f32s, w: S::f32s, sum: S::f32s) -> S::f32s {
        // SAFETY: passed on.
        unsafe { simd.dot_pairs(x, w, sum) }
    }
}

/// A dtype that panels hold: by default, one row after the other.
pub(crate) trait PanelNumber: Element + Factor {
    /// The index in a panel of the number of row `k` and column `c`.
    fn place(k: usize, c: usize) -> usize {
        k * PANEL + c
    }

    /// Writes an even row of a panel and the row after it.
    #[inline(always)]
    fn place_pair(even: &[Self; PANEL], odd: &[Self; PANEL], out: &mut [MaybeUninit<Self>; 2 * PANEL]) {
        copy_into(even, &mut out[..PANEL]);
        copy_into(odd, &mut out[PANEL..]);
    }

    /// Writes a vector, rounded.
    ///
    /// # Safety
    /// There is room for `F32_LANES` numbers at `to`, which may hold nothing yet.
    unsafe fn write<S: Halves>(simd: S, vector: S::f32s, to: *mut Self);
}

impl Factor for f32 {
    #[inline(always)]
    unsafe fn vector<S: Halves>(_: S, panel: *const Self, k: usize, i: usize) -> S::f32s {
        // SAFETY: the caller's row has PANEL numbers; every bit pattern is a vector of floats.
        unsafe { panel.add(k * PANEL + i * S::F32_LANES).cast::<S::f32s>().read_unaligned() }
    }
}

impl PanelNumber for f32 {
    #[inline(always)]
    unsafe fn write<S: Halves>(_: S, vector: S::f32s, to: *mut Self) {
        // SAFETY: there is room for the vector.
        unsafe { to.cast::<S::f32s>().write_unaligned(vector) };
    }
}

impl Factor for f16 {
    #[inline(always)]
    unsafe fn vector<S: Halves>(simd: S, panel: *const Self, k: usize, i: usize) -> S::f32s {
        // SAFETY: as above.
        unsafe { simd.read_f16s(panel.add(k * PANEL + i * S::F32_LANES)) }
    }
}

impl PanelNumber for f16 {
    #[inline(always)]
    unsafe fn write<S: Halves>(simd: S, vector: S::f32s, to: *mut Self) {
        // SAFETY: passed on.
        unsafe { simd.write_f16s(vector, to) };
    }
}

impl Factor for bf16 {
    #[inline(always)]
    unsafe fn vector<S: Halves>(simd: S, panel: *const Self, k: usize, i: usize) -> S::f32s {
        // SAFETY: the caller's row and the other one of its pair have 2·PANEL numbers, because depths are even.
        let pairs =
            unsafe { panel.add(k / 2 * 2 * PANEL + 2 * i * S::F32_LANES).cast::<S::u32s>().read_unaligned() };
        simd.transmute_f32s_u32s(if k.is_multiple_of(2) {
            simd.wrapping_dyn_shl_u32s(pairs, simd.splat_u32s(16))
        } else {
            simd.and_u32s(pairs, simd.splat_u32s(0xffff_0000))
        })
    }
}

/// Rows come in pairs, their numbers alternating: an even row is the lower halves of 32-bit numbers, an odd row the upper
/// halves, so that a shift or a mask widens a vector. `dpbf16ps` and AMX read the same layout.
impl PanelNumber for bf16 {
    fn place(k: usize, c: usize) -> usize {
        k / 2 * 2 * PANEL + 2 * c + k % 2
    }

    #[inline(always)]
    fn place_pair(even: &[Self; PANEL], odd: &[Self; PANEL], out: &mut [MaybeUninit<Self>; 2 * PANEL]) {
        for (out, (even, odd)) in out.as_chunks_mut::<2>().0.iter_mut().zip(even.iter().zip(odd)) {
            *out = [MaybeUninit::new(*even), MaybeUninit::new(*odd)];
        }
    }

    #[inline(always)]
    unsafe fn write<S: Halves>(simd: S, vector: S::f32s, to: *mut Self) {
        let mut wide = [0.0; PANEL];
        let mut rounded = [bf16::ZERO; PANEL];
        simd.partial_store_f32s(&mut wide[..S::F32_LANES], vector);
        bf16::narrow(&wide, &mut rounded);
        // SAFETY: the caller guarantees the room.
        unsafe { rounded.as_ptr().copy_to_nonoverlapping(to, S::F32_LANES) };
    }
}

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
        Self::from_blocks((depth, width), |rows, columns| read_block(data, rows, columns, (row, column)))
    }

    /// Packs the transpose of some columns, from a multiple of [`PANEL`] on: (`columns.len()`, depth).
    ///
    /// # Panics
    /// When the columns are outside the matrix, or start elsewhere.
    pub(crate) fn transposed(&self, columns: Range<usize>) -> Self {
        assert!(columns.start.is_multiple_of(PANEL) && columns.end <= self.width);
        Self::from_blocks((columns.len(), self.depth), |(first, rows), depth| {
            let panel = self.starting_at((columns.start + first) / PANEL);
            let mut block = [[E::from_f32(0.0); PANEL]; BLOCK];
            for (c, k) in depth.enumerate() {
                for (r, out) in block[..rows].iter_mut().enumerate() {
                    out[c] = panel[E::place(k, r)];
                }
            }
            block
        })
    }

    /// The matrix whose block of at most [`BLOCK`] rows (the first of them, and how many) and [`PANEL`] columns `read`
    /// returns, with zeros for the rest.
    pub(super) fn from_blocks(
        (depth, width): (usize, usize),
        read: impl Fn((usize, usize), Range<usize>) -> [[E; PANEL]; BLOCK] + Sync,
    ) -> Self {
        let per_panel = depth.next_multiple_of(2) * PANEL;
        let fill = |strip: usize, panels: &mut [MaybeUninit<E>]| {
            for first in (0..depth).step_by(BLOCK) {
                let rows = BLOCK.min(depth - first);
                for (p, panel) in (strip * STRIP..).zip(panels.chunks_exact_mut(per_panel)) {
                    let columns = (p * PANEL).min(width)..((p + 1) * PANEL).min(width);
                    let block = read((first, rows), columns);
                    let out = panel[first * PANEL..].as_chunks_mut::<{ 2 * PANEL }>().0;
                    for (out, [even, odd]) in out.iter_mut().zip(block.as_chunks::<2>().0) {
                        E::place_pair(even, odd, out);
                    }
                }
            }
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

/// Rows `first..first + rows` of some columns, at most [`PANEL`]; the rest of the block is 0.
#[inline(always)]
pub(super) fn read_block<E: PanelNumber>(
    data: &[E],
    (first, rows): (usize, usize),
    columns: Range<usize>,
    (row, column): (usize, usize),
) -> [[E; PANEL]; BLOCK] {
    let mut block = [[E::from_f32(0.0); PANEL]; BLOCK];
    if column == 1 && columns.len() == PANEL {
        for (k, out) in (first..first + rows).zip(&mut block) {
            out.copy_from_slice(&data[k * row + columns.start..][..PANEL]);
        }
    } else if row == 1 && rows == BLOCK {
        for (c, j) in columns.enumerate() {
            let from = &data[j * column + first..][..BLOCK];
            for (out, x) in block.iter_mut().zip(from) {
                out[c] = *x;
            }
        }
    } else {
        for (k, out) in (first..first + rows).zip(&mut block) {
            for (out, j) in out.iter_mut().zip(columns.clone()) {
                *out = data[k * row + j * column];
            }
        }
    }
    block
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
