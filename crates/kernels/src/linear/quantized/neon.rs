//! The vectors of Arm: NEON, alone, with the products of `dotprod`, and with those of `i8mm`.
//!
//! All multiply bytes with a sign. Flipping the highest bit of a code subtracts its offset of 128.

use super::portable::{TilePointers, VectorCode, Vectors};
use crate::cpu::neon;
use half::f16;
#[allow(clippy::wildcard_imports)] // forty intrinsics
use std::arch::aarch64::*;

/// Four 128-bit vectors.
#[derive(Clone, Copy)]
pub(super) struct Neon;

/// Four 128-bit vectors, with `sdot`.
#[derive(Clone, Copy)]
pub(super) struct NeonDot;

/// Four 128-bit vectors, with `smmla` for many rows and `sdot` for few.
#[derive(Clone, Copy)]
pub(super) struct NeonI8mm;

/// The codes without their offset of 128, as bytes with a sign.
#[inline(always)]
unsafe fn signed(codes: uint8x16_t) -> int8x16_t {
    // SAFETY: the caller guarantees the instruction set; only registers are used.
    unsafe { vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128))) }
}

/// An array of the values for i from 0 to 3. A closure would be compiled without the set's features.
macro_rules! each {
    ($i:ident => $value:expr) => {
        [
            {
                let $i = 0;
                $value
            },
            {
                let $i = 1;
                $value
            },
            {
                let $i = 2;
                $value
            },
            {
                let $i = 3;
                $value
            },
        ]
    };
}

/// The functions that the three sets share.
macro_rules! vectors_of_16_bytes {
    () => {
        type Bytes = [uint8x16_t; 4];
        type Ints = [int32x4_t; 4];
        type Floats = [float32x4_t; 4];
        type ActivationCode = i8;
        const PANELS: usize = 1;

        #[inline(always)]
        unsafe fn bytes(from: *const u8) -> [uint8x16_t; 4] {
            // SAFETY: the caller guarantees the instruction set, and 64 bytes that are readable at `from`.
            unsafe { each!(i => vld1q_u8(from.add(16 * i))) }
        }

        #[inline(always)]
        unsafe fn nibbles(bytes: [uint8x16_t; 4]) -> ([uint8x16_t; 4], [uint8x16_t; 4]) {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe {
                let mask = vdupq_n_u8(15);
                (each!(i => vandq_u8(bytes[i], mask)), each!(i => vshrq_n_u8::<4>(bytes[i])))
            }
        }

        #[inline(always)]
        unsafe fn widen(bytes: [uint8x16_t; 4], out: *mut u8) {
            for (i, codes) in bytes.into_iter().enumerate() {
                // SAFETY: the caller guarantees the instruction set, and room for 64 codes at `out`.
                unsafe { vst1q_s8(out.cast::<i8>().add(16 * i), signed(codes)) };
            }
        }

        #[inline(always)]
        unsafe fn widen_nibbles(bytes: [uint8x16_t; 4], out: *mut u8) {
            for (i, codes) in bytes.into_iter().enumerate() {
                // SAFETY: the caller guarantees the instruction set, and room for 64 codes at `out`.
                unsafe { vst1q_u8(out.add(16 * i), codes) };
            }
        }

        #[inline(always)]
        unsafe fn ints(x: i32) -> [int32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [vdupq_n_s32(x); 4] }
        }

        #[inline(always)]
        unsafe fn start(_: i32) -> [int32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { Self::ints(0) }
        }

        #[inline(always)]
        unsafe fn start_wide(_: i32) -> [int32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { Self::ints(0) }
        }

        #[inline(always)]
        unsafe fn dot(sums: [int32x4_t; 4], codes: [uint8x16_t; 4], x: [int32x4_t; 4]) -> [int32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { each!(i => Self::dot_signed(sums[i], signed(codes[i]), vreinterpretq_s8_s32(x[i]))) }
        }

        #[inline(always)]
        unsafe fn dot_nibbles(
            sums: [int32x4_t; 4],
            codes: [uint8x16_t; 4],
            x: [int32x4_t; 4],
        ) -> [int32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { Self::dot_wide(sums, codes, x) }
        }

        #[inline(always)]
        unsafe fn dot_wide(
            sums: [int32x4_t; 4],
            codes: [uint8x16_t; 4],
            x: [int32x4_t; 4],
        ) -> [int32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { each!(i => Self::dot_signed(sums[i], vreinterpretq_s8_u8(codes[i]), vreinterpretq_s8_s32(x[i]))) }
        }

        #[inline(always)]
        unsafe fn add(a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { each!(i => vaddq_s32(a[i], b[i])) }
        }

        #[inline(always)]
        unsafe fn floats(sums: [int32x4_t; 4]) -> [float32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { each!(i => vcvtq_f32_s32(sums[i])) }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> [float32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { [vdupq_n_f32(x); 4] }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> [float32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set, and 16 numbers that are readable at `from`.
            unsafe { each!(i => vld1q_f32(from.add(4 * i))) }
        }

        #[inline(always)]
        unsafe fn store(x: [float32x4_t; 4], to: *mut f32) {
            for (i, x) in x.into_iter().enumerate() {
                // SAFETY: the caller guarantees the instruction set, and room for 16 numbers at `to`.
                unsafe { vst1q_f32(to.add(4 * i), x) };
            }
        }

        #[inline(always)]
        unsafe fn load_f16(from: *const f16) -> [float32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set, and 16 halves that are readable at `from`.
            unsafe { each!(i => neon::read_f16s(from.cast::<u16>().add(4 * i))) }
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> [float32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set, and 16 bytes that are readable at `from`.
            unsafe {
                let x = vld1q_s8(from);
                let low = vmovl_s8(vget_low_s8(x));
                let high = vmovl_high_s8(x);
                [
                    vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                    vcvtq_f32_s32(vmovl_high_s16(low)),
                    vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                    vcvtq_f32_s32(vmovl_high_s16(high)),
                ]
            }
        }

        #[inline(always)]
        unsafe fn mul(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { each!(i => vmulq_f32(a[i], b[i])) }
        }

        #[inline(always)]
        unsafe fn mul_add(
            a: [float32x4_t; 4],
            b: [float32x4_t; 4],
            c: [float32x4_t; 4],
        ) -> [float32x4_t; 4] {
            // SAFETY: the caller guarantees the instruction set; only registers are used.
            unsafe { each!(i => vfmaq_f32(c[i], a[i], b[i])) }
        }
    };
}

impl Neon {
    /// `sums + Σ codes·x` over 4 inputs.
    #[inline(always)]
    unsafe fn dot_signed(sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe {
            // Two products of at most 2⁷·127 fit 16 bits.
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
            vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(codes, x)))
        }
    }
}

