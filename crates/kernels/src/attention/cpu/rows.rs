//! Rows of keys or values where they lie in memory, read a vector at a time: halves and codes are widened in registers.

use crate::attention::quantized_rows::SCALE_BYTES;
use crate::cpu::element::Element;
use crate::cpu::memory::{LINE, fetch, fetch_near};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use std::any::Any;

/// The number of rows that all heads read before the next ones, which in most models are 8 KiB.
pub(super) const CHUNK: usize = 32;

/// A number of a row in memory.
pub(super) trait RowElement: Copy + 'static {
    /// The number of elements after a row's numbers.
    const EXTRA: usize = 0;
    /// The distance, in bytes, at which rows are fetched ahead: processors do so themselves, but not beyond the end of a page.
    const AHEAD: usize = 4096;

    /// Starts to read the cache line at `from`.
    #[inline(always)]
    fn fetch(from: *const Self) {
        fetch(from.cast());
    }

    fn wide(self) -> f32;

    /// A vector of numbers.
    ///
    /// # Safety
    /// `F32_LANES` numbers are readable at `from`. On x86-64, a V3 comes from a processor with F16C, as `Isa` makes sure.
    #[inline(always)]
    unsafe fn vector<S: Simd>(_: S, from: *const Self) -> S::f32s {
        // SAFETY: the caller's promise.
        unsafe { widen::<S, Self>(from) }
    }

    /// The factor on a row's numbers.
    ///
    /// # Safety
    /// [`EXTRA`](Self::EXTRA) elements are readable at `end`, the end of the numbers.
    #[inline(always)]
    unsafe fn factor(_end: *const Self) -> f32 {
        1.0
    }
}

/// A vector of numbers, widened one by one: the compiler makes vectors of the loop where the instruction set has the steps.
///
/// # Safety
/// `F32_LANES` numbers are readable at `from`.
#[inline(always)]
unsafe fn widen<S: Simd, E: RowElement>(from: *const E) -> S::f32s {
    let mut wide = [0.0; 16];
    for (i, x) in wide[..S::F32_LANES].iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *x = unsafe { from.add(i).read() }.wide();
    }
    S::as_simd_f32s(&wide[..S::F32_LANES]).0[0]
}

impl RowElement for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(_: S, from: *const Self) -> S::f32s {
        // SAFETY: the caller's promise; every bit pattern is a vector of floats.
        unsafe { from.cast::<S::f32s>().read_unaligned() }
    }
}

impl RowElement for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        Element::to_f32(self)
    }
}

impl RowElement for f16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        Element::to_f32(self)
    }

    /// With the instruction for it, where there is one.
    #[inline(always)]
    unsafe fn vector<S: Simd>(simd: S, from: *const Self) -> S::f32s {
        let set: &dyn Any = &simd;
        #[cfg(target_arch = "x86_64")]
        if set.is::<pulp::x86::V3>() {
            use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps};
            // SAFETY: the caller's promise; S::f32s holds the 8 numbers.
            return unsafe { std::mem::transmute_copy(&_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))) };
        }
        #[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
        if set.is::<pulp::x86::V4>() {
            use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps};
            // SAFETY: the caller's promise, and a V4 proves AVX-512; S::f32s holds the 16 numbers.
            return unsafe { std::mem::transmute_copy(&_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) };
        }
        #[cfg(target_arch = "aarch64")]
        if set.is::<pulp::aarch64::Neon>() {
            // SAFETY: the caller's promise; S::f32s holds the 4 numbers.
            return unsafe { std::mem::transmute_copy(&crate::cpu::neon::read_f16s(from.cast())) };
        }
        let _ = set;
        // SAFETY: the caller's promise.
        unsafe { widen::<S, Self>(from) }
    }
}

/// A code, which the scale after its row multiplies.
impl RowElement for u8 {
    const EXTRA: usize = SCALE_BYTES;
    // On Zen 4, codes are read a sixth faster this way, and wider numbers are read slower.
    const AHEAD: usize = 2048;

