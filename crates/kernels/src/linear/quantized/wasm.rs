//! The 128-bit vectors of WebAssembly.
//!
//! They multiply numbers of 16 bits and sum two products in i32. So the four bytes of an output become two pairs of numbers: those of
//! even and those of odd inputs.

use super::portable::{VectorCode, Vectors};
use half::f16;
#[allow(clippy::wildcard_imports)] // thirty intrinsics
use std::arch::wasm32::*;
use std::array::from_fn;

/// Four 128-bit vectors.
#[derive(Clone, Copy)]
pub(super) struct Simd128;

#[allow(clippy::cast_ptr_alignment)] // read and written unaligned
impl Vectors for Simd128 {
    type Bytes = [v128; 4];
    type Ints = [v128; 4];
    type Floats = [v128; 4];
    type ActivationCode = i16;
    // 2·4 sums, 4 vectors of codes and 1 of a row, out of the 16 registers that most processors have.
    const ROWS: usize = 2;
    const PANELS: usize = 1;

    #[inline(never)]
    #[target_feature(enable = "simd128")]
    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: the caller guarantees the instruction set, for which this function is compiled.
        unsafe { work.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> [v128; 4] {
        // SAFETY: the caller guarantees the instruction set, and 64 bytes that are readable at `from`.
        from_fn(|i| unsafe { v128_load(from.cast::<v128>().add(i)) })
    }

    #[inline(always)]
    unsafe fn nibbles(bytes: [v128; 4]) -> ([v128; 4], [v128; 4]) {
        (bytes.map(|x| v128_and(x, u8x16_splat(15))), bytes.map(|x| u8x16_shr(x, 4)))
    }

    #[inline(always)]
    unsafe fn widen(bytes: [v128; 4], out: *mut u8) {
        // Of the 4 codes of an output, the first two go to one step, the others to the next.
        for (i, codes) in bytes.into_iter().enumerate() {
            let even = even(codes);
            let odd = odd(codes);
            // As 32-bit numbers, b0 + b2·2¹⁶ and b1 + b3·2¹⁶ become b0 + b1·2¹⁶ and b2 + b3·2¹⁶.
            let first = v128_or(v128_and(even, i32x4_splat(0xffff)), i32x4_shl(odd, 16));
            let second = v128_or(u32x4_shr(even, 16), v128_andnot(odd, i32x4_splat(0xffff)));
            // SAFETY: the caller guarantees the instruction set, and room for 64 codes of 16 bits at `out`.
            unsafe {
                v128_store(out.cast::<v128>().add(i), first);
                v128_store(out.cast::<v128>().add(4 + i), second);
            }
        }
    }

    #[inline(always)]
    unsafe fn ints(x: i32) -> [v128; 4] {
        [i32x4_splat(x); 4]
    }

    #[inline(always)]
    unsafe fn dot(sums: [v128; 4], codes: [v128; 4], x: [v128; 4]) -> [v128; 4] {
        from_fn(|i| {
            let even_x = i16x8_shr(i16x8_shl(x[i], 8), 8);
            let odd_x = i16x8_shr(x[i], 8);
            let sum = i32x4_add(sums[i], i32x4_dot_i16x8(even(codes[i]), even_x));
            i32x4_add(sum, i32x4_dot_i16x8(odd(codes[i]), odd_x))
        })
    }

    #[inline(always)]
    unsafe fn dot_wide(sums: [v128; 4], codes: [v128; 4], x: [v128; 4]) -> [v128; 4] {
        from_fn(|i| i32x4_add(sums[i], i32x4_dot_i16x8(codes[i], x[i])))
    }

    #[inline(always)]
    unsafe fn add(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        from_fn(|i| i32x4_add(a[i], b[i]))
    }

    #[inline(always)]
    unsafe fn floats(sums: [v128; 4]) -> [v128; 4] {
        from_fn(|i| f32x4_convert_i32x4(sums[i]))
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [v128; 4] {
        [f32x4_splat(x); 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [v128; 4] {
        // SAFETY: the caller guarantees the instruction set, and 16 numbers that are readable at `from`.
        unsafe { Self::bytes(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(x: [v128; 4], to: *mut f32) {
        for (i, x) in x.into_iter().enumerate() {
            // SAFETY: the caller guarantees the instruction set, and room for 16 numbers at `to`.
            unsafe { v128_store(to.cast::<v128>().add(i), x) };
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> [v128; 4] {
        // SAFETY: the caller guarantees the instruction set, and 16 halves that are readable at `from`.
        from_fn(|i| unsafe { widen_halves(u32x4_load_extend_u16x4(from.cast::<u16>().add(4 * i))) })
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> [v128; 4] {
        // SAFETY: the caller guarantees the instruction set, and 16 bytes that are readable at `from`.
        from_fn(|i| unsafe {
            let x = v128_load32_zero(from.cast::<u32>().add(i));
            f32x4_convert_i32x4(i32x4_extend_low_i16x8(i16x8_extend_low_i8x16(x)))
        })
    }

    #[inline(always)]
    unsafe fn mul(a: [v128; 4], b: [v128; 4]) -> [v128; 4] {
        from_fn(|i| f32x4_mul(a[i], b[i]))
    }

    #[inline(always)]
    unsafe fn mul_add(a: [v128; 4], b: [v128; 4], c: [v128; 4]) -> [v128; 4] {
        from_fn(|i| f32x4_add(f32x4_mul(a[i], b[i]), c[i]))
    }
}

/// Inputs 0 and 2 of each output, as numbers of 16 bits.
#[inline(always)]
fn even(codes: v128) -> v128 {
    v128_and(codes, i16x8_splat(0xff))
}

/// Inputs 1 and 3.
#[inline(always)]
fn odd(codes: v128) -> v128 {
    u16x8_shr(codes, 8)
}

/// The four halves whose bits are in the lower part of each number, as f32.
///
/// Moved to their place in an f32, the bits of a half are 2⁻¹¹² of it, also where it is subnormal.
#[inline(always)]
fn widen_halves(bits: v128) -> v128 {
    let sign = i32x4_shl(v128_and(bits, i32x4_splat(0x8000)), 16);
    let magnitude = i32x4_shl(v128_and(bits, i32x4_splat(0x7fff)), 13);
    let finite = f32x4_mul(magnitude, f32x4_splat(f32::from_bits(0x7780_0000))); // 2¹¹²
    // Infinity and NaN have the highest exponent in both formats.
    let special = i32x4_ge(magnitude, i32x4_splat(0x0f80_0000));
    let special = v128_and(special, i32x4_splat(0x7f80_0000));
    v128_or(v128_or(finite, special), sign)
}
