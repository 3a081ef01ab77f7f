//! The transpose of a block of numbers, of f32 by vectors.

use super::lanes::Lanes;
use super::numbers::{PANEL, PanelNumber};

/// The number of rows packed at a time: reading down the columns of a transposed matrix then uses whole cache lines.
pub(super) const BLOCK: usize = 16;

/// A block of a matrix: [`BLOCK`] rows of [`PANEL`] numbers.
pub(super) type Square<E> = [[E; PANEL]; BLOCK];

const _: () = assert!(BLOCK == PANEL, "a block is a square");

/// The block whose number (k, c) is `block[c][k]`.
#[inline(always)]
pub(super) fn transpose<S: Lanes, E: PanelNumber>(simd: S, block: &Square<E>) -> Square<E> {
    let Some(numbers) = E::as_f32s(block.as_flattened()) else {
        return std::array::from_fn(|k| std::array::from_fn(|c| block[c][k]));
    };
    let transposed = transpose_f32s(simd, numbers.as_chunks().0);
    let mut out = [[E::from_f32(0.0); PANEL]; BLOCK];
    E::narrow(transposed.as_flattened(), out.as_flattened_mut());
    out
}

/// The transpose of a block, in squares of a vector's size. Each stage zips the upper rows with the lower ones, which doubles the
/// distance of two numbers that began in neighboring lanes.
#[inline(always)]
fn transpose_f32s<S: Lanes>(simd: S, block: &[[f32; PANEL]]) -> Square<f32> {
    let lanes = S::F32_LANES;
    let mut out = [[0.0; PANEL]; BLOCK];
    for top in (0..BLOCK).step_by(lanes) {
        for left in (0..PANEL).step_by(lanes) {
            let mut rows = [simd.splat_f32s(0.0); BLOCK];
            for (row, numbers) in rows.iter_mut().zip(&block[top..top + lanes]) {
                *row = simd.partial_load_f32s(&numbers[left..left + lanes]);
            }
            for _ in 0..lanes.ilog2() {
                let before = rows;
                for i in 0..lanes / 2 {
                    (rows[2 * i], rows[2 * i + 1]) = simd.zip(before[i], before[i + lanes / 2]);
                }
            }
            for (row, numbers) in rows.iter().zip(&mut out[left..left + lanes]) {
                simd.partial_store_f32s(&mut numbers[top..top + lanes], *row);
            }
        }
    }
    out
}
