//! A vector against several rows at a time, each read once: the building blocks of products with a few rows.

use pulp::Simd;

/// `Σ_c x[c]·rows[i][c]` for each i. The rows are as long as `x`.
#[inline(always)]
pub(crate) fn dots<S: Simd, const N: usize>(simd: S, x: &[f32], rows: [&[f32]; N]) -> [f32; N] {
    let (x_vectors, x_tail) = S::as_simd_f32s(x);
    let columns = x_vectors.len();
    let mut row_vectors: [&[S::f32s]; N] = [&[]; N];
    for (vectors, row) in row_vectors.iter_mut().zip(rows) {
        *vectors = &S::as_simd_f32s(row).0[..columns];
    }
    let mut sums = [simd.splat_f32s(0.0); N];
    for c in 0..columns {
        for (sum, row) in sums.iter_mut().zip(row_vectors) {
            *sum = simd.mul_add_e_f32s(x_vectors[c], row[c], *sum);
        }
    }
    // Loops, not closures, so that all of this is compiled for its caller's instruction set.
    let mut totals = [0.0; N];
    for ((total, sum), row) in totals.iter_mut().zip(sums).zip(rows) {
        *total = simd.reduce_sum_f32s(sum);
        for (x, y) in x_tail.iter().zip(S::as_simd_f32s(row).1) {
            *total += x * y;
        }
    }
    totals
}

/// `sums[c] += Σ_i factors[i]·rows[i][c]`. The rows are as long as `sums`.
#[inline(always)]
pub(crate) fn add_scaled<S: Simd, const N: usize>(
    simd: S,
    sums: &mut [f32],
    factors: [f32; N],
    rows: [&[f32]; N],
) {
    let (sum_vectors, tail) = S::as_mut_simd_f32s(sums);
    let columns = sum_vectors.len();
    let mut row_vectors: [&[S::f32s]; N] = [&[]; N];
    let mut splats = [simd.splat_f32s(0.0); N];
    for (((vectors, splat), factor), row) in row_vectors.iter_mut().zip(&mut splats).zip(factors).zip(rows) {
        let (whole, row_tail) = S::as_simd_f32s(row);
        *vectors = &whole[..columns];
        *splat = simd.splat_f32s(factor);
        for (sum, x) in tail.iter_mut().zip(row_tail) {
            *sum += factor * x;
        }
    }
    for (c, sum) in sum_vectors.iter_mut().enumerate() {
        for (splat, row) in splats.into_iter().zip(row_vectors) {
            *sum = simd.mul_add_e_f32s(splat, row[c], *sum);
        }
    }
}