impl NeonDot {
    /// `sums + Σ codes·x` over 4 inputs.
    #[inline(always)]
    unsafe fn dot_signed(sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { neon::sdot(sums, codes, x) }
    }
}

impl Vectors for Neon {
    // 4·4 sums, 4 vectors of codes, 1 of a row and 2 of products, out of 32 registers.
    const ROWS: usize = 4;
    vectors_of_16_bytes!();

    #[inline(never)]
    #[target_feature(enable = "neon")]
    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: the caller guarantees the instruction set, for which this function is compiled.
        unsafe { work.run::<Self>() }
    }
}

impl Vectors for NeonDot {
    // 6·4 sums, 4 vectors of codes and 1 of a row, out of 32 registers.
    const ROWS: usize = 6;
    vectors_of_16_bytes!();

    #[inline(never)]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: the caller guarantees the instruction set, for which this function is compiled.
        unsafe { work.run::<Self>() }
    }
}

impl NeonI8mm {
    #[inline(always)]
    unsafe fn dot_signed(sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees the instruction set; only registers are used.
        unsafe { NeonDot::dot_signed(sums, codes, x) }
    }
}

impl Vectors for NeonI8mm {
    // 3·8 sums of two rows and two outputs each, 3 pairs of rows and a vector of codes, out of 32 registers.
    const ROWS: usize = 6;
    vectors_of_16_bytes!();

    #[inline(never)]
    #[target_feature(enable = "neon,dotprod,i8mm")]
    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: the caller guarantees the instruction set, for which this function is compiled.
        unsafe { work.run::<Self>() }
    }

    /// 8 inputs of two outputs in each vector.
    #[inline(always)]
    unsafe fn widen_pair([a, b]: [[uint8x16_t; 4]; 2], nibbles: bool, out: *mut u8) {
        for (i, (a, b)) in a.into_iter().zip(b).enumerate() {
            // SAFETY: the caller guarantees the instruction set, and room for two times 64 codes at `out`.
            unsafe {
                let [a, b] = if nibbles {
                    [vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b)]
                } else {
                    [vreinterpretq_s32_s8(signed(a)), vreinterpretq_s32_s8(signed(b))]
                };
                let out = out.add(32 * i);
                vst1q_u8(out, vreinterpretq_u8_s32(vzip1q_s32(a, b)));
                vst1q_u8(out.add(16), vreinterpretq_u8_s32(vzip2q_s32(a, b)));
            }
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // several arrays have the index
    unsafe fn dot_steps<const R: usize, const P: usize>(
        mut sums: [[[int32x4_t; 4]; P]; R],
        TilePointers { mut codes, mut x, row, .. }: TilePointers,
        count: usize,
    ) -> [[[int32x4_t; 4]; P]; R] {
        // Not a `const` assertion, which would also hold for tiles that `tile` never takes.
        assert!(P == Self::PANELS && R <= Self::ROWS);
        let pairs = R.div_ceil(2);
        // SAFETY: the caller guarantees the instruction set, and `count` steps of a panel at `codes` and of R rows at `x`.
        unsafe {
            let mut squares = [[vdupq_n_s32(0); 8]; Self::ROWS / 2];
            for _ in 0..count / 2 {
                let mut rows = [vdupq_n_s8(0); Self::ROWS / 2];
                for p in 0..pairs {
                    let first = x.add(2 * p * row).cast::<i8>();
                    // The last row of an odd number is its own partner.
                    let second = if 2 * p + 1 < R { first.add(row) } else { first };
                    rows[p] = vcombine_s8(vld1_s8(first), vld1_s8(second));
                }
                for i in 0..8 {
                    let w = vld1q_s8(codes.add(16 * i).cast());
                    for p in 0..pairs {
                        squares[p][i] = neon::smmla(squares[p][i], rows[p], w);
                    }
                }
                codes = codes.add(128);
                x = x.add(8);
            }
            for r in 0..R {
                for i in 0..4 {
                    let a = vreinterpretq_s64_s32(squares[r / 2][2 * i]);
                    let b = vreinterpretq_s64_s32(squares[r / 2][2 * i + 1]);
                    let of_row = if r % 2 == 0 { vtrn1q_s64(a, b) } else { vtrn2q_s64(a, b) };
                    sums[r][0][i] = vaddq_s32(sums[r][0][i], vreinterpretq_s32_s64(of_row));
                }
            }
        }
        sums
    }
}
