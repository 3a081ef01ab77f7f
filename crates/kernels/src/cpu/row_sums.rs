//! Sums of the lanes of some vectors at once, with the bits that pulp's `reduce_sum_f32s` gives each: halves are added until one
//! lane is left. Vectors share the shuffles, of which each would need four on its own.

#![allow(unsafe_code)]

use pulp::Simd;
#[cfg(target_arch = "x86_64")]
use std::{any::Any, arch::x86_64::*, mem::transmute_copy};

/// The sum of the lanes of each vector.
#[inline(always)]
pub(crate) fn row_sums<S: Simd, const N: usize>(simd: S, rows: [S::f32s; N]) -> [f32; N] {
    #[cfg(target_arch = "x86_64")]
    {
        let set: &dyn Any = &simd;
        // SAFETY: a V4 proves AVX-512 and a V3 AVX2; `S::f32s` are their vectors.
        #[cfg(feature = "x86-v4")]
        if set.is::<pulp::x86::V4>() && N == 8 {
            return unsafe { transmute_copy(&eight_of_16(transmute_copy(&rows))) };
        }
        #[cfg(feature = "x86-v4")]
        if set.is::<pulp::x86::V4>() && N == 4 {
            return unsafe { transmute_copy(&four_of_16(transmute_copy(&rows))) };
        }
        if set.is::<pulp::x86::V3>() && N == 8 {
            return unsafe { transmute_copy(&eight_of_8(transmute_copy(&rows))) };
        }
        if set.is::<pulp::x86::V3>() && N == 4 {
            return unsafe { transmute_copy(&four_of_8(transmute_copy(&rows))) };
        }
    }
    rows.map(|row| simd.reduce_sum_f32s(row))
}

/// The upper half of each added to the lower: 8 lanes of `a`, 8 of `b`.
#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[inline(always)]
unsafe fn halves_of_16(a: __m512, b: __m512) -> __m512 {
    unsafe {
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
        )
    }
}

/// Of four vectors, 4 lanes each.
#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[inline(always)]
unsafe fn quarters_of_16([a, b, c, d]: [__m512; 4]) -> __m512 {
    unsafe {
        let (ab, cd) = (halves_of_16(a, b), halves_of_16(c, d));
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
        )
    }
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[inline(always)]
unsafe fn eight_of_16([a, b, c, d, e, f, g, h]: [__m512; 8]) -> __m256 {
    unsafe {
        // Lanes of a, b, c and d in turn, those of e, f, g and h beside them.
        let (x, y) = (quarters_of_16([a, b, c, d]), quarters_of_16([e, f, g, h]));
        let pairs =
            _mm512_add_ps(_mm512_shuffle_ps::<0b01_00_01_00>(x, y), _mm512_shuffle_ps::<0b11_10_11_10>(x, y));
        let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums))
    }
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[inline(always)]
unsafe fn four_of_16(rows: [__m512; 4]) -> __m128 {
    unsafe {
        let quarters = quarters_of_16(rows);
        let pairs = _mm512_add_ps(quarters, _mm512_permute_ps::<0b01_00_11_10>(quarters));
        let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_castps512_ps128(_mm512_permutexvar_ps(order, sums))
    }
}

/// The upper half of each added to the lower: 4 lanes of `a`, 4 of `b`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn halves_of_8(a: __m256, b: __m256) -> __m256 {
    unsafe { _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b)) }
}

/// Of four vectors, 2 lanes each: those of a and c, then those of b and d.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quarters_of_8([a, b, c, d]: [__m256; 4]) -> __m256 {
    unsafe {
        let (ab, cd) = (halves_of_8(a, b), halves_of_8(c, d));
        _mm256_add_ps(_mm256_shuffle_ps::<0b01_00_01_00>(ab, cd), _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd))
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn eight_of_8([a, b, c, d, e, f, g, h]: [__m256; 8]) -> __m256 {
    unsafe {
        let (x, y) = (quarters_of_8([a, b, c, d]), quarters_of_8([e, f, g, h]));
        // a, c, e and g, then b, d, f and h.
        let sums =
            _mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(x, y), _mm256_shuffle_ps::<0b11_01_11_01>(x, y));
        _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn four_of_8(rows: [__m256; 4]) -> __m128 {
    unsafe {
        let pairs = quarters_of_8(rows);
        let sums = _mm256_add_ps(pairs, _mm256_permute_ps::<0b10_11_00_01>(pairs));
        _mm256_castps256_ps128(_mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 2, 6, 0, 0, 0, 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use pulp::WithSimd;

    struct Both<'a>(&'a [f32]);

    impl WithSimd for Both<'_> {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            fn check<S: Simd, const N: usize>(simd: S, numbers: &[f32]) {
                let rows: [S::f32s; N] = std::array::from_fn(|i| S::as_simd_f32s(numbers).0[i]);
                let expected = rows.map(|row| simd.reduce_sum_f32s(row).to_bits());
                assert_eq!(row_sums(simd, rows).map(f32::to_bits), expected);
            }
            check::<S, 1>(simd, self.0);
            check::<S, 4>(simd, self.0);
            check::<S, 8>(simd, self.0);
        }
    }

    #[test]
    fn each_sum_has_the_bits_of_its_vector_alone() {
        let numbers: Vec<f32> =
            (0..128u32).map(|i| 1.0 / (1 + i.wrapping_mul(2_654_435_761) % 977) as f32).collect();
        for isa in Isa::available() {
            isa.arch().expect("available").dispatch(Both(&numbers));
        }
    }
}
