//! Products of a few rows with a large matrix, which is read once, in the order of memory: decoding spends
//! its time here, and that time is the memory's.

use super::Weight;
use crate::streams::{add_scaled, dots};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// From here on a blocked product, which packs the weights to use them often, is faster.
pub(super) const FEW_ROWS: usize = 8;

/// Rows of the weight that a task multiplies. Each task sums on its own and the sums are added in order,
/// so the result does not depend on the number of threads.
const DEPTH: usize = 64;
/// Rows of the weight that meet a column of sums at a time: so often are the sums spared a reload.
const STREAMS: usize = 8;
/// Sums that stay in the first-level cache beside the weights that stream past them.
const SUMS: usize = 4096;

/// `out += x·W`
pub(super) fn add_product(x: &[f32], weight: Weight, out: &mut [f32]) {
    let (rows, arch) = (out.len() / weight.width, Arch::new());
    let mut partial = vec![0f32; weight.depth.div_ceil(DEPTH) * out.len()];
    partial.par_chunks_mut(out.len()).enumerate().for_each(|(block, sums)| {
        let first = block * DEPTH;
        let last = (first + DEPTH).min(weight.depth);
        arch.dispatch(Block { x, weight, depths: first..last, sums });
    });
    debug_assert_eq!(x.len(), rows * weight.depth);
    for sums in partial.chunks_exact(out.len()) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += sum;
        }
    }
}

/// `sums += x[:, depths]·W[depths, :]`
struct Block<'a> {
    x: &'a [f32],
    weight: Weight<'a>,
    depths: Range<usize>,
    sums: &'a mut [f32],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, weight, depths, sums } = self;
        let rows = sums.len() / weight.width;
        let strip = (SUMS / rows).next_multiple_of(S::F32_LANES);
        for start in (0..weight.width).step_by(strip) {
            let columns = start..(start + strip).min(weight.width);
            let whole = depths.end - depths.len() % STREAMS;
            for first in (depths.start..whole).step_by(STREAMS) {
                add_rows::<S, STREAMS>(simd, x, weight, first, columns.clone(), sums);
            }
            for k in whole..depths.end {
                add_rows::<S, 1>(simd, x, weight, k, columns.clone(), sums);
            }
        }
    }
}

/// `sums[:, columns] += x[:, first..first + N]·W[first..first + N, columns]`
#[inline(always)]
fn add_rows<S: Simd, const N: usize>(
    simd: S,
    x: &[f32],
    weight: Weight,
    first: usize,
    columns: Range<usize>,
    sums: &mut [f32],
) {
    let w: [&[f32]; N] = std::array::from_fn(|i| &weight.row(first + i)[columns.clone()]);
    for (x, sums) in x.chunks_exact(weight.depth).zip(sums.chunks_exact_mut(weight.width)) {
        let factors = std::array::from_fn(|i| x[first + i]);
        add_scaled(simd, &mut sums[columns.clone()], factors, w);
    }
}

/// Rows of a table that a task multiplies.
const TABLE_ROWS: usize = 128;

/// `out[r][j] = x[r]·table[j]` for rows of `x` and of `table` of `depth` numbers.
pub(super) fn row_products(x: &[f32], table: &[f32], depth: usize, out: &mut [f32]) {
    let (width, arch) = (table.len() / depth, Arch::new());
    // (width, rows) first, so that each task's results lie together.
    let rows = x.len() / depth;
    let mut products = vec![0f32; out.len()];
    products
        .par_chunks_mut(TABLE_ROWS * rows)
        .zip(table.par_chunks(TABLE_ROWS * depth))
        .for_each(|(products, table)| arch.dispatch(RowBlock { x, table, depth, products }));
    for (j, products) in products.chunks_exact(rows).enumerate() {
        for (r, product) in products.iter().enumerate() {
            out[r * width + j] = *product;
        }
    }
}

struct RowBlock<'a> {
    x: &'a [f32],
    table: &'a [f32],
    depth: usize,
    products: &'a mut [f32],
}

impl WithSimd for RowBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, table, depth, products } = self;
        let rows = x.len() / depth;
        let groups = table.chunks(STREAMS * depth).zip(products.chunks_mut(STREAMS * rows));
        for (table, products) in groups {
            let last = table.len() / depth - 1;
            let w: [&[f32]; STREAMS] = std::array::from_fn(|i| &table[i.min(last) * depth..][..depth]);
            for (r, x) in x.chunks_exact(depth).enumerate() {
                let sums = dots(simd, x, w);
                for (product, sum) in products[r..].iter_mut().step_by(rows).zip(sums) {
                    *product = sum;
                }
            }
        }
    }
}
