//! The operations that products of codes need from an instruction set, for sixteen outputs at a time, and their form in plain
//! Rust.

use half::f16;

/// The inputs of a row that share a scale.
pub(super) const BLOCK: usize = 32;

/// Sums are kept for each half of a block, because `Q6_K` has a scale for each.
pub(super) const SUMS: usize = 2;

/// Adding 1.5·2²³ leaves the nearest integer in the low bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Code that is compiled for each instruction set.
pub(super) trait VectorCode {
    type Output;

    /// # Safety
    /// The processor has the instruction set.
    unsafe fn run<V: Vectors>(self) -> Self::Output;
}

/// An instruction set that multiplies codes. Sums of products are exact, so all sets give the same bits.
///
/// # Safety
/// Callers of every function guarantee that the processor has the instruction set, and that a pointer is valid for as many
/// numbers as the function reads or writes. They are compiled for the set, see [`Vectors::call`].
pub(super) trait Vectors: Copy + Send + Sync + 'static {
    /// 64 bytes: 4 neighboring inputs of each of 16 outputs.
    type Bytes: Copy;
    /// 16 i32
    type Ints: Copy;
    /// 16 f32
    type Floats: Copy;
    /// The type of the codes of many rows: i8, or i16 where that takes fewer instructions.
    type ActivationCode: ActivationCode;
    /// The most rows of a tile.
    const ROWS: usize;
    /// The panels of a tile of many rows.
    const PANELS: usize;
    /// Whether [`widen`](Self::widen) writes bytes as they are, so that a tile can read them where they lie.
    const BYTES_STAY: bool = false;
    /// Whether a tile's sums over all blocks stay in registers, beside those of one block.
    const SUMS_STAY: bool = false;

    /// Runs `work` in a function of its own, compiled for the instruction set.
    unsafe fn call<W: VectorCode>(work: W) -> W::Output;
    /// The largest magnitude of a block. Bits are compared instead of numbers, so that NaN is the largest of all.
    #[inline(always)]
    unsafe fn largest(x: &[f32; BLOCK]) -> f32 {
        f32::from_bits(x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)))
    }
    /// Writes the integers nearest to `inverse·x`, which are codes, and returns the sums of each half.
    #[inline(always)]
    #[allow(clippy::cast_possible_wrap)] // both are below 2³¹
    unsafe fn rounded<X: ActivationCode>(
        x: &[f32; BLOCK],
        inverse: f32,
        codes: &mut [X; BLOCK],
    ) -> [i32; SUMS] {
        let mut wide = [0; BLOCK];
        for (code, x) in wide.iter_mut().zip(x) {
            *code = (x * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
        }
        for (code, wide) in codes.iter_mut().zip(wide) {
            *code = X::from_i32(wide);
        }
        let [first, second] = wide.as_chunks::<{ BLOCK / SUMS }>().0 else { unreachable!("two halves") };
        [first.iter().sum(), second.iter().sum()]
    }
    /// Reads 64 codes.
    unsafe fn bytes(from: *const u8) -> Self::Bytes;
    /// The lower and the upper four bits of each byte.
    unsafe fn nibbles(bytes: Self::Bytes) -> (Self::Bytes, Self::Bytes);
    /// Writes 64 codes as numbers of [`ActivationCode`](Self::ActivationCode)'s size, in the order in which
    /// [`dot_wide`](Self::dot_wide) reads them.
    unsafe fn widen(bytes: Self::Bytes, out: *mut u8);
    /// [`widen`](Self::widen) for codes below 16.
    #[inline(always)]
    unsafe fn widen_nibbles(bytes: Self::Bytes, out: *mut u8) {
        // SAFETY: passed on.
        unsafe { Self::widen(bytes, out) };
    }
    /// Writes two times 64 codes, below 16 if they are `nibbles`, in the order in which [`dot_steps`](Self::dot_steps) reads them.
    #[inline(always)]
    unsafe fn widen_pair([a, b]: [Self::Bytes; 2], nibbles: bool, out: *mut u8) {
        // SAFETY: passed on.
        unsafe {
            let second = out.add(64 * size_of::<Self::ActivationCode>());
            if nibbles {
                Self::widen_nibbles(a, out);
                Self::widen_nibbles(b, second);
            } else {
                Self::widen(a, out);
                Self::widen(b, second);
            }
        }
    }
    /// The number `x` for each output.
    unsafe fn ints(x: i32) -> Self::Ints;
    /// The first sums for [`dot`](Self::dot), which take off the codes' offset of 128, for inputs that sum to `sum`.
    #[inline(always)]
    unsafe fn start(sum: i32) -> Self::Ints {
        // SAFETY: passed on.
        unsafe { Self::ints(-128 * sum) }
    }
    /// The first sums for codes that [`widen`](Self::widen) wrote: -128 times the sum of the inputs is `start`.
    #[inline(always)]
    unsafe fn start_wide(start: i32) -> Self::Ints {
        // SAFETY: passed on.
        unsafe { Self::ints(start) }
    }
    /// `sums + Σ (code − 128)·x` over 4 inputs, if the sums are from [`start`](Self::start).
    unsafe fn dot(sums: Self::Ints, codes: Self::Bytes, x: Self::Ints) -> Self::Ints;
    /// `sums + Σ code·x` over 4 inputs, for codes below 16.
    #[inline(always)]
    unsafe fn dot_nibbles(sums: Self::Ints, codes: Self::Bytes, x: Self::Ints) -> Self::Ints {
        // SAFETY: passed on.
        unsafe { Self::dot(sums, codes, x) }
    }
    /// `sums + Σ (code − 128)·x` over the inputs of a step of 64 bytes from [`widen`](Self::widen), if the sums are from
    /// [`start_wide`](Self::start_wide); `sums + Σ code·x` for codes from [`widen_nibbles`](Self::widen_nibbles).
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::Ints, codes: Self::Bytes, x: Self::Ints) -> Self::Ints {
        // SAFETY: passed on.
        unsafe { Self::dot(sums, codes, x) }
    }
    /// [`dot_wide`](Self::dot_wide) over `count` steps, an even number, for R rows and P panels.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // several arrays have the index
    unsafe fn dot_steps<const R: usize, const P: usize>(
        mut sums: [[Self::Ints; P]; R],
        TilePointers { mut codes, panel, mut x, row }: TilePointers,
        count: usize,
    ) -> [[Self::Ints; P]; R] {
        // SAFETY: passed on.
        unsafe {
            for _ in 0..count {
                let mut w = [Self::bytes(codes); P];
                for i in 1..P {
                    w[i] = Self::bytes(codes.add(i * panel));
                }
                codes = codes.add(64);
                for r in 0..R {
                    let x = Self::ints(x.add(r * row).cast::<i32>().read_unaligned());
                    for i in 0..P {
                        sums[r][i] = Self::dot_wide(sums[r][i], w[i], x);
                    }
                }
                x = x.add(4);
            }
        }
        sums
    }
    /// `a + b`
    unsafe fn add(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Each sum as a float: exact below 2²⁴.
    unsafe fn floats(sums: Self::Ints) -> Self::Floats;
    /// The number `x` for each output.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// Reads 16 numbers.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// Writes 16 numbers.
    unsafe fn store(x: Self::Floats, to: *mut f32);
    /// Reads 16 halves.
    unsafe fn load_f16(from: *const f16) -> Self::Floats;
    /// Reads 16 bytes with a sign.
    unsafe fn load_i8(from: *const i8) -> Self::Floats;
    /// `a·b`, rounded.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a·b + c`, rounded once; on WebAssembly, twice.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
}

