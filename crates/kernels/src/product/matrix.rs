//! An f32 matrix in a slice, whole or transposed.

use super::rows::{STEP, Source};

/// A matrix in a slice: its rows are `row` numbers apart, and the numbers within a row `column` apart.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `width` numbers, one after the other.
    pub(crate) fn rows(data: &'a [f32], width: usize) -> Self {
        Self { data, row: width, column: 1 }
    }

    /// The transpose.
    pub(crate) fn t(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    pub(super) fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = |n: usize, stride: usize| (n - 1).checked_mul(stride);
        let end = || last(rows, self.row)?.checked_add(last(columns, self.column)?);
        rows == 0 || columns == 0 || end().is_some_and(|end| end < self.data.len())
    }
}

impl Source for Matrix<'_> {
    #[inline(always)]
    fn copy(&self, row: usize, first: usize, out: &mut [f32; STEP]) {
        let start = row * self.row + first * self.column;
        if let (1, Some(from)) = (self.column, self.data[start..].first_chunk::<STEP>()) {
            *out = *from;
        } else {
            self.copy_rest(row, first, out);
        }
    }

    fn copy_rest(&self, row: usize, first: usize, out: &mut [f32]) {
        let start = row * self.row + first * self.column;
        for (i, out) in out.iter_mut().enumerate() {
            *out = self.data[start + i * self.column];
        }
    }
}
