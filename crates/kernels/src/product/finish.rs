//! What follows a matrix product, a row of a strip at a time.

use super::lanes::{Kernel, Lanes, dispatch};
use super::panels::{Halves, PANEL, Stored};
use crate::epilogue::gelu_forward;
use crate::isa::Isa;
use pulp::Arch;
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

/// The result of a product. Each task writes its own part.
pub(crate) struct Destination<'a, E> {
    finish: Finish<'a, E>,
    width: usize,
    out: *mut E,
}

// SAFETY: tasks write through `out` only, and the callers of `write` guarantee that their parts do not overlap.
unsafe impl<E: Send + Sync> Sync for Destination<'_, E> {}

impl<'a, E: Stored> Destination<'a, E> {
    /// `out` is (rows, width).
    pub(crate) fn new(finish: Finish<'a, E>, rows: usize, width: usize, out: *mut E) -> Self {
        // With `is_none_or`, the compiler may compare the length of a bias that is not there, which valgrind reports.
        assert_eq!(finish.bias.map_or(width, <[f32]>::len), width);
        assert_eq!(finish.residual.map_or(rows * width, <[E]>::len), rows * width);
        Self { finish, width, out }
    }

    /// Writes some columns of some rows of the result from their sums, whose rows are `stride` apart, a multiple of
    /// [`PANEL`].
    ///
    /// # Safety
    /// The result has room for the rows and columns, and holds numbers there if `onto` is set; nobody else reads or writes
    /// them meanwhile.
    #[inline(always)]
    pub(super) unsafe fn write<S: Lanes>(
        &self,
        simd: S,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: &mut [f32],
        stride: usize,
    ) {
        for (row, sums) in rows.zip(sums.chunks_exact_mut(stride)) {
            // SAFETY: passed on.
            unsafe { self.write_row(simd, row, columns.clone(), sums) };
        }
    }

    /// [`write`](Self::write), compiled for an instruction set.
    ///
    /// # Safety
    /// As for `write`.
    pub(crate) unsafe fn write_on(
        &self,
        isa: Isa,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: &mut [f32],
        stride: usize,
    ) {
        assert!(stride.is_multiple_of(PANEL) && columns.len() <= stride);
        dispatch(isa.arch().unwrap_or(Arch::Scalar), Part { result: self, rows, columns, sums, stride });
    }

    /// # Safety
    /// As for [`write`](Self::write).
    #[inline(always)]
    unsafe fn write_row<S: Halves>(&self, simd: S, row: usize, columns: Range<usize>, sums: &mut [f32]) {
        let Self { finish: Finish { bias, residual, gelu, onto }, width, out } = *self;
        // SAFETY: the caller guarantees the row and its columns.
        let out = unsafe { out.add(row * width + columns.start) };
        let lanes = S::F32_LANES;
        let count = columns.len();
        let residual = residual.map(|all| &all[row * width..][columns.clone()]);
        let bias = bias.map(|bias| &bias[columns]);
        let sums = &mut S::as_mut_simd_f32s(sums).0[..count.div_ceil(lanes)];
        for (sum, first) in sums.iter_mut().zip((0..).step_by(lanes)) {
            let part = first..count.min(first + lanes);
            let mut y = *sum;
            if let Some(bias) = bias {
                y = simd.add_f32s(y, read(simd, &bias[part.clone()]));
            }
            if gelu {
                y = gelu_forward(simd, y);
            }
            if let Some(residual) = residual {
                y = simd.add_f32s(y, read(simd, &residual[part.clone()]));
            }
            if onto {
                // SAFETY: the caller guarantees that `out` holds these numbers.
                let held = unsafe { std::slice::from_raw_parts(out.add(first), part.len()) };
                y = simd.add_f32s(y, read(simd, held));
            }
            // SAFETY: the caller guarantees the room.
            unsafe { write(simd, y, out.add(first), part.len()) };
        }
    }
}

struct Part<'a, E> {
    result: &'a Destination<'a, E>,
    rows: Range<usize>,
    columns: Range<usize>,
    sums: &'a mut [f32],
    stride: usize,
}

impl<E: Stored> Kernel for Part<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, simd: S) {
        let Self { result, rows, columns, sums, stride } = self;
        // SAFETY: as the caller of `write_on` guarantees.
        unsafe { result.write(simd, rows, columns, sums, stride) };
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
