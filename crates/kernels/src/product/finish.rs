//! What follows a matrix product, a row of a strip at a time.

use super::panels::{PANEL, STRIP};
use crate::element::Element;
use crate::gelu;
use pulp::Simd;
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

impl<E: Element> Finish<'_, E> {
    /// Writes `columns` of row `row` of the result, of which `sums` is the product, to `out`.
    ///
    /// # Safety
    /// `out` has room for `columns.len()` numbers, and holds them if `onto` is set.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(
        &self,
        simd: S,
        sums: &mut [f32],
        row: usize,
        (columns, width): (Range<usize>, usize),
        out: *mut E,
    ) {
        let count = columns.len();
        let mut held = [0.0; STRIP * PANEL];
        let mut residual = [0.0; STRIP * PANEL];
        if self.onto {
            // SAFETY: the caller guarantees that `out` holds so many numbers.
            E::widen(unsafe { std::slice::from_raw_parts(out, count) }, &mut held[..count]);
        }
        if let Some(all) = self.residual {
            E::widen(&all[row * width..][columns.clone()], &mut residual[..count]);
        }
        let bias = self.bias.map(|bias| &bias[columns]);
        // One pass over whole vectors: a vector that was written in halves is slow to read. Beyond `count`, the arrays
        // hold numbers that nobody reads.
        let vectors = S::as_mut_simd_f32s(sums).0.iter_mut();
        let added = S::as_simd_f32s(&held).0.iter().zip(S::as_simd_f32s(&residual).0);
        for (i, (sum, (held, residual))) in vectors.zip(added).enumerate().take(count.div_ceil(S::F32_LANES))
        {
            let mut y = *sum;
            if let Some(bias) = bias {
                let rest = &bias[i * S::F32_LANES..];
                y = simd.add_f32s(y, simd.partial_load_f32s(&rest[..rest.len().min(S::F32_LANES)]));
            }
            if self.gelu {
                y = gelu::forward(simd, y);
            }
            if self.residual.is_some() {
                y = simd.add_f32s(y, *residual);
            }
            if self.onto {
                y = simd.add_f32s(y, *held);
            }
            *sum = y;
        }
        // SAFETY: the caller guarantees the room.
        unsafe { store(&sums[..count], out) };
    }
}

/// Writes `numbers`, rounded, to memory that may hold nothing yet.
///
/// # Safety
/// There is room for them at `out`.
#[inline(always)]
unsafe fn store<E: Element>(numbers: &[f32], out: *mut E) {
    let mut part = [E::from_f32(0.0); STRIP * PANEL];
    let part = &mut part[..numbers.len()];
    E::narrow(numbers, part);
    // SAFETY: the caller guarantees the room.
    unsafe { part.as_ptr().copy_to_nonoverlapping(out, part.len()) };
}
