//! Blocks of matrix products that stay in registers, generic over the instruction set, and the sizes of tiles.

use pulp::Simd;

/// On the CPU, up to this many queries of a call are computed one by one, because packing the keys would cost more than it
/// saves. Each then has the same bits as in a call of its own.
pub const FEW_QUERIES: usize = 4;

/// Queries per tile, a multiple of every block height below. 24 rows of 192 scores fit in the first-level
/// cache together with the key panels in use, and each context sum is loaded once per 192 keys.
pub(super) const QUERIES: usize = 24;
/// Keys per step, a multiple of every panel width below.
pub(super) const KEYS: usize = 192;

/// A row keeps the reference maximum of its sums until a score exceeds it by more than this. 2^8 is
/// small compared with the range of f32, and rescaling becomes rare.
pub(super) const HEADROOM: f32 = 8.0;

/// The size of a block of a matrix product.
#[derive(Clone, Copy)]
pub(super) struct BlockSize {
    pub(super) rows: usize,
    pub(super) vectors: usize,
}

/// A block of scores for 32 registers. M rows and N vectors need M·N accumulators, N vectors of the right-hand matrix
/// and one scalar of the left: 8·3 + 4.
pub(super) const WIDE_SCORES: BlockSize = BlockSize { rows: 8, vectors: 3 };
/// A block of scores for 16 registers: 6·2 + 3.
pub(super) const NARROW_SCORES: BlockSize = BlockSize { rows: 6, vectors: 2 };
/// A block of row sums, such as the context, for 32 registers.
pub(super) const WIDE_SUMS: BlockSize = BlockSize { rows: 6, vectors: 4 };
/// A block of row sums for 16 registers.
pub(super) const NARROW_SUMS: BlockSize = BlockSize { rows: 6, vectors: 2 };

/// The block sizes for an instruction set: wide ones for 32 registers, narrow ones for 16.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocks {
    Wide,
    Narrow,
}

impl Blocks {
    /// Whether an instruction set has the registers for wide blocks. Code that asks in a `const` block is compiled for its own
    /// blocks alone.
    pub(super) const fn are_wide<S: Simd>() -> bool {
        S::REGISTER_COUNT >= 32
    }

    pub(super) fn of<S: Simd>() -> Self {
        if Self::are_wide::<S>() { Self::Wide } else { Self::Narrow }
    }

    fn scores(self) -> BlockSize {
        match self {
            Self::Wide => WIDE_SCORES,
            Self::Narrow => NARROW_SCORES,
        }
    }

    /// The number of rows in a block of scores.
    pub(super) fn rows(self) -> usize {
        self.scores().rows
    }

    /// The number of columns in a packed block of values.
    pub(super) fn columns<S: Simd>(self) -> usize {
        let sums = match self {
            Self::Wide => WIDE_SUMS,
            Self::Narrow => NARROW_SUMS,
        };
        sums.vectors * S::F32_LANES
    }

    /// The number of keys in a packed panel.
    pub(super) fn panel<S: Simd>(self) -> usize {
        self.scores().vectors * S::F32_LANES
    }
}

/// Reads a vector from `ptr`, aligned or not.
///
/// # Safety
/// `S::F32_LANES` floats are readable at `ptr`.
#[inline(always)]
unsafe fn load<S: Simd>(ptr: *const f32) -> S::f32s {
    // SAFETY: the caller guarantees it; every bit pattern is a vector of floats.
    unsafe { ptr.cast::<S::f32s>().read_unaligned() }
}

/// Writes a vector to `ptr`, aligned or not.
///
/// # Safety
/// `S::F32_LANES` floats are writable at `ptr`.
#[inline(always)]
unsafe fn store<S: Simd>(ptr: *mut f32, x: S::f32s) {
    // SAFETY: the caller guarantees it.
    unsafe { ptr.cast::<S::f32s>().write_unaligned(x) }
}

