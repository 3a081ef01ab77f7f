//! The vectors of x86-64: AVX2, AVX-VNNI and AVX-512 with VNNI.
//!
//! `dpbusd` multiplies bytes without a sign by bytes with one and sums four products in i32. AVX2 has no such instruction:
//! `maddubs` sums two products in i16, which it saturates. Codes below 16 are safe from that, and so are codes with a sign,
//! whose magnitude is the first factor: 2·128·127 is below 2¹⁵. Many rows share codes in i16 instead.

#[cfg(feature = "x86-v4")]
use super::portable::{ActivationCode, BLOCK, ROUND, SUMS};
use super::portable::{VectorCode, Vectors};
use half::f16;
#[allow(clippy::wildcard_imports)] // fifty intrinsics
use std::arch::x86_64::*;

/// Two 256-bit vectors.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// Two 256-bit vectors, with `vpdpbusd`.
#[derive(Clone, Copy)]
pub(super) struct AvxVnni;

/// 512-bit vectors.
#[cfg(feature = "x86-v4")]
#[derive(Clone, Copy)]
pub(super) struct Avx512Vnni;

/// The functions that the two sets of 256-bit vectors share.
macro_rules! halves_of_512 {
    () => {
        type Bytes = [__m256i; 2];
        type Ints = [__m256i; 2];
        type Floats = [__m256; 2];
        // 4·2 sums, 2 vectors of codes and 1 of a row, out of 16 registers.
        const ROWS: usize = 4;
        const PANELS: usize = 1;

        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> [__m256i; 2] {
            let from = from.cast::<__m256i>();
            // SAFETY: the caller guarantees the instruction set, and 64 bytes that are readable at `from`.
            unsafe { [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))] }
        }

        #[inline(always)]
        unsafe fn nibbles([a, b]: [__m256i; 2]) -> ([__m256i; 2], [__m256i; 2]) {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe {
                let mask = _mm256_set1_epi8(15);
                (
                    [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)],
                    [
                        _mm256_and_si256(_mm256_srli_epi16::<4>(a), mask),
                        _mm256_and_si256(_mm256_srli_epi16::<4>(b), mask),
                    ],
                )
            }
        }

        #[inline(always)]
        unsafe fn ints(x: i32) -> [__m256i; 2] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [_mm256_set1_epi32(x); 2] }
        }

        #[inline(always)]
        unsafe fn add(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
        }

        #[inline(always)]
        unsafe fn floats([a, b]: [__m256i; 2]) -> [__m256; 2] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)] }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> [__m256; 2] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [_mm256_set1_ps(x); 2] }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> [__m256; 2] {
            // SAFETY: the caller guarantees the instruction set, and 16 numbers that are readable at `from`.
            unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        }

        #[inline(always)]
        unsafe fn store([a, b]: [__m256; 2], to: *mut f32) {
            // SAFETY: the caller guarantees the instruction set, and room for 16 numbers at `to`.
            unsafe {
                _mm256_storeu_ps(to, a);
                _mm256_storeu_ps(to.add(8), b);
            }
        }

        #[inline(always)]
        unsafe fn load_f16(from: *const f16) -> [__m256; 2] {
            let from = from.cast::<__m128i>();
            // SAFETY: the caller guarantees the instruction set, and 16 halves that are readable at `from`.
            unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))] }
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> [__m256; 2] {
            // SAFETY: the caller guarantees the instruction set, and 16 bytes that are readable at `from`.
            unsafe {
                let x = _mm_loadu_si128(from.cast());
                [
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(x))),
                ]
            }
        }

        #[inline(always)]
        unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        }

        #[inline(always)]
        unsafe fn mul_add(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
        }
    };
}

#[allow(clippy::cast_ptr_alignment)] // read and written unaligned
impl Vectors for Avx2 {
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: the caller guarantees the instruction set, for which this function is compiled.
        unsafe { work.run::<Self>() }
    }

    type ActivationCode = i16;
    halves_of_512!();

    #[inline(always)]
    unsafe fn widen(bytes: [__m256i; 2], out: *mut u8) {
        // Of the 4 codes of an output, the first two go to one step, the others to the next.
        // SAFETY: the caller guarantees the instruction set, and room for 64 codes of 16 bits at `out`.
        unsafe {
            let out = out.cast::<__m256i>();
            let mask = _mm256_set1_epi32(0xffff);
            for (i, half) in bytes.into_iter().enumerate() {
                // As 32-bit numbers, b0 + b1·2⁸ becomes b0 + b1·2¹⁶.
                let spread = |pair| {
                    let (low, high) = (
                        _mm256_and_si256(pair, _mm256_set1_epi32(0xff)),
                        _mm256_and_si256(pair, _mm256_set1_epi32(0xff00)),
                    );
                    _mm256_or_si256(low, _mm256_slli_epi32::<8>(high))
                };
                _mm256_storeu_si256(out.add(i), spread(_mm256_and_si256(half, mask)));
                _mm256_storeu_si256(out.add(2 + i), spread(_mm256_srli_epi32::<16>(half)));
            }
        }
    }

    #[inline(always)]
    unsafe fn start(_: i32) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn dot(mut sums: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let offset = _mm256_set1_epi8(-128);
            for i in 0..2 {
                let codes = _mm256_xor_si256(codes[i], offset);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x[i], codes));
                sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn dot_nibbles(mut sums: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            for i in 0..2 {
                let pairs = _mm256_maddubs_epi16(codes[i], x[i]);
                sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn dot_wide(mut sums: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe {
            for i in 0..2 {
                sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(codes[i], x[i]));
            }
        }
        sums
    }
}

