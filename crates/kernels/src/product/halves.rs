//! Vectors of f16 and bf16, which `pulp` does not offer.

use half::f16;
use pulp::{Scalar, Simd};

/// An instruction set that reads halves.
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
        crate::element::Element::widen(from, &mut wide[..Self::F32_LANES]);
        self.partial_load_f32s(&wide[..Self::F32_LANES])
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
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
impl Halves for pulp::x86::V4 {
    #[inline(always)]
    unsafe fn read_f16s(self, from: *const f16) -> Self::f32s {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps};
        // SAFETY: 16 numbers are readable, and a V4 proves AVX-512.
        pulp::cast(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }
}