/// `out[r][c] = Σ_d a[d][r] · b[d][c]`: a block of M rows by N vectors, entirely in registers.
///
/// # Safety
/// `a` holds `depth · M` floats, `b` `depth · N` vectors, and `out` M rows of N vectors, `stride` floats
/// apart.
#[inline(always)]
pub(super) unsafe fn outer<S: Simd, const M: usize, const N: usize>(
    simd: S,
    depth: usize,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    stride: usize,
) {
    let mut acc = [[simd.splat_f32s(0.0); N]; M];
    for d in 0..depth {
        let mut row = [simd.splat_f32s(0.0); N];
        for (n, x) in row.iter_mut().enumerate() {
            // SAFETY: d < depth and n < N.
            *x = unsafe { load::<S>(b.add((d * N + n) * S::F32_LANES)) };
        }
        for (m, acc) in acc.iter_mut().enumerate() {
            // SAFETY: d < depth and m < M.
            let x = simd.splat_f32s(unsafe { *a.add(d * M + m) });
            for (acc, y) in acc.iter_mut().zip(row) {
                *acc = simd.mul_add_e_f32s(x, y, *acc);
            }
        }
    }
    for (m, acc) in acc.iter().enumerate() {
        for (n, x) in acc.iter().enumerate() {
            // SAFETY: m < M and n < N.
            unsafe { store::<S>(out.add(m * stride + n * S::F32_LANES), *x) };
        }
    }
}

/// The strides of [`accumulate`]'s three matrices, in floats.
#[derive(Clone, Copy)]
pub(super) struct MatrixStrides {
    /// The distance between rows of p, and between its columns. For a transposed p the two are swapped.
    pub(super) p: (usize, usize),
    pub(super) v: usize,
    pub(super) out: usize,
}

/// `out[r][c] += Σ_j p[r][j] · v[j][c]` for M rows by N vectors, summed over `depth` values of j.
///
/// # Safety
/// `p` holds M rows of `depth` floats, `v` `depth` rows of N vectors and `out` M rows of N vectors,
/// laid out by `strides`.
#[inline(always)]
unsafe fn accumulate<S: Simd, const M: usize, const N: usize>(
    simd: S,
    depth: usize,
    p: *const f32,
    v: *const f32,
    out: *mut f32,
    strides: MatrixStrides,
) {
    let mut acc = [[simd.splat_f32s(0.0); N]; M];
    for (m, acc) in acc.iter_mut().enumerate() {
        for (n, x) in acc.iter_mut().enumerate() {
            // SAFETY: m < M and n < N.
            *x = unsafe { load::<S>(out.add(m * strides.out + n * S::F32_LANES)) };
        }
    }
    for j in 0..depth {
        let mut row = [simd.splat_f32s(0.0); N];
        for (n, x) in row.iter_mut().enumerate() {
            // SAFETY: j < depth and n < N.
            *x = unsafe { load::<S>(v.add(j * strides.v + n * S::F32_LANES)) };
        }
        for (m, acc) in acc.iter_mut().enumerate() {
            // SAFETY: m < M and j < depth.
            let x = simd.splat_f32s(unsafe { *p.add(m * strides.p.0 + j * strides.p.1) });
            for (acc, y) in acc.iter_mut().zip(row) {
                *acc = simd.mul_add_e_f32s(x, y, *acc);
            }
        }
    }
    for (m, acc) in acc.iter().enumerate() {
        for (n, x) in acc.iter().enumerate() {
            // SAFETY: m < M and n < N.
            unsafe { store::<S>(out.add(m * strides.out + n * S::F32_LANES), *x) };
        }
    }
}

/// `out[r] += Σ_j p[r][j]·v[j]` for M rows r of `columns` floats, summed over `depth` values of j.
#[inline(always)]
pub(super) fn add_rows<S: Simd, const M: usize, const N: usize>(
    simd: S,
    depth: usize,
    columns: usize,
    p: &[f32],
    v: &[f32],
    out: &mut [f32],
    strides: MatrixStrides,
) {
    let lanes = S::F32_LANES;
    if depth == 0 {
        return;
    }
    assert!(p.len() > (M - 1) * strides.p.0 + (depth - 1) * strides.p.1);
    assert!(v.len() >= (depth - 1) * strides.v + columns && out.len() >= (M - 1) * strides.out + columns);
    assert!(columns.is_multiple_of(lanes));
    let mut c = 0;
    while c < columns {
        let whole = c + N * lanes <= columns;
        // SAFETY: the lengths above cover M rows of `depth` floats of p, `depth` rows of v and M rows of
        // `out`, each up to column c + N·lanes, or to c + lanes, which is at most `columns`.
        unsafe {
            let p = p.as_ptr();
            let v = v.as_ptr().add(c);
            let out = out.as_mut_ptr().add(c);
            if whole {
                accumulate::<S, M, N>(simd, depth, p, v, out, strides);
            } else {
                accumulate::<S, M, 1>(simd, depth, p, v, out, strides);
            }
        }
        c += if whole { N * lanes } else { lanes };
    }
}
