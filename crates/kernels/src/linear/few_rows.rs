//! Products of a few rows with a large matrix, which is read once, in memory order. Decoding spends its
//! time here, limited by the speed of memory.

use crate::cpu::cpu_op::CpuInput;
use crate::cpu::dot_products::{add_scaled, dots};
use crate::cpu::element::{Element, Widen};
use crate::cpu::isa;
use candle_core::{Result, WithDType};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Some or all columns of a row-major matrix (K, N).
#[derive(Clone, Copy)]
pub(super) struct MatrixRows<'a, E> {
    data: &'a [E],
    pub(super) depth: usize,
    pub(super) width: usize,
    stride: usize,
}

impl<'a, E: Element + WithDType> MatrixRows<'a, E> {
    pub(super) fn new(CpuInput { storage, layout }: CpuInput<'a>) -> Result<Self> {
        let (depth, width) = layout.shape().dims2()?;
        let data = storage.as_slice::<E>()?.get(layout.start_offset()..).unwrap_or_default();
        let stride = layout.stride()[0];
        let end = depth.saturating_sub(1) * stride + width;
        if layout.stride()[1] != 1 || end > data.len() || depth * width == 0 {
            candle_core::bail!("linear: a weight of layout {layout:?} is empty or not made of rows")
        }
        Ok(Self { data, depth, width, stride })
    }
}

impl<'a, E: Element> MatrixRows<'a, E> {
    pub(super) fn row(&self, k: usize) -> &'a [E] {
        &self.data[k * self.stride..][..self.width]
    }

    /// The matrix in f32, row-major, and the stride of its rows: borrowed in place, or widened.
    pub(super) fn in_f32(&self) -> (Cow<'a, [f32]>, usize) {
        if let Some(data) = E::as_f32s(self.data) {
            return (Cow::Borrowed(data), self.stride);
        }
        let mut wide = vec![0.0; self.depth * self.width];
        let arch = isa::arch();
        let rows = wide.par_chunks_mut(self.width).enumerate();
        rows.for_each(|(k, row)| arch.dispatch(Widen { from: self.row(k), to: row }));
        (Cow::Owned(wide), self.width)
    }
}

/// From this many rows on, a blocked product is faster: it packs the weights and reuses them.
pub(super) const FEW_ROWS: usize = 8;

/// The number of weight rows that a task multiplies. Each task sums separately and the sums are added in
/// order, so the result does not depend on the number of threads.
const DEPTH: usize = 64;
/// The number of weight rows added to the sums at a time: each sum is loaded once for all of them.
const STREAMS: usize = 8;
/// The number of sums that fit in the first-level cache together with the weights that stream through it.
const SUMS: usize = 4096;
/// [`SUMS`] for f16 and bf16 weights, which need room in the cache for their f32 copies.
const WIDENED: usize = 512;

/// `out += x·W`
pub(super) fn add_product<E: Element>(x: &[f32], weight: MatrixRows<E>, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let arch = isa::arch();
    let mut partial = vec![0f32; weight.depth.div_ceil(DEPTH) * out.len()];
    partial.par_chunks_mut(out.len()).enumerate().for_each(|(block, sums)| {
        let first = block * DEPTH;
        let last = (first + DEPTH).min(weight.depth);
        arch.dispatch(DepthBlock { x, weight, depths: first..last, sums });
    });
    for sums in partial.chunks_exact(out.len()) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += sum;
        }
    }
}

/// `sums += x[:, depths]·W[depths, :]`
struct DepthBlock<'a, E> {
    x: &'a [f32],
    weight: MatrixRows<'a, E>,
    depths: Range<usize>,
    sums: &'a mut [f32],
}

impl<E: Element> WithSimd for DepthBlock<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, weight, depths, sums } = self;
        let rows = sums.len() / weight.width;
        let widened = E::as_f32s(&[]).is_none();
        let strip = (if widened { WIDENED } else { SUMS } / rows).next_multiple_of(S::F32_LANES);
        let mut scratch = vec![0.0; if widened { STREAMS * strip } else { 0 }];
        for start in (0..weight.width).step_by(strip) {
            let columns = start..(start + strip).min(weight.width);
            let whole = depths.end - depths.len() % STREAMS;
            for first in (depths.start..whole).step_by(STREAMS) {
                add_rows::<S, E, STREAMS>(simd, x, weight, first, columns.clone(), (sums, &mut scratch));
            }
            for k in whole..depths.end {
                add_rows::<S, E, 1>(simd, x, weight, k, columns.clone(), (sums, &mut scratch));
            }
        }
    }
}

