//! The tensors and settings of a forward or backward pass, the same for all its queries.

use super::heads::Heads;
use crate::attention::drop_weights::WeightDropout;
use crate::attention::scores::{Base, ScoreRules};

/// q (B, H, T, D) against k (B, key heads, S, D) and v (B, key heads, S, Dv), which may be of another dtype.
pub(super) struct Problem<'a, E, K = E> {
    pub(super) q: Heads<'a, E>,
    pub(super) k: Heads<'a, K>,
    pub(super) v: Heads<'a, K>,
    pub(super) rules: &'a ScoreRules,
    pub(super) dropout: Option<WeightDropout>,
}

impl<E, K> Problem<'_, E, K> {
    /// All pairs (b, h) of H heads.
    pub(super) fn heads(&self) -> Vec<(usize, usize)> {
        let [b, h, ..] = self.q.dims;
        (0..b).flat_map(|b| (0..h).map(move |h| (b, h))).collect()
    }

    /// How many heads share a head of keys and values.
    pub(super) fn group(&self) -> usize {
        self.q.dims[1] / self.k.dims[1]
    }

    /// The head of keys and values that a head reads.
    pub(super) fn key_head(&self, (b, h): (usize, usize)) -> (usize, usize) {
        (b, h / self.group())
    }

    /// The sizes of the context: B, H, T and Dv.
    pub(super) fn context_dims(&self) -> [usize; 4] {
        let [b, h, t, _] = self.q.dims;
        [b, h, t, self.v.dims[3]]
    }

    /// The factor that turns q·k into what the rules make the exponent of a power of 2.
    pub(super) fn query_factor(&self) -> f32 {
        self.rules.query_factor(Base::Two)
    }

    /// Dropout on the weights of query `i` of a head, from key `first` on.
    #[inline(always)]
    pub(super) fn drop_weights(&self, (b, h): (usize, usize), i: usize, first: usize, weights: &mut [f32]) {
        if let Some(dropout) = &self.dropout {
            dropout.scale_row((b, h, i), first, weights);
        }
    }
}
