//! Code that is compiled once for each instruction set, with functions of their own for loops that need every register,
//! which `pulp` does not offer.

use super::numbers::{Bf16Pair, Factor, Halves};
use super::tile::{Tile, compute};
#[cfg(target_arch = "aarch64")]
use crate::cpu::neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use half::f16;
#[cfg(target_arch = "aarch64")]
use pulp::aarch64::Neon;
#[cfg(target_arch = "wasm32")]
use pulp::wasm::Simd128;
#[cfg(target_arch = "x86_64")]
use pulp::x86::V3;
#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
use pulp::x86::V4;
use pulp::{Arch, Scalar};

/// Code that is compiled for each instruction set.
pub(crate) trait Kernel {
    type Output;
    fn with<S: Lanes>(self, simd: S) -> Self::Output;
}

/// An instruction set.
pub(crate) trait Lanes: Halves {
    /// The most rows of a tile.
    const ROWS: usize;

    /// The number of panels in a tile of up to this many rows: a power of 2, at most 4. Fewer rows leave registers for more
    /// panels.
    fn panels(rows: usize) -> usize {
        match rows {
            1 => 4,
            2 => 2,
            _ => 1,
        }
    }

    /// Runs `kernel`, compiled for the instruction set.
    ///
    /// # Safety
    /// The processor has what [`crate::isa::Isa`] looks for: on x86-64, F16C beside what the token proves.
    unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// The function that computes tiles of up to [`ROWS`](Self::ROWS) rows by [`panels`](Self::panels) panels. It is called
    /// through a pointer, because the compiler keeps all sums of a tile in registers only if nothing else is around it.
    fn tile<E: Factor>(rows: usize, panels: usize) -> TileFunction<Self, E>;

    /// [`tile`](Self::tile) for pairs of bf16. On AVX-512, its functions need AVX512-BF16, on NEON `bf16`.
    fn pair_tile(rows: usize, panels: usize) -> TileFunction<Self, Bf16Pair> {
        Self::tile(rows, panels)
    }
}

/// Computes a [`Tile`], under whose conditions it may be called.
pub(crate) type TileFunction<S, E> = unsafe fn(S, Tile<E>);