/// `sums[:, columns] += x[:, first..first + N]·W[first..first + N, columns]`
#[inline(always)]
fn add_rows<S: Simd, E: Element, const N: usize>(
    simd: S,
    x: &[f32],
    weight: MatrixRows<E>,
    first: usize,
    columns: Range<usize>,
    (sums, scratch): (&mut [f32], &mut [f32]),
) {
    let rows: [&[E]; N] = std::array::from_fn(|i| &weight.row(first + i)[columns.clone()]);
    let w = in_f32(rows, scratch);
    for (x, sums) in x.chunks_exact(weight.depth).zip(sums.chunks_exact_mut(weight.width)) {
        let factors = std::array::from_fn(|i| x[first + i]);
        add_scaled(simd, &mut sums[columns.clone()], factors, w);
    }
}

/// The rows as f32: borrowed in place, or widened into `scratch`.
#[inline(always)]
fn in_f32<'a, E: Element, const N: usize>(rows: [&'a [E]; N], scratch: &'a mut [f32]) -> [&'a [f32]; N] {
    let mut wide: [&[f32]; N] = [&[]; N];
    let mut lines = scratch.chunks_exact_mut(rows[0].len().max(1));
    // A loop, not a closure, so that it is compiled for its caller's instruction set.
    for (wide, row) in wide.iter_mut().zip(rows) {
        *wide = match (E::as_f32s(row), lines.next()) {
            (Some(row), _) => row,
            (None, Some(line)) => {
                E::widen(row, line);
                line
            }
            (None, None) => &[],
        };
    }
    wide
}

/// The number of table rows that a task multiplies.
const TABLE_ROWS: usize = 128;

/// `out[r][j] = x[r]·table[j]`, for rows of `depth` numbers in `x` and `table`.
pub(super) fn row_products<E: Element>(x: &[f32], table: &[E], depth: usize, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let width = table.len() / depth;
    let arch = isa::arch();
    // Computed as (width, rows) first, so that each task's results are contiguous.
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

struct RowBlock<'a, E> {
    x: &'a [f32],
    table: &'a [E],
    depth: usize,
    products: &'a mut [f32],
}

impl<E: Element> WithSimd for RowBlock<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, table, depth, products } = self;
        let rows = x.len() / depth;
        let mut scratch = vec![0.0; if E::as_f32s(&[]).is_none() { STREAMS * depth } else { 0 }];
        let groups = table.chunks(STREAMS * depth).zip(products.chunks_mut(STREAMS * rows));
        for (table, products) in groups {
            let last = table.len() / depth - 1;
            let lines: [&[E]; STREAMS] = std::array::from_fn(|i| &table[i.min(last) * depth..][..depth]);
            let w = in_f32(lines, &mut scratch);
            for (r, x) in x.chunks_exact(depth).enumerate() {
                let sums = dots(simd, x, w);
                for (product, sum) in products[r..].iter_mut().step_by(rows).zip(sums) {
                    *product = sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::numbers;

    #[test]
    fn a_weight_that_does_not_lie_in_rows_is_refused() -> Result<()> {
        let weight = numbers((3, 4), 1)?;
        let rows = |weight: &candle_core::Tensor| {
            let (storage, layout) = weight.storage_and_layout();
            MatrixRows::<f32>::new(CpuInput::new(&storage, layout)?).map(|rows| (rows.depth, rows.width))
        };
        assert_eq!(rows(&weight.narrow(1, 1, 2)?)?, (3, 2));
        for other in [weight.t()?, weight.narrow(0, 0, 0)?] {
            let error = rows(&other).expect_err("no rows").to_string();
            assert!(error.contains("not made of rows"), "{error}");
        }
        Ok(())
    }
}
