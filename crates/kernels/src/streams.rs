//! One vector against several at a time, each read once: the building blocks of products with a few rows.

use pulp::Simd;

/// `Σ_c x[c]·rows[i][c]` for each i. The rows are as long as `x`.
#[inline(always)]
pub(crate) fn dots<S: Simd, const N: usize>(simd: S, x: &[f32], rows: [&[f32]; N]) -> [f32; N] {
    let (x, x_tail) = S::as_simd_f32s(x);
    let mut vectors = [x; N];
    for (vectors, row) in vectors.iter_mut().zip(rows) {
        *vectors = &S::as_simd_f32s(row).0[..x.len()];
    }
    let mut sums = [simd.splat_f32s(0.0); N];
    for (c, x) in x.iter().enumerate() {
        for (sum, row) in sums.iter_mut().zip(vectors) {
            *sum = simd.mul_add_e_f32s(*x, row[c], *sum);
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
    let (sums, sums_tail) = S::as_mut_simd_f32s(sums);
    let mut splats = [simd.splat_f32s(0.0); N];
    let mut vectors: [&[S::f32s]; N] = [&[]; N];
    for (((splat, vectors), factor), row) in splats.iter_mut().zip(&mut vectors).zip(factors).zip(rows) {
        *splat = simd.splat_f32s(factor);
        *vectors = &S::as_simd_f32s(row).0[..sums.len()];
    }
    for (c, sum) in sums.iter_mut().enumerate() {
        let mut total = *sum;
        for (splat, row) in splats.into_iter().zip(vectors) {
            total = simd.mul_add_e_f32s(splat, row[c], total);
        }
        *sum = total;
    }
    for (factor, row) in factors.into_iter().zip(rows) {
        for (sum, x) in sums_tail.iter_mut().zip(S::as_simd_f32s(row).1) {
            *sum += factor * x;
        }
    }
}
