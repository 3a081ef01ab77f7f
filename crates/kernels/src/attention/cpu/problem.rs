//! The tensors and settings of a forward or backward pass, the same for all its queries.

use super::heads::Heads;
use crate::attention::drop_weights::WeightDropout;
use crate::attention::mask::CpuMask;

/// q (B, H, T, D) against k and v (B, H, S, D), which may be of another dtype.
pub(super) struct Problem<'a, E, K = E> {
    pub(super) q: Heads<'a, E>,
    pub(super) k: Heads<'a, K>,
    pub(super) v: Heads<'a, K>,
    pub(super) scale: f64,
    pub(super) mask: &'a CpuMask,
    pub(super) dropout: Option<WeightDropout>,
}

impl<E, K> Problem<'_, E, K> {
    /// All pairs (b, h).
    pub(super) fn heads(&self) -> Vec<(usize, usize)> {
        let [b, h, ..] = self.q.dims;
        (0..b).flat_map(|b| (0..h).map(move |h| (b, h))).collect()
    }

    /// The factor that turns q·k into the exponent of a power of 2.
    #[allow(clippy::cast_possible_truncation)] // the scale of f32 scores
    pub(super) fn base_2_scale(&self) -> f32 {
        (self.scale * std::f64::consts::LOG2_E) as f32
    }

    /// Dropout on the weights of query `i` of a head, from key `first` on.
    #[inline(always)]
    pub(super) fn drop_weights(&self, (b, h): (usize, usize), i: usize, first: usize, weights: &mut [f32]) {
        if let Some(dropout) = &self.dropout {
            dropout.scale_row((b, h, i), first, weights);
        }
    }
}
