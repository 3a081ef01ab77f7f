//! Panels hold numbers of f32, f16 and bf16, or pairs of bf16. Vectors of each instruction set read and write them here.

use crate::cpu::element::Element;
use crate::cpu::memory::copy_into;
use half::{bf16, f16};
use pulp::Simd;
use std::mem::MaybeUninit;

#[cfg(target_endian = "big")]
compile_error!("the kernels read a pair of bf16 as one little-endian number");

/// The number of columns in a panel: a cache line of f32, and a whole number of vectors on every instruction set.
pub(crate) const PANEL: usize = 16;

/// The most panels that a tile takes. There is always a multiple of it.
pub(crate) const STRIP: usize = 4;

/// An instruction set, with what `pulp` does not offer: vectors of f16, products of pairs of bf16, and two vectors' numbers in turn.
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

    /// The numbers of two vectors in turn: the lower halves as the first vector, the upper halves as the second.
    #[inline(always)]
    fn zip(self, a: Self::f32s, b: Self::f32s) -> (Self::f32s, Self::f32s) {
        let mut even = [0.0; PANEL];
        let mut odd = [0.0; PANEL];
        let mut both = [0.0; 2 * PANEL];
        let lanes = Self::F32_LANES;
        self.partial_store_f32s(&mut even[..lanes], a);
        self.partial_store_f32s(&mut odd[..lanes], b);
        for (both, (even, odd)) in both.as_chunks_mut::<2>().0.iter_mut().zip(even.iter().zip(&odd)) {
            *both = [*even, *odd];
        }
        (self.partial_load_f32s(&both[..lanes]), self.partial_load_f32s(&both[lanes..2 * lanes]))
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