    #[inline(always)]
    fn fetch(from: *const Self) {
        fetch_near(from);
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self.cast_signed())
    }

    #[inline(always)]
    unsafe fn factor(end: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        f32::from_le_bytes(unsafe { end.cast::<[u8; SCALE_BYTES]>().read() })
    }
}

/// Rows that lie at one distance from each other.
#[derive(Clone, Copy)]
pub(super) struct EvenRows<'a, E> {
    /// The elements from the first row on.
    elements: &'a [E],
    /// The distance from one row to the next, in elements.
    stride: usize,
    pub(super) count: usize,
    /// The numbers of a row.
    pub(super) width: usize,
    /// The distance from a row to the one that is fetched meanwhile, in rows.
    pub(super) rows_ahead: usize,
    /// The number of rows during which others are fetched.
    fetching: usize,
}

impl<'a, E: RowElement> EvenRows<'a, E> {
    /// `more` rows follow at the same distance, which this thread may read next: they are fetched, too.
    pub(super) fn new(elements: &'a [E], stride: usize, count: usize, width: usize, more: usize) -> Self {
        assert!(count > 0);
        let end = (count - 1).checked_mul(stride).and_then(|last| last.checked_add(width + E::EXTRA));
        assert!(end.is_some_and(|end| end <= elements.len()));
        let rows_ahead = E::AHEAD.div_ceil(width * size_of::<E>());
        Self {
            elements,
            stride,
            count,
            width,
            rows_ahead,
            fetching: (count + more).saturating_sub(rows_ahead).min(count),
        }
    }

    /// The rows from the n-th on: [`CHUNK`] of them if more than two heads read them, so that the last heads find them in the cache.
    #[inline(always)]
    pub(super) fn chunk(self, n: usize, heads: usize) -> Self {
        let left = self.count - n;
        let count = if heads > 2 { CHUNK.min(left) } else { left };
        Self {
            elements: &self.elements[n * self.stride..],
            count,
            fetching: self.fetching.saturating_sub(n),
            ..self
        }
    }

    /// The distance from row `n` to the one that is fetched meanwhile, in elements: 0 if no such row is known to follow.
    #[inline(always)]
    pub(super) fn ahead(&self, n: usize) -> usize {
        if n < self.fetching { self.rows_ahead * self.stride } else { 0 }
    }

    /// The first number of row `n`, if there is such a row.
    #[inline(always)]
    pub(super) fn row(&self, n: usize) -> *const E {
        self.elements.as_ptr().wrapping_add(n * self.stride)
    }
}

/// Whether a row's column `c`, the first of a vector, begins a cache line of the row.
#[inline(always)]
pub(super) fn begins_line<S: Simd, E>(c: usize) -> bool {
    (c * size_of::<E>()) % LINE < S::F32_LANES * size_of::<E>()
}

/// A step of attention that reads rows.
pub(super) trait RowStep {
    /// Takes rows, the first of which is row `first` of its head.
    fn take<S: Simd, E: RowElement>(&mut self, simd: S, rows: EvenRows<E>, first: usize);
}

/// Runs a step, compiled for the instruction set and on x86-64 with F16C.
#[inline(always)]
pub(super) fn run<S: Simd, E: RowElement>(simd: S, step: &mut impl RowStep, rows: EvenRows<E>, first: usize) {
    let work = OnRows { step, rows, first };
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        fn with_f16c<W: WithSimd>(simd: pulp::x86::V3, work: W) -> W::Output {
            work.with_simd(simd)
        }
        let set: &dyn Any = &simd;
        if let Some(v3) = set.downcast_ref::<pulp::x86::V3>() {
            // SAFETY: a V3 proves AVX2, and `Isa` has looked for F16C.
            return unsafe { with_f16c(*v3, work) };
        }
    }
    simd.vectorize(work);
}

struct OnRows<'a, 'b, T, E> {
    step: &'a mut T,
    rows: EvenRows<'b, E>,
    first: usize,
}

impl<T: RowStep, E: RowElement> WithSimd for OnRows<'_, '_, T, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.step.take(simd, self.rows, self.first);
    }
}