/// Runs `kernel` on the instruction set of `arch`, which [`crate::isa::Isa::arch`] has given.
pub(crate) fn dispatch<K: Kernel>(arch: Arch, kernel: K) -> K::Output {
    match arch {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as the caller promises, `Isa` has looked.
        Arch::V3(simd) => unsafe { simd.run(kernel) },
        #[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
        // SAFETY: as above.
        Arch::V4(simd) => unsafe { simd.run(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the token is all that it takes.
        Arch::Neon(simd) => unsafe { simd.run(kernel) },
        #[cfg(target_arch = "wasm32")]
        // SAFETY: as above.
        Arch::Simd128(simd) => unsafe { simd.run(kernel) },
        // SAFETY: every processor has this.
        _ => unsafe { Scalar.run(kernel) },
    }
}

/// [`Lanes::tile`] for the shapes listed: for each number of rows and panels, a tile of that many rows and vectors. The
/// attribute is that of the function that computes it; another one, after `pairs`, makes [`Lanes::pair_tile`].
macro_rules! tiles {
    (@choose $simd:ty, $factor:ty, $shape:expr, ($(#[$attribute:meta])?)
        $($rows:literal x $panels:literal => $vectors:literal),* $(,)?) => {{
        $(#[$attribute])?
        unsafe fn tile<E: Factor, const M: usize, const N: usize>(simd: $simd, tile: Tile<E>) {
            // SAFETY: passed on.
            unsafe { compute::<_, E, M, N>(simd, tile) };
        }
        match $shape {
            $(($rows, $panels) => tile::<$factor, $rows, $vectors>,)*
            (rows, panels) => unreachable!("no tile of {rows} rows by {panels} panels"),
        }
    }};
    ($simd:ty: #[$attribute:meta] pairs #[$pairs:meta] $($shapes:tt)*) => {
        tiles! { $simd: #[$attribute] $($shapes)* }

        fn pair_tile(rows: usize, panels: usize) -> TileFunction<Self, Bf16Pair> {
            tiles!(@choose $simd, Bf16Pair, (rows, panels), (#[$pairs]) $($shapes)*)
        }
    };
    ($simd:ty: $(#[$attribute:meta])? $($rows:literal $($shapes:tt)*)?) => {
        fn tile<E: Factor>(rows: usize, panels: usize) -> TileFunction<Self, E> {
            tiles!(@choose $simd, E, (rows, panels), ($(#[$attribute])?) $($rows $($shapes)*)?)
        }
    };
}

impl Halves for Scalar {}

impl Lanes for Scalar {
    const ROWS: usize = 2;

    fn panels(_: usize) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.with(self)
    }

    tiles! { Scalar: 1 x 1 => 16, 2 x 1 => 16 }
}

#[cfg(target_arch = "aarch64")]
impl Halves for Neon {
    #[inline(always)]
    unsafe fn read_f16s(self, from: *const f16) -> Self::f32s {
        // SAFETY: the caller's promise.
        pulp::cast(unsafe { neon::read_f16s(from.cast()) })
    }

    #[inline(always)]
    unsafe fn write_f16s(self, vector: Self::f32s, to: *mut f16) {
        // SAFETY: the caller's promise.
        unsafe { neon::write_f16s(pulp::cast(vector), to.cast()) };
    }

    #[inline(always)]
    unsafe fn dot_pairs(self, x: Self::f32s, w: Self::f32s, sum: Self::f32s) -> Self::f32s {
        // SAFETY: the caller has looked for `bf16`.
        pulp::cast(unsafe { neon::bfdot(pulp::cast(sum), pulp::cast(x), pulp::cast(w)) })
    }

    #[inline(always)]
    fn zip(self, a: Self::f32s, b: Self::f32s) -> (Self::f32s, Self::f32s) {
        use std::arch::aarch64::{vzip1q_f32, vzip2q_f32};
        // SAFETY: a Neon proves NEON.
        unsafe {
            let a = pulp::cast(a);
            let b = pulp::cast(b);
            (pulp::cast(vzip1q_f32(a, b)), pulp::cast(vzip2q_f32(a, b)))
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl Lanes for Neon {
    // 6·4 sums, 4 vectors of weights and 1 of a row, out of 32 registers.
    const ROWS: usize = 6;

    // Every processor of the target has NEON.
    #[inline(always)]
    unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.with(self)
    }

    tiles! {
        Neon: #[target_feature(enable = "neon")] pairs #[target_feature(enable = "neon,bf16")]
        1 x 1 => 4, 2 x 1 => 4, 3 x 1 => 4, 4 x 1 => 4, 5 x 1 => 4, 6 x 1 => 4, 2 x 2 => 8, 1 x 4 => 16,
    }
}

#[cfg(target_arch = "wasm32")]
impl Halves for Simd128 {}

#[cfg(target_arch = "wasm32")]
impl Lanes for Simd128 {
    // 3·4 sums, a vector of weights and one of a row, out of the 16 registers that engines have on x86-64.
    const ROWS: usize = 3;

    fn panels(_: usize) -> usize {
        1
    }

    #[target_feature(enable = "simd128")]
    unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.with(self)
    }

    tiles! { Simd128: #[target_feature(enable = "simd128")] 1 x 1 => 4, 2 x 1 => 4, 3 x 1 => 4 }
}

#[cfg(target_arch = "x86_64")]
impl Halves for V3 {
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

    #[inline(always)]
    fn zip(self, a: Self::f32s, b: Self::f32s) -> (Self::f32s, Self::f32s) {
        use std::arch::x86_64::{_mm256_permute2f128_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps};
        // SAFETY: a V3 proves AVX2.
        unsafe {
            let a = pulp::cast(a);
            let b = pulp::cast(b);
            let low = _mm256_unpacklo_ps(a, b);
            let high = _mm256_unpackhi_ps(a, b);
            let first = _mm256_permute2f128_ps::<0x20>(low, high);
            (pulp::cast(first), pulp::cast(_mm256_permute2f128_ps::<0x31>(low, high)))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for V3 {
    // 6·2 sums, 2 vectors of weights and 1 of a row, out of 16 registers.
    const ROWS: usize = 6;

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.with(self)
    }

    tiles! {
        V3: #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        1 x 1 => 2, 2 x 1 => 2, 3 x 1 => 2, 4 x 1 => 2, 5 x 1 => 2, 6 x 1 => 2, 2 x 2 => 4, 1 x 4 => 8,
    }
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
impl Halves for V4 {
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

    #[inline(always)]
    unsafe fn dot_pairs(self, x: Self::f32s, w: Self::f32s, sum: Self::f32s) -> Self::f32s {
        use std::arch::x86_64::_mm512_dpbf16_ps;
        // SAFETY: the caller has looked for AVX512-BF16.
        pulp::cast(unsafe { _mm512_dpbf16_ps(pulp::cast(sum), pulp::cast(x), pulp::cast(w)) })
    }

    #[inline(always)]
    fn zip(self, a: Self::f32s, b: Self::f32s) -> (Self::f32s, Self::f32s) {
        use std::arch::x86_64::_mm512_permutex2var_ps;
        const LOW: [i32; 16] = [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23];
        const HIGH: [i32; 16] = [8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31];
        // SAFETY: a V4 proves AVX-512.
        unsafe {
            let a = pulp::cast(a);
            let b = pulp::cast(b);
            let low = _mm512_permutex2var_ps(a, pulp::cast(LOW), b);
            (pulp::cast(low), pulp::cast(_mm512_permutex2var_ps(a, pulp::cast(HIGH), b)))
        }
    }
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
impl Lanes for V4 {
    // 14·2 sums, 2 vectors of weights and 1 of a row, out of 32 registers.
    const ROWS: usize = 14;

    fn panels(rows: usize) -> usize {
        if rows <= 7 { 4 } else { 2 }
    }

    #[target_feature(
        enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
    )]
    unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.with(self)
    }

    tiles! {
        V4: #[target_feature(
            enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
        )] pairs #[target_feature(
            enable = "avx512bf16,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
        )]
        1 x 2 => 2, 2 x 2 => 2, 3 x 2 => 2, 4 x 2 => 2, 5 x 2 => 2, 6 x 2 => 2, 7 x 2 => 2, 8 x 2 => 2,
        9 x 2 => 2, 10 x 2 => 2, 11 x 2 => 2, 12 x 2 => 2, 13 x 2 => 2, 14 x 2 => 2,
        1 x 4 => 4, 2 x 4 => 4, 3 x 4 => 4, 4 x 4 => 4, 5 x 4 => 4, 6 x 4 => 4, 7 x 4 => 4,
    }
}
