//! Dropout on attention weights, row by row.

use super::heads::HeadLayout;
use crate::dropout::Dropout;
#[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
use crate::dropout::DropoutWords;

/// Which weights to drop: row `(b·H + h)·T + i` of the mask belongs to query i of head h of batch row b, with H and h
/// counted over the whole layer. Heads therefore drop the same weights whether they are computed separately or
/// together.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightDropout {
    dropout: Dropout,
    heads: HeadLayout,
    /// T
    queries: usize,
    /// Rows of the mask before this sequence's.
    before: usize,
}

impl WeightDropout {
    pub(super) fn new(dropout: Dropout, heads: HeadLayout, queries: usize) -> Self {
        Self { dropout, heads, queries, before: 0 }
    }

    /// The same for a sequence with so many rows before it.
    pub(super) fn after(self, before: usize) -> Self {
        Self { before, ..self }
    }

    /// The factor on the weights that are kept.
    pub(super) fn kept(&self) -> f64 {
        1.0 / (1.0 - self.dropout.rate())
    }

    /// What decides which weights stay, as a kernel on another device gets it.
    #[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
    pub(super) fn words(&self) -> DropoutWords {
        self.dropout.words()
    }

    /// The heads that are here, among the layer's.
    #[cfg(any(feature = "cuda", all(test, target_os = "linux")))]
    pub(super) fn heads(&self) -> HeadLayout {
        self.heads
    }

    /// Multiplies the weights of query `i` of a head, from key `first` on, by their factors.
    #[inline(always)]
    pub(super) fn scale_row(&self, (b, h, i): (usize, usize, usize), first: usize, weights: &mut [f32]) {
        let head = b * self.heads.total + self.heads.first + h;
        self.dropout.scale_row(self.before + head * self.queries + i, first, weights);
    }
}
