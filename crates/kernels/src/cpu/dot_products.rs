//! A few vectors against several rows at a time, each read once: the building blocks of products with a few rows.

use pulp::Simd;

/// `Σ_c x[c]·rows[i][c]` for each i. The rows are as long as `x`.
#[inline(always)]
pub(crate) fn dots<S: Simd, const N: usize>(simd: S, x: &[f32], rows: [&[f32]; N]) -> [f32; N] {
    let [of_x] = dots_of(simd, [x], rows);
    of_x
}

/// `Σ_c xs[m][c]·rows[i][c]` for each m and i. All are of one length.
#[inline(always)]
pub(crate) fn dots_of<S: Simd, const M: usize, const N: usize>(
    simd: S,
    xs: [&[f32]; M],
    rows: [&[f32]; N],
) -> [[f32; N]; M] {
    let columns = S::as_simd_f32s(xs[0]).0.len();
    let mut x_vectors: [&[S::f32s]; M] = [&[]; M];
    for (vectors, x) in x_vectors.iter_mut().zip(xs) {
        *vectors = &S::as_simd_f32s(x).0[..columns];
    }
    let mut row_vectors: [&[S::f32s]; N] = [&[]; N];
    for (vectors, row) in row_vectors.iter_mut().zip(rows) {
        *vectors = &S::as_simd_f32s(row).0[..columns];
    }
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    for c in 0..columns {
        for (sums, x) in sums.iter_mut().zip(x_vectors) {
            for (sum, row) in sums.iter_mut().zip(row_vectors) {
                *sum = simd.mul_add_e_f32s(x[c], row[c], *sum);
            }
        }
    }
    // Loops, not closures, so that all of this is compiled for its caller's instruction set.
    let mut totals = [[0.0; N]; M];
    for ((totals, sums), x) in totals.iter_mut().zip(sums).zip(xs) {
        for ((total, sum), row) in totals.iter_mut().zip(sums).zip(rows) {
            *total = simd.reduce_sum_f32s(sum);
            for (x, y) in S::as_simd_f32s(x).1.iter().zip(S::as_simd_f32s(row).1) {
                *total += x * y;
            }
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
    add_scaled_to(simd, [sums], [factors], rows);
}

/// `sums[m][c] += Σ_i factors[m][i]·rows[i][c]` for each m. All are of one length.
#[inline(always)]
pub(crate) fn add_scaled_to<S: Simd, const M: usize, const N: usize>(
    simd: S,
    sums: [&mut [f32]; M],
    factors: [[f32; N]; M],
    rows: [&[f32]; N],
) {
    let columns = S::as_simd_f32s(&*sums[0]).0.len();
    let mut row_vectors: [&[S::f32s]; N] = [&[]; N];
    for (vectors, row) in row_vectors.iter_mut().zip(rows) {
        *vectors = &S::as_simd_f32s(row).0[..columns];
    }
    let mut sum_vectors: [&mut [S::f32s]; M] = std::array::from_fn(|_| &mut [][..]);
    let mut splats = [[simd.splat_f32s(0.0); N]; M];
    for (((vectors, splats), factors), sums) in sum_vectors.iter_mut().zip(&mut splats).zip(factors).zip(sums)
    {
        let (whole, tail) = S::as_mut_simd_f32s(sums);
        *vectors = &mut whole[..columns];
        for ((splat, factor), row) in splats.iter_mut().zip(factors).zip(rows) {
            *splat = simd.splat_f32s(factor);
            for (sum, x) in tail.iter_mut().zip(S::as_simd_f32s(row).1) {
                *sum += factor * x;
            }
        }
    }
    for c in 0..columns {
        for (vectors, splats) in sum_vectors.iter_mut().zip(splats) {
            let mut total = vectors[c];
            for (splat, row) in splats.into_iter().zip(row_vectors) {
                total = simd.mul_add_e_f32s(splat, row[c], total);
            }
            vectors[c] = total;
        }
    }
}
