//! What follows a matrix product, a row of a strip at a time.

use super::halves::Halves;
use super::lanes::{Kernel, Lanes, dispatch};
use super::panels::{PANEL, Stored};
use crate::gelu;
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

/// The result of a product whose sums were computed elsewhere, of which tasks finish a part each.
pub(crate) struct Finishing<'a> {
    finish: Finish<'a, f32>,
    width: usize,
    out: *mut f32,
}

// SAFETY: tasks write through `out` only, and the callers of `part` guarantee that their parts do not overlap.
unsafe impl Sync for Finishing<'_> {}

impl<'a> Finishing<'a> {
    /// `out` is (rows, width).
    pub(crate) fn new(finish: Finish<'a, f32>, (rows, width): (usize, usize), out: *mut f32) -> Self {
        assert_eq!(finish.bias.map_or(width, <[f32]>::len), width);
        assert_eq!(finish.residual.map_or(rows * width, <[f32]>::len), rows * width);
        Self { finish, width, out }
    }

    /// Writes some columns of some rows of the result from their sums, whose rows are `stride` apart, a multiple of
    /// [`PANEL`].
    ///
    /// # Safety
    /// The result has the rows and columns, and nobody else reads or writes them meanwhile.
    pub(crate) unsafe fn part(
        &self,
        isa: Isa,
        (rows, columns): (Range<usize>, Range<usize>),
        sums: &mut [f32],
        stride: usize,
    ) {
        assert!(stride.is_multiple_of(PANEL) && columns.len() <= stride);
        dispatch(isa.arch().unwrap_or(Arch::Scalar), Part { all: self, rows, columns, sums, stride });
    }
}

struct Part<'a> {
    all: &'a Finishing<'a>,
    rows: Range<usize>,
    columns: Range<usize>,
    sums: &'a mut [f32],
    stride: usize,
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(self, simd: S) {
        let Self { all: Finishing { finish, width, out }, rows, columns, sums, stride } = self;
        for (row, sums) in rows.zip(sums.chunks_exact_mut(stride)) {
            // SAFETY: as the caller of `Finishing::part` guarantees.
            unsafe {
                let out = out.add(row * width + columns.start);
                finish.run(simd, sums, row, (columns.clone(), *width), out);
            }
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
