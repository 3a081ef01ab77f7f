//! The shared output of a forward pass: each task writes its own rows.

use super::log_sum::LogSum;
use super::summary::RowSummary;
use crate::element::Element;

/// The context (B, T, H, Dv), the log-sums (B, H, T) and, if wanted, the summaries (B, H, T). Several threads
/// write to it, each its own rows.
pub(super) struct Output<E> {
    pub(super) context: *mut E,
    pub(super) log_sums: *mut LogSum,
    pub(super) summaries: Option<*mut RowSummary>,
    /// B, H, T and Dv.
    pub(super) dims: [usize; 4],
}

// SAFETY: `write` and `write_summary` are the only accesses, and their callers write each row once.
unsafe impl<E: Send> Sync for Output<E> {}

impl<E: Element> Output<E> {
    /// Writes `row · factor` and the row's log-sum.
    ///
    /// # Safety
    /// No two calls name the same row.
    pub(super) unsafe fn write(
        &self,
        (b, h, i): (usize, usize, usize),
        row: &[f32],
        factor: f32,
        log_sum: LogSum,
    ) {
        let [batch, heads, t, d] = self.dims;
        assert!(b < batch && h < heads && i < t);
        // SAFETY: (b, h, i) is inside the log-sums, and this row is the caller's own.
        unsafe { self.log_sums.add((b * heads + h) * t + i).write(log_sum) };
        let start = ((b * t + i) * heads + h) * d;
        for (c, x) in row[..d].iter().enumerate() {
            // SAFETY: (b, i, h, c) is inside the output, and this row is the caller's own.
            unsafe { self.context.add(start + c).write(E::from_f32(x * factor)) };
        }
    }

    /// Writes the row's summary, if summaries are wanted.
    ///
    /// # Safety
    /// No two calls name the same row.
    pub(super) unsafe fn write_summary(
        &self,
        (b, h, i): (usize, usize, usize),
        find: impl FnOnce() -> RowSummary,
    ) {
        let [batch, heads, t, _] = self.dims;
        assert!(b < batch && h < heads && i < t);
        if let Some(summaries) = self.summaries {
            // SAFETY: (b, h, i) is inside the summaries, and this row is the caller's own.
            unsafe { summaries.add((b * heads + h) * t + i).write(find()) };
        }
    }
}
