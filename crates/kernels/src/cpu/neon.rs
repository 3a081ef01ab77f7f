//! Arm's instructions that Rust has no stable intrinsics for, and f16 in memory.
#![allow(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint16x8_t, vcvt_f16_f32, vcvt_f32_f16, vld1_u16,
    vreinterpret_f16_u16, vreinterpret_u16_f16, vst1_u16,
};
use std::arch::asm;

/// Four numbers in f16, in f32.
///
/// # Safety
/// 4 numbers are readable at `from`.
#[inline(always)]
pub(crate) unsafe fn read_f16s(from: *const u16) -> float32x4_t {
    // SAFETY: the caller's promise; NEON is part of the target.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))) }
}

/// Writes four numbers in f16.
///
/// # Safety
/// 4 numbers are writable at `to`.
#[inline(always)]
pub(crate) unsafe fn write_f16s(wide: float32x4_t, to: *mut u16) {
    // SAFETY: as for `read_f16s`.
    unsafe { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(wide))) };
}

/// `sums + x₀w₀ + x₁w₁` for four pairs of bf16.
///
/// # Safety
/// The processor has `bf16`.
#[inline(always)]
pub(crate) unsafe fn bfdot(mut sums: float32x4_t, x: uint16x8_t, w: uint16x8_t) -> float32x4_t {
    // SAFETY: the caller's promise; the instruction reads and writes registers alone.
    unsafe {
        asm!(
            "bfdot {0:v}.4s, {1:v}.8h, {2:v}.8h",
            inout(vreg) sums, in(vreg) x, in(vreg) w, options(pure, nomem, nostack)
        );
    }
    sums
}

/// `sums + Σ x·w` over four bytes each.
///
/// # Safety
/// The processor has `dotprod`.
#[inline(always)]
pub(crate) unsafe fn sdot(mut sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: as for `bfdot`.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) x, in(vreg) w, options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// `sums + x·wᵀ` for a matrix x of 2 rows of 8 bytes and a matrix w of 2 rows of 8 bytes, all three row by row.
///
/// # Safety
/// The processor has `i8mm`.
#[inline(always)]
pub(crate) unsafe fn smmla(mut sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: as for `bfdot`.
    unsafe {
        asm!(
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) x, in(vreg) w, options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Starts to read the cache line at `from` into the second-level cache. Any address will do.
#[inline(always)]
pub(crate) fn fetch(from: *const u8) {
    // SAFETY: it changes nothing but what the caches hold, and never faults.
    unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, preserves_flags, readonly)) };
}