#[allow(clippy::cast_ptr_alignment)] // read and written unaligned
impl Vectors for AvxVnni {
    #[inline(never)]
    #[target_feature(enable = "avxvnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: the caller guarantees the instruction set, for which this function is compiled.
        unsafe { work.run::<Self>() }
    }

    type ActivationCode = i8;
    const BYTES_STAY: bool = true;
    halves_of_512!();

    #[inline(always)]
    unsafe fn widen([a, b]: [__m256i; 2], out: *mut u8) {
        // SAFETY: the caller guarantees the instruction set, and room for 64 codes at `out`.
        unsafe {
            _mm256_storeu_si256(out.cast(), a);
            _mm256_storeu_si256(out.cast::<__m256i>().add(1), b);
        }
    }

    #[inline(always)]
    unsafe fn dot(sums: [__m256i; 2], codes: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe {
            [
                _mm256_dpbusd_avx_epi32(sums[0], codes[0], x[0]),
                _mm256_dpbusd_avx_epi32(sums[1], codes[1], x[1]),
            ]
        }
    }
}

/// The bits of 16 numbers without their signs.
///
/// # Safety
/// The processor has AVX-512, and there are 16 numbers.
#[cfg(feature = "x86-v4")]
#[inline(always)]
unsafe fn magnitudes(x: *const i32) -> __m512i {
    // SAFETY: passed on.
    unsafe { _mm512_and_si512(_mm512_loadu_epi32(x), _mm512_set1_epi32(0x7fff_ffff)) }
}

#[cfg(feature = "x86-v4")]
#[allow(clippy::cast_ptr_alignment)] // read and written unaligned
impl Vectors for Avx512Vnni {
    #[inline(never)]
    #[target_feature(
        enable = "avx512vnni,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
    )]
    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: the caller guarantees the instruction set, for which this function is compiled.
        unsafe { work.run::<Self>() }
    }

    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type ActivationCode = i8;
    // 6·2 sums of a block and as many of all, 2 vectors of codes and 1 of a row, out of 32 registers.
    const ROWS: usize = 6;
    const PANELS: usize = 2;
    const BYTES_STAY: bool = true;
    const SUMS_STAY: bool = true;

    #[inline(always)]
    unsafe fn largest(x: &[f32; BLOCK]) -> f32 {
        // SAFETY: the caller guarantees the instruction set; both halves are within the block.
        unsafe {
            let x = x.as_ptr().cast::<i32>();
            let larger = _mm512_max_epu32(magnitudes(x), magnitudes(x.add(16)));
            f32::from_bits(_mm512_reduce_max_epu32(larger))
        }
    }

    #[inline(always)]
    unsafe fn rounded<X: ActivationCode>(
        x: &[f32; BLOCK],
        inverse: f32,
        codes: &mut [X; BLOCK],
    ) -> [i32; SUMS] {
        assert!(size_of::<X>() == 1, "codes of this set take a byte");
        // SAFETY: the caller guarantees the instruction set; both halves are within the block.
        unsafe {
            let round = _mm512_set1_ps(ROUND);
            let to = codes.as_mut_ptr().cast::<u8>();
            let half = |i: usize| {
                let x = _mm512_mul_ps(_mm512_loadu_ps(x.as_ptr().add(16 * i)), _mm512_set1_ps(inverse));
                let wide = _mm512_castps_si512(_mm512_add_ps(x, round));
                let wide = _mm512_sub_epi32(wide, _mm512_castps_si512(round));
                _mm_storeu_si128(to.add(16 * i).cast(), _mm512_cvtepi32_epi8(wide));
                _mm512_reduce_add_epi32(wide)
            };
            [half(0), half(1)]
        }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512i {
        // SAFETY: the caller guarantees the instruction set, and 64 bytes that are readable at `from`.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn nibbles(bytes: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            (_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask))
        }
    }

    #[inline(always)]
    unsafe fn widen(bytes: __m512i, out: *mut u8) {
        // SAFETY: the caller guarantees the instruction set, and room for 64 codes at `out`.
        unsafe { _mm512_storeu_si512(out.cast(), bytes) };
    }

    #[inline(always)]
    unsafe fn ints(x: i32) -> __m512i {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn dot(sums: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { _mm512_dpbusd_epi32(sums, codes, x) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn floats(sums: __m512i) -> __m512 {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller guarantees the instruction set, and 16 numbers that are readable at `from`.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(x: __m512, to: *mut f32) {
        // SAFETY: the caller guarantees the instruction set, and room for 16 numbers at `to`.
        unsafe { _mm512_storeu_ps(to, x) };
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m512 {
        // SAFETY: the caller guarantees the instruction set, and 16 halves that are readable at `from`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m512 {
        // SAFETY: the caller guarantees the instruction set, and 16 bytes that are readable at `from`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}
