//! What `pulp` does not offer: vectors of f16, and reading ahead.

use crate::element::Element;
use half::f16;
use pulp::{Scalar, Simd};

/// An instruction set, with what products need beside its vectors.
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
        let (mut wide, mut rounded) = ([0.0; 16], [f16::ZERO; 16]);
        self.partial_store_f32s(&mut wide[..Self::F32_LANES], vector);
        Element::narrow(&wide[..Self::F32_LANES], &mut rounded[..Self::F32_LANES]);
        // SAFETY: the caller guarantees the room.
        unsafe { rounded.as_ptr().copy_to_nonoverlapping(to, Self::F32_LANES) };
    }

    /// Starts to read the cache line at `from` into the second-level cache. Any address will do.
    #[inline(always)]
    fn fetch(self, from: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch changes nothing but what the caches hold, and never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(from.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = from;
    }
}

impl Halves for Scalar {}

#[cfg(target_arch = "aarch64")]
impl Halves for pulp::aarch64::Neon {}

#[cfg(target_arch = "x86_64")]
impl Halves for pulp::x86::V3 {
    #[inline(always)]
    unsafe fn read_f16s(self, from: *const f16) -> Self::f32s {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps};
        // SAFETY: 8 numbers are readable, and `Isa` has looked for F16C.
        pulp::cast(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn write_f16s(self, vector: Self::f32s, to: *mut f16) {
        use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph};
        // SAFETY: there is room for 8 numbers, and as above.
        unsafe {
            let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(pulp::cast(vector));
            _mm_storeu_si128(to.cast(), rounded);
        }
    }
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
impl Halves for pulp::x86::V4 {
    #[inline(always)]
    unsafe fn read_f16s(self, from: *const f16) -> Self::f32s {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps};
        // SAFETY: 16 numbers are readable, and a V4 proves AVX-512.
        pulp::cast(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn write_f16s(self, vector: Self::f32s, to: *mut f16) {
        use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_storeu_si256, _mm512_cvtps_ph};
        // SAFETY: there is room for 16 numbers, and a V4 proves AVX-512.
        unsafe {
            let rounded = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(pulp::cast(vector));
            _mm256_storeu_si256(to.cast(), rounded);
        }
    }
}
