//! Code that is compiled once for each instruction set, with functions of their own for loops that need every register,
//! which `pulp` does not offer.

use super::halves::Halves;
use super::panels::Stored;
use super::tile::{Shape, Tile};
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

    /// How many panels a tile has for up to this many rows: a power of 2, at most 4. Fewer rows leave registers for more
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
    fn tile<E: Stored>(rows: usize, panels: usize) -> TileFunction<Self, E>;
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
        // SAFETY: every processor has this.
        _ => unsafe { Scalar.run(kernel) },
    }
}

/// `tile` for the shapes listed: for so many rows and panels, a tile of so many rows by so many vectors.
macro_rules! tiles {
    ($function:ident: $($rows:literal x $panels:literal => $vectors:literal),* $(,)?) => {
        fn tile<E: Stored>(rows: usize, panels: usize) -> TileFunction<Self, E> {
            match (rows, panels) {
                $(($rows, $panels) => $function::<E, $rows, $vectors>,)*
                _ => unreachable!("no tile of {rows} rows by {panels} panels"),
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod v3 {
    use super::{Kernel, Lanes, Shape, Stored, Tile, TileFunction};
    use pulp::x86::V3;

    impl Lanes for V3 {
        // 6·2 sums, 2 vectors of weights and 1 of a row, out of 16 registers.
        const ROWS: usize = 6;

        #[inline(always)]
        unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: the caller guarantees F16C, and a V3 proves the rest.
            unsafe { run(self, kernel) }
        }

        tiles! {
            tile: 1 x 1 => 2, 2 x 1 => 2, 3 x 1 => 2, 4 x 1 => 2, 5 x 1 => 2, 6 x 1 => 2, 2 x 2 => 4, 1 x 4 => 8,
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn run<K: Kernel>(simd: V3, kernel: K) -> K::Output {
        kernel.with(simd)
    }

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn tile<E: Stored, const M: usize, const N: usize>(simd: V3, tile: Tile<E>) {
        // SAFETY: passed on.
        unsafe { Shape::<E, M, N>::new(tile) }.compute(simd);
    }
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
mod v4 {
    use super::{Kernel, Lanes, Shape, Stored, Tile, TileFunction};
    use pulp::x86::V4;

    impl Lanes for V4 {
        // 14·2 sums, 2 vectors of weights and 1 of a row, out of 32 registers.
        const ROWS: usize = 14;

        fn panels(rows: usize) -> usize {
            if rows <= 7 { 4 } else { 2 }
        }

        #[inline(always)]
        unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: the caller guarantees F16C, and a V4 proves the rest.
            unsafe { run(self, kernel) }
        }

        tiles! {
            tile: 1 x 2 => 2, 2 x 2 => 2, 3 x 2 => 2, 4 x 2 => 2, 5 x 2 => 2, 6 x 2 => 2, 7 x 2 => 2, 8 x 2 => 2,
            9 x 2 => 2, 10 x 2 => 2, 11 x 2 => 2, 12 x 2 => 2, 13 x 2 => 2, 14 x 2 => 2,
            1 x 4 => 4, 2 x 4 => 4, 3 x 4 => 4, 4 x 4 => 4, 5 x 4 => 4, 6 x 4 => 4, 7 x 4 => 4,
        }
    }

    #[target_feature(
        enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
    )]
    fn run<K: Kernel>(simd: V4, kernel: K) -> K::Output {
        kernel.with(simd)
    }

    #[target_feature(
        enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
    )]
    unsafe fn tile<E: Stored, const M: usize, const N: usize>(simd: V4, tile: Tile<E>) {
        // SAFETY: passed on.
        unsafe { Shape::<E, M, N>::new(tile) }.compute(simd);
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{Kernel, Lanes, Shape, Stored, Tile, TileFunction};
    use pulp::aarch64::Neon;

    impl Lanes for Neon {
        // 6·4 sums, 4 vectors of weights and 1 of a row, out of 32 registers.
        const ROWS: usize = 6;

        // Every processor of the target has NEON.
        #[inline(always)]
        unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
            kernel.with(self)
        }

        tiles! {
            tile: 1 x 1 => 4, 2 x 1 => 4, 3 x 1 => 4, 4 x 1 => 4, 5 x 1 => 4, 6 x 1 => 4, 2 x 2 => 8, 1 x 4 => 16,
        }
    }

    unsafe fn tile<E: Stored, const M: usize, const N: usize>(simd: Neon, tile: Tile<E>) {
        // SAFETY: passed on.
        unsafe { Shape::<E, M, N>::new(tile) }.compute(simd);
    }
}

mod scalar {
    use super::{Kernel, Lanes, Shape, Stored, Tile, TileFunction};
    use pulp::Scalar;

    impl Lanes for Scalar {
        const ROWS: usize = 2;

        fn panels(_: usize) -> usize {
            1
        }

        #[inline(always)]
        unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
            kernel.with(self)
        }

        tiles! { tile: 1 x 1 => 16, 2 x 1 => 16 }
    }

    unsafe fn tile<E: Stored, const M: usize, const N: usize>(simd: Scalar, tile: Tile<E>) {
        // SAFETY: passed on.
        unsafe { Shape::<E, M, N>::new(tile) }.compute(simd);
    }
}
