//! Factors of f32 products, rounded to bf16 for training: AMX and AVX512-BF16 multiply bf16 at several
//! times the speed of f32. Products of two bf16 numbers are exact in f32, and so are not rounded again; sums are in f32.

use super::lanes::{Kernel, Lanes, dispatch};
use super::numbers::PANEL;
use super::panels::{Panels, ReadBlocks, Strided};
use super::rows::Matrix;
use super::transpose::{BLOCK, Square, transpose};
use crate::cpu::element::Element;
use crate::cpu::isa;
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

/// The depth of factors that `held` numbers of a row and zeros fill: AMX's tiles take 32 numbers at a time.
pub(super) fn depth(held: usize) -> usize {
    held.next_multiple_of(32)
}

/// The rows of a matrix, one after the other, each with zeros up to `depth`.
pub(super) fn rows(matrix: Matrix, depth: usize) -> Vec<bf16> {
    let mut out = vec![bf16::ZERO; matrix.shape[0] * depth];
    let arch = isa::arch();
    out.par_chunks_mut(BLOCK * depth)
        .enumerate()
        .for_each(|(block, out)| dispatch(arch, RoundRows { matrix, first: block * BLOCK, depth, out }));
    out
}

/// Rounds the rows from `first` on, at most [`BLOCK`].
struct RoundRows<'a> {
    matrix: Matrix<'a>,
    first: usize,
    depth: usize,
    out: &'a mut [bf16],
}

impl Kernel for RoundRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, simd: S) {
        let Self { matrix, first, depth, out } = self;
        let Matrix { data, shape: [_, columns], strides: [row, column] } = matrix;
        if column == 1 {
            for (r, out) in (first..).zip(out.chunks_exact_mut(depth)) {
                bf16::narrow(&data[r * row..][..columns], &mut out[..columns]);
            }
            return;
        }
        let rows = out.len() / depth;
        let source = Strided { data, row: column, column: row };
        for start in (0..columns).step_by(BLOCK) {
            let count = BLOCK.min(columns - start);
            let block = transpose(simd, &source.read(simd, (start, count), first..first + rows));
            for (block, out) in block.iter().zip(out.chunks_exact_mut(depth)) {
                bf16::narrow(&block[..count], &mut out[start..start + count]);
            }
        }
    }
}

/// A right factor (K, N) in panels, with zeros up to `depth` rows.
pub(super) fn panels(matrix: Matrix, depth: usize) -> Panels<bf16> {
    let [held, width] = matrix.shape;
    let [row, column] = matrix.strides;
    Panels::from_blocks(
        (depth, width),
        &Rounded { held, numbers: Strided { data: matrix.data, row, column } },
    )
}

/// A matrix of `held` rows, rounded, with zeros for further rows.
struct Rounded<'a> {
    held: usize,
    numbers: Strided<'a, f32>,
}

impl ReadBlocks<bf16> for Rounded<'_> {
    #[inline(always)]
    fn read<S: Lanes>(&self, simd: S, (first, rows): (usize, usize), columns: Range<usize>) -> Square<bf16> {
        let rows = rows.min(self.held.saturating_sub(first));
        let block = self.numbers.read(simd, (first, rows), columns);
        let mut rounded = [[bf16::ZERO; PANEL]; BLOCK];
        bf16::narrow(block.as_flattened(), rounded.as_flattened_mut());
        rounded
    }
}
