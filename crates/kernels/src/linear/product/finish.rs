//! The epilogue of a matrix product: a few rows at a time, a vector of columns down those rows.

use super::lanes::{Kernel, Lanes, dispatch};
use super::numbers::{Halves, PANEL, PanelNumber};
use crate::cpu::isa::Isa;
use crate::pointwise::activation::Activation;
use crate::pointwise::epilogue::ResidualOrGate;
use pulp::{Arch, Simd};
use std::ops::Range;

/// `activation(x·W + bias)`, then a join. Every part is optional.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a, E> {
    /// (N)
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) activation: Option<Activation>,
    /// (rows, N)
    pub(crate) join: Option<ResidualOrGate<&'a [E]>>,
    /// Whether to add to the numbers that the result already holds.
    pub(crate) onto: bool,
}

impl<E> Finish<'_, E> {
    pub(crate) const NOTHING: Self = Self { bias: None, activation: None, join: None, onto: false };
}

/// The rows that a vector of columns goes down: their lines stay in the first-level cache for the next vector.
const ROWS: usize = 16;

/// The result of a product. Each task writes its own part.
pub(crate) struct Destination<'a, E> {
    finish: Finish<'a, E>,
    width: usize,
    out: *mut E,
}

// SAFETY: tasks reach `out` only through parts, and the callers of `part` guarantee that these do not overlap.
unsafe impl<E: Send + Sync> Sync for Destination<'_, E> {}

impl<'a, E: PanelNumber> Destination<'a, E> {
    /// `out` is (rows, width).
    pub(crate) fn new(finish: Finish<'a, E>, rows: usize, width: usize, out: *mut E) -> Self {
        // With `is_none_or`, the compiler may compare the length of a bias that is not there, which valgrind reports.
        assert_eq!(finish.bias.map_or(width, <[f32]>::len), width);
        assert_eq!(finish.join.map_or(rows * width, |join| join.get().len()), rows * width);
        Self { finish, width, out }
    }

    /// Some of its rows and columns.
    ///
    /// # Safety
    /// The result has room for them, and holds numbers there if `onto` is set; nobody else reads or writes them while the part
    /// exists.
    pub(crate) unsafe fn part(&'a self, rows: Range<usize>, columns: Range<usize>) -> ResultPart<'a, E> {
        ResultPart { result: self, rows, columns }
    }
}

/// A part of a result, for one task.
pub(crate) struct ResultPart<'a, E> {
    result: &'a Destination<'a, E>,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<E: PanelNumber> ResultPart<'_, E> {
    /// Writes the rows from number `first` of the part on, one for each `stride` sums, a multiple of [`PANEL`].
    #[inline(always)]
    pub(super) fn write<S: Lanes>(&mut self, simd: S, first: usize, sums: &[f32], stride: usize) {
        // Loops of their own for no activation and for GPT-2's, so that nothing is chosen in them.
        match self.result.finish.activation {
            None => self.write_with(simd, first, sums, stride, Unchanged),
            Some(Activation::GeluTanh) => self.write_with(simd, first, sums, stride, GeluTanh),
            Some(other) => self.write_with(simd, first, sums, stride, other),
        }
    }

    /// [`write`](Self::write) with its activation.
    #[inline(always)]
    fn write_with<S: Lanes>(
        &mut self,
        simd: S,
        first: usize,
        sums: &[f32],
        stride: usize,
        activation: impl Apply,
    ) {
        let Destination { finish: Finish { bias, join, onto, .. }, width, out } = *self.result;
        let rows = sums.len() / stride;
        let columns = self.columns.len();
        assert!(stride.is_multiple_of(PANEL) && columns <= stride && first + rows <= self.rows.len());
        for (group, sums) in sums.chunks(ROWS * stride).enumerate() {
            let start = (self.rows.start + first + group * ROWS) * width + self.columns.start;
            for column in (0..columns).step_by(S::F32_LANES) {
                let count = S::F32_LANES.min(columns - column);
                let bias = bias.map(|bias| read(simd, &bias[self.columns.start + column..][..count]));
                for (row, sums) in sums.chunks_exact(stride).enumerate() {
                    let at = start + row * width + column;
                    let mut y = read(simd, &sums[column..column + S::F32_LANES]);
                    if let Some(bias) = bias {
                        y = simd.add_f32s(y, bias);
                    }
                    y = activation.apply(simd, y);
                    y = match join {
                        None => y,
                        Some(ResidualOrGate::Add(residual)) => {
                            simd.add_f32s(y, read(simd, &residual[at..at + count]))
                        }
                        Some(ResidualOrGate::Gate(activation, gate)) => {
                            simd.mul_f32s(y, activation.apply(simd, read(simd, &gate[at..at + count])))
                        }
                    };
                    // SAFETY: the part is this task's own. It has these rows and columns, and numbers if `onto` is set.
                    unsafe {
                        let out = out.add(at);
                        if onto {
                            y = simd.add_f32s(y, read(simd, std::slice::from_raw_parts(out, count)));
                        }
                        write(simd, y, out, count);
                    }
                }
            }
        }
    }

    /// Writes all rows, compiled for an instruction set.
    pub(crate) fn write_on(self, isa: Isa, sums: &[f32], stride: usize) {
        dispatch(isa.arch().unwrap_or(Arch::Scalar), WriteAll { part: self, sums, stride });
    }
}

/// A function of each number. A closure would not be compiled for the instruction set.
trait Apply: Copy {
    fn apply<S: Simd>(self, simd: S, y: S::f32s) -> S::f32s;
}

#[derive(Clone, Copy)]
struct Unchanged;

#[derive(Clone, Copy)]
struct GeluTanh;

impl Apply for Unchanged {
    #[inline(always)]
    fn apply<S: Simd>(self, _: S, y: S::f32s) -> S::f32s {
        y
    }
}

impl Apply for GeluTanh {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, y: S::f32s) -> S::f32s {
        Activation::GeluTanh.apply(simd, y)
    }
}

impl Apply for Activation {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, y: S::f32s) -> S::f32s {
        Activation::apply(self, simd, y)
    }
}

struct WriteAll<'a, E> {
    part: ResultPart<'a, E>,
    sums: &'a [f32],
    stride: usize,
}

impl<E: PanelNumber> Kernel for WriteAll<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with<S: Lanes>(mut self, simd: S) {
        self.part.write(simd, 0, self.sums, self.stride);
    }
}

/// Up to a vector of numbers, in f32.
#[inline(always)]
fn read<S: Halves, E: PanelNumber>(simd: S, numbers: &[E]) -> S::f32s {
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
unsafe fn write<S: Halves, E: PanelNumber>(simd: S, vector: S::f32s, out: *mut E, count: usize) {
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