/// Points to the first step of a tile, with the distances to its other panels and rows.
#[derive(Clone, Copy)]
pub(super) struct TilePointers {
    /// 64 bytes for each step of the first panel, from [`Vectors::widen_pair`] or as they lie.
    pub(super) codes: *const u8,
    /// The distance from one panel to the next, in bytes.
    pub(super) panel: usize,
    /// 4 bytes for each step of the first row.
    pub(super) x: *const u8,
    /// The distance from one row to the next, in bytes.
    pub(super) row: usize,
}

/// A code of an activation.
pub(super) trait ActivationCode: Copy + Default + Send + Sync {
    /// The number of codes in 4 bytes.
    const STEP: usize = 4 / size_of::<Self>();
    /// A number of −127 to 127.
    fn from_i32(x: i32) -> Self;
}

#[allow(clippy::cast_possible_truncation)] // -127 to 127
impl ActivationCode for i8 {
    #[inline(always)]
    fn from_i32(x: i32) -> Self {
        x as Self
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "wasm32"))]
#[allow(clippy::cast_possible_truncation)] // -127 to 127
impl ActivationCode for i16 {
    #[inline(always)]
    fn from_i32(x: i32) -> Self {
        x as Self
    }
}

/// Plain Rust: what every other set must agree with.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Vectors for Portable {
    type Bytes = [u8; 64];
    type Ints = [i32; 16];
    type Floats = [f32; 16];
    type ActivationCode = i8;
    const ROWS: usize = 2;
    const PANELS: usize = 1;
    const BYTES_STAY: bool = true;

    unsafe fn call<W: VectorCode>(work: W) -> W::Output {
        // SAFETY: every processor has this.
        unsafe { work.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> [u8; 64] {
        // SAFETY: the caller's pointer leads to 64 bytes.
        unsafe { from.cast::<[u8; 64]>().read() }
    }

    #[inline(always)]
    unsafe fn nibbles(bytes: [u8; 64]) -> ([u8; 64], [u8; 64]) {
        (bytes.map(|b| b & 15), bytes.map(|b| b >> 4))
    }

    #[inline(always)]
    unsafe fn widen(bytes: [u8; 64], out: *mut u8) {
        // SAFETY: as above.
        unsafe { out.cast::<[u8; 64]>().write(bytes) };
    }

    #[inline(always)]
    unsafe fn ints(x: i32) -> [i32; 16] {
        [x; 16]
    }

    #[inline(always)]
    unsafe fn dot(mut sums: [i32; 16], codes: [u8; 64], x: [i32; 16]) -> [i32; 16] {
        let x = x[0].to_le_bytes().map(u8::cast_signed);
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<4>().0) {
            for (code, x) in codes.iter().zip(x) {
                *sum += i32::from(*code) * i32::from(x);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn add(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn floats(sums: [i32; 16]) -> [f32; 16] {
        sums.map(|x| x as f32)
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 16] {
        [x; 16]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 16] {
        // SAFETY: the caller's pointer leads to 16 numbers.
        unsafe { from.cast::<[f32; 16]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(x: [f32; 16], to: *mut f32) {
        // SAFETY: as above.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(x) };
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> [f32; 16] {
        // SAFETY: as above.
        unsafe { from.cast::<[f16; 16]>().read_unaligned() }.map(f16::to_f32)
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> [f32; 16] {
        // SAFETY: as above.
        unsafe { from.cast::<[i8; 16]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn mul_add(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        // WebAssembly has no fused multiply-add, and computing one takes a hundred times as long.
        let one = |i: usize| {
            if cfg!(target_family = "wasm") { a[i] * b[i] + c[i] } else { a[i].mul_add(b[i], c[i]) }
        };
        std::array::from_fn(one)
    }
}
