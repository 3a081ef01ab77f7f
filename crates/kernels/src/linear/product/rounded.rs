//! Products of f32 matrices whose numbers are rounded to bf16 first, for training: AMX and AVX512-BF16 multiply bf16 at several
//! times the speed of f32. Products of two bf16 numbers are exact in f32, and so are not rounded again; sums are in f32.

use super::finish::Finish;
use super::multiply::{multiply, product};
use super::numbers::PANEL;
use super::panels::{Panels, read_block};
use super::rows::{Matrix, Rows};
use super::transpose::BLOCK;
use crate::cpu::dispatch::Factors;
use crate::cpu::element::Element;
use crate::cpu::isa::{self, Isa};
use half::bf16;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

/// AMX's tiles take this many numbers of a row at a time. Zeros fill the last ones.
const STEP: usize = 32;

impl Factors {
    /// `out += a·b`, or `out = a·b` if `onto` is false; `out` is row-major.
    pub(crate) fn multiply(self, out: &mut [f32], onto: bool, a: Matrix, b: Matrix) {
        match self {
            Self::AsStored => multiply(out, onto, a, b),
            Self::Bf16 => multiply_rounded(Isa::current(), out, onto, a, b),
        }
    }
}

/// [`multiply`] with both factors rounded to bf16, on an instruction set.
pub(super) fn multiply_rounded(isa: Isa, out: &mut [f32], onto: bool, a: Matrix, b: Matrix) {
    let [m, k] = a.shape;
    let [depth, n] = b.shape;
    assert!(k == depth && m.checked_mul(n) == Some(out.len()) && a.is_whole() && b.is_whole());
    if k == 0 {
        if !onto {
            out.fill(0.0);
        }
        return;
    }
    let depth = k.next_multiple_of(STEP);
    let rows = rounded_rows(a, depth);
    let panels = rounded_panels(b, depth);
    let finish = Finish { onto, ..Finish::NOTHING };
    // SAFETY: `out` holds the m·n numbers of the result.
    unsafe { product(isa, &Rows { data: &rows, depth }, m, &panels, 0..n, finish, out.as_mut_ptr()) }
}

/// The rows of a matrix, one after the other, each with zeros up to `depth`.
fn rounded_rows(matrix: Matrix, depth: usize) -> Vec<bf16> {
    let mut out = vec![bf16::ZERO; matrix.shape[0] * depth];
    let arch = isa::arch();
    out.par_chunks_mut(BLOCK * depth)
        .enumerate()
        .for_each(|(block, out)| arch.dispatch(RoundRows { matrix, first: block * BLOCK, depth, out }));
    out
}

/// Rounds the rows from `first` on, at most [`BLOCK`].
struct RoundRows<'a> {
    matrix: Matrix<'a>,
    first: usize,
    depth: usize,
    out: &'a mut [bf16],
}

impl WithSimd for RoundRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { matrix: Matrix { data, shape: [_, columns], strides: [row, column] }, first, depth, out } =
            self;
        if column == 1 {
            for (r, out) in (first..).zip(out.chunks_exact_mut(depth)) {
                bf16::narrow(&data[r * row..][..columns], &mut out[..columns]);
            }
            return;
        }
        let rows = out.len() / depth;
        for start in (0..columns).step_by(PANEL) {
            let count = PANEL.min(columns - start);
            let mut block = [[0.0; PANEL]; BLOCK];
            for k in 0..count {
                let line = &data[first * row + (start + k) * column..];
                for (r, out) in block[..rows].iter_mut().enumerate() {
                    out[k] = line[r * row];
                }
            }
            for (block, out) in block.iter().zip(out.chunks_exact_mut(depth)) {
                bf16::narrow(&block[..count], &mut out[start..start + count]);
            }
        }
    }
}

/// A right factor (K, N) in panels, with zeros up to `depth` rows.
fn rounded_panels(matrix: Matrix, depth: usize) -> Panels<bf16> {
    let [held, width] = matrix.shape;
    let arch = isa::arch();
    Panels::from_blocks((depth, width), |(first, rows), columns| {
        let rows = rows.min(held.saturating_sub(first));
        let block = read_block(arch, matrix.data, (first, rows), columns, matrix.strides.into());
        let mut rounded = [[bf16::ZERO; PANEL]; BLOCK];
        bf16::narrow(block.as_flattened(), rounded.as_flattened_mut());
        rounded
    })
}
