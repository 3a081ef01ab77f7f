//! Sums of the lanes of eight vectors at once: on x86-64, together they take fewer than half the steps.

#![allow(unsafe_code)]

use pulp::Simd;
#[cfg(target_arch = "x86_64")]
#[allow(clippy::wildcard_imports)] // a dozen intrinsics
use std::{any::Any, arch::x86_64::*, mem::transmute_copy};

/// The sum of the lanes of each vector, with the bits of pulp's `reduce_sum_f32s`: halves are added until one lane is left.
#[inline(always)]
pub(crate) fn row_sums<S: Simd, const M: usize, const N: usize>(
    simd: S,
    rows: [[S::f32s; N]; M],
) -> [[f32; N]; M] {
    #[cfg(target_arch = "x86_64")]
    if M * N == 8 {
        let set: &dyn Any = &simd;
        #[cfg(feature = "x86-v4")]
        if set.is::<pulp::x86::V4>() {
            // SAFETY: a V4 proves AVX-512, and its vectors are `__m512`: eight of them, and eight floats.
            return unsafe { transmute_copy(&eight_of_16(transmute_copy(&rows))) };
        }
        if set.is::<pulp::x86::V3>() {
            // SAFETY: a V3 proves AVX2, and its vectors are `__m256`: eight of them, and eight floats.
            return unsafe { transmute_copy(&eight_of_8(transmute_copy(&rows))) };
        }
    }
    // Loops, not closures, so that all of this is compiled for its caller's instruction set.
    let mut sums = [[0.0; N]; M];
    for (sums, rows) in sums.iter_mut().zip(rows) {
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum = simd.reduce_sum_f32s(row);
        }
    }
    sums
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[inline]
#[target_feature(enable = "avx512f")]
fn eight_of_16([a, b, c, d, e, f, g, h]: [__m512; 8]) -> __m256 {
    let x = quarters_of_16([a, b, c, d]);
    let y = quarters_of_16([e, f, g, h]);
    // [a a e e | b b f f | c c g g | d d h h]
    let low = _mm512_shuffle_ps::<0b01_00_01_00>(x, y);
    let high = _mm512_shuffle_ps::<0b11_10_11_10>(x, y);
    let pairs = _mm512_add_ps(low, high);
    let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums))
}

/// `[a | b | c | d]`, 4 lanes of each vector, which add up to its sum.
#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters_of_16([a, b, c, d]: [__m512; 4]) -> __m512 {
    let ab = halves_of_16(a, b);
    let cd = halves_of_16(c, d);
    let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
    let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd);
    _mm512_add_ps(low, high)
}

/// `[a a | b b]`, 8 lanes of each vector, which add up to its sum.
#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[inline]
#[target_feature(enable = "avx512f")]
fn halves_of_16(a: __m512, b: __m512) -> __m512 {
    let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
    let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b);
    _mm512_add_ps(low, high)
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn eight_of_8([a, b, c, d, e, f, g, h]: [__m256; 8]) -> __m256 {
    let x = quarters_of_8([a, b, c, d]);
    let y = quarters_of_8([e, f, g, h]);
    // [a c e g | b d f h]
    let even = _mm256_shuffle_ps::<0b10_00_10_00>(x, y);
    let odd = _mm256_shuffle_ps::<0b11_01_11_01>(x, y);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_ps(_mm256_add_ps(even, odd), order)
}

/// `[a a c c | b b d d]`, 2 lanes of each vector, which add up to its sum.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn quarters_of_8([a, b, c, d]: [__m256; 4]) -> __m256 {
    let ab = halves_of_8(a, b);
    let cd = halves_of_8(c, d);
    let low = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
    let high = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
    _mm256_add_ps(low, high)
}

/// `[a | b]`, 4 lanes of each vector, which add up to its sum.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn halves_of_8(a: __m256, b: __m256) -> __m256 {
    let low = _mm256_permute2f128_ps::<0x20>(a, b);
    let high = _mm256_permute2f128_ps::<0x31>(a, b);
    _mm256_add_ps(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use pulp::WithSimd;

    struct CheckSums<'a>(&'a [f32]);

    impl WithSimd for CheckSums<'_> {
        type Output = ();

        fn with_simd<S: Simd>(self, simd: S) {
            fn check<S: Simd, const M: usize, const N: usize>(simd: S, numbers: &[f32]) {
                let vectors = S::as_simd_f32s(numbers).0;
                let rows: [[S::f32s; N]; M] =
                    std::array::from_fn(|m| std::array::from_fn(|n| vectors[m * N + n]));
                let expected = rows.map(|rows| rows.map(|row| simd.reduce_sum_f32s(row).to_bits()));
                assert_eq!(row_sums(simd, rows).map(|sums| sums.map(f32::to_bits)), expected);
            }
            check::<S, 1, 1>(simd, self.0);
            check::<S, 1, 8>(simd, self.0);
            check::<S, 2, 4>(simd, self.0);
        }
    }

    #[test]
    fn each_sum_has_the_bits_of_its_vector_alone() {
        let numbers: Vec<f32> =
            (0..128u16).map(|i| 1.0 / f32::from(1 + i.wrapping_mul(40_503) % 977)).collect();
        for isa in Isa::available() {
            isa.arch().expect("available").dispatch(CheckSums(&numbers));
        }
    }
}
