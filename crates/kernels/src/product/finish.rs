//! What follows a matrix product, a row of a strip at a time.

use super::halves::Halves;
use super::panels::{PANEL, Stored};
use crate::gelu;
use std::ops::Range;

/// `gelu(x·W + bias) + residual`, each part only if it is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a, E> {
    /// (N)
    pub(crate) bias: Option<&'a [f32]>,
    /// (rows, N)
    pub(crate) residual: Option<&'a [E]>,
    pub(crate) gelu: bool,
    /// Whether to add to what the result already holds.
    pub(crate) onto: bool,
}

impl<E> Finish<'_, E> {
    pub(crate) const NOTHING: Self = Self { bias: None, residual: None, gelu: false, onto: false };
}

impl<E: Stored> Finish<'_, E> {
    /// Writes `columns` of row `row` of the result, of which `sums` is the product, to `out`.
    ///
    /// # Safety
    /// `out` has room for `columns.len()` numbers, and holds them if `onto` is set.
    #[inline(always)]
    pub(super) unsafe fn run<S: Halves>(
        &self,
        simd: S,
        sums: &mut [f32],
        row: usize,
        (columns, width): (Range<usize>, usize),
        out: *mut E,
    ) {
        let lanes = S::F32_LANES;
        let count = columns.len();
        let residual = self.residual.map(|all| &all[row * width..][columns.clone()]);
        let bias = self.bias.map(|bias| &bias[columns]);
        let sums = &mut S::as_mut_simd_f32s(sums).0[..count.div_ceil(lanes)];
        for (sum, first) in sums.iter_mut().zip((0..).step_by(lanes)) {
            let part = first..count.min(first + lanes);
            let mut y = *sum;
            if let Some(bias) = bias {
                y = simd.add_f32s(y, read(simd, &bias[part.clone()]));
            }
            if self.gelu {
                y = gelu::forward(simd, y);
            }
            if let Some(residual) = residual {
                y = simd.add_f32s(y, read(simd, &residual[part.clone()]));
            }
            if self.onto {
                // SAFETY: the caller guarantees that `out` holds so many numbers.
                let held = unsafe { std::slice::from_raw_parts(out.add(first), part.len()) };
                y = simd.add_f32s(y, read(simd, held));
            }
            // SAFETY: the caller guarantees the room.
            unsafe { write(simd, y, out.add(first), part.len()) };
        }
    }
}

/// Up to a vector of numbers, in f32.
#[inline(always)]
fn read<S: Halves, E: Stored>(simd: S, numbers: &[E]) -> S::f32s {
    if let Some(numbers) = E::as_f32s(numbers) {
        let vector = S::as_simd_f32s(numbers).0.first().copied();
        return vector.unwrap_or_else(|| simd.partial_load_f32s(numbers));
    }
    let mut wide = [0.0; PANEL];
    E::widen(numbers, &mut wide[..numbers.len()]);
    S::as_simd_f32s(&wide).0[0]
}

/// Writes the first `count` numbers of a vector, rounded, to memory that may hold nothing yet.
///
/// # Safety
/// There is room for them at `out`.
#[inline(always)]
unsafe fn write<S: Halves, E: Stored>(simd: S, vector: S::f32s, out: *mut E, count: usize) {
    if count == S::F32_LANES {
        // SAFETY: the caller guarantees the room.
        return unsafe { E::write(simd, vector, out) };
    }
    let mut wide = [0.0; PANEL];
    simd.partial_store_f32s(&mut wide[..S::F32_LANES], vector);
    let mut rounded = [E::from_f32(0.0); PANEL];
    E::narrow(&wide[..count], &mut rounded[..count]);
    // SAFETY: the caller guarantees the room.
    unsafe { rounded.as_ptr().copy_to_nonoverlapping(out, count) };
}
