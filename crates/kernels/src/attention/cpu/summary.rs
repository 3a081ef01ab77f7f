//! The numbers of a [`Summary`](crate::attention::Summary), gathered while the weights are computed.
//!
//! With scores s in base 2, a reference m, `p = 2^(s - m)` and `Z = Σ p`, a weight is `p / Z`, and
//!
//! ```text
//! entropy = (Σ p·ln Z - ln 2 · Σ p·(s - m)) / Z        distance = Σ p·|position - key| / Z
//! ```
//!
//! With a sink, Z is more than `Σ p`.
//!
//! When m rises to m', both sums are rescaled like the context: `p` is multiplied by `2^(m - m')`, and each
//! exponent falls by `m' - m`.

use super::pass_inputs::LogSum;
use crate::attention::row_summary::{RowSummary, key_position};
use crate::attention::scores::lanes;
use pulp::Simd;
use std::f32::consts::LN_2;

/// A tile's running numbers for a query, after some of its keys.
#[derive(Clone, Copy)]
pub(super) struct RunningSummary {
    /// `Σ p·(s - m)`
    exponents: f32,
    /// `Σ p·|position - key|`
    distances: f32,
    /// The scores of single keys; -inf if the key is hidden or has not come yet.
    own: f32,
    previous: f32,
    first: f32,
    best: f32,
    best_key: usize,
}

/// The number of scores searched at a time.
const GROUP: usize = 16;

impl RunningSummary {
    pub(super) const NOTHING: Self = Self {
        exponents: 0.0,
        distances: 0.0,
        own: f32::NEG_INFINITY,
        previous: f32::NEG_INFINITY,
        first: f32::NEG_INFINITY,
        best: f32::NEG_INFINITY,
        best_key: 0,
    };

    /// Records the scores of the single keys, for a query at `position`. `scores` belong to the keys from `start` on, and
    /// `highest` is the highest of them; a hidden key has -inf.
    #[inline(always)]
    #[allow(clippy::float_cmp)] // a maximum equals one of its inputs
    pub(super) fn look(
        &mut self,
        scores: &[f32],
        start: usize,
        position: isize,
        first_key: usize,
        highest: f32,
    ) {
        if highest > self.best {
            // Compares a whole group without branching.
            let holders = |group: &[f32]| group.iter().map(|x| u32::from(*x == highest)).sum::<u32>();
            let before = scores.chunks(GROUP).take_while(|group| holders(group) == 0).count() * GROUP;
            let within = scores[before..].iter().take_while(|x| **x != highest).count();
            (self.best, self.best_key) = (highest, start + before + within);
        }
        let at = |key: usize, known: f32| {
            key.checked_sub(start).and_then(|j| scores.get(j)).copied().unwrap_or(known)
        };
        self.first = at(first_key, self.first);
        if let Ok(own) = usize::try_from(position) {
            self.own = at(own, self.own);
        }
        if let Ok(previous) = usize::try_from(position - 1) {
            self.previous = at(previous, self.previous);
        }
    }

    /// Adds `more`, whose reference is higher by `rise` than the previous one. `sum` is the sum of the
    /// weights under the previous reference.
    #[inline(always)]
    pub(super) fn add(&mut self, more: (f32, f32), rise: f32, scale: f32, sum: f32) {
        // False if the reference rises from -inf, before the first visible key, or so far that nothing of
        // the old sums is left.
        let kept = scale != 0.0;
        self.exponents = if kept { scale * (self.exponents - rise * sum) } else { 0.0 };
        self.distances *= scale;
        self.exponents += more.0;
        self.distances += more.1;
    }

    /// The numbers of a query with the sum `Σ p = sum`, where `factor` is `1 / Z`, and the log-sum `log_sum`.
    pub(super) fn finish(&self, sum: f32, factor: f32, log_sum: LogSum) -> RowSummary {
        if factor == 0.0 {
            return RowSummary::default();
        }
        let entropy = factor * (sum * -factor.ln() - LN_2 * self.exponents);
        let weight = |score: f32| log_sum.weight(score);
        RowSummary {
            // Rounding can leave a value slightly below 0; NaN stays NaN.
            entropy: if entropy < 0.0 { 0.0 } else { entropy },
            mean_distance: self.distances * factor,
            on_self: weight(self.own),
            on_previous: weight(self.previous),
            on_first: weight(self.first),
            max: weight(self.best),
            max_position: key_position(self.best_key),
        }
    }
}

/// The sums over one row of scores, gathered while its vectors become weights.
pub(super) struct Moments<S: Simd> {
    exponents: S::f32s,
    distances: S::f32s,
    distance: S::f32s,
}

impl<S: Simd> Moments<S> {
    /// For keys from `start` on, seen from `position`.
    #[inline(always)]
    pub(super) fn new(simd: S, position: isize, start: usize) -> Self {
        let first = simd.splat_f32s(position as f32 - start as f32);
        let zero = simd.splat_f32s(0.0);
        Self { exponents: zero, distances: zero, distance: simd.sub_f32s(first, lanes(simd)) }
    }

    /// Adds the next vector of weights `p = 2^exponent`.
    #[inline(always)]
    pub(super) fn add(&mut self, simd: S, exponent: S::f32s, p: S::f32s) {
        // Below this exponent p is 0, and 0 times infinity would be NaN.
        let exponent = simd.max_f32s(exponent, simd.splat_f32s(-127.0));
        self.exponents = simd.mul_add_e_f32s(p, exponent, self.exponents);
        self.distances = simd.mul_add_e_f32s(p, simd.abs_f32s(self.distance), self.distances);
        self.distance = simd.sub_f32s(self.distance, simd.splat_f32s(S::F32_LANES as f32));
    }

    #[inline(always)]
    pub(super) fn sums(self, simd: S) -> (f32, f32) {
        (simd.reduce_sum_f32s(self.exponents), simd.reduce_sum_f32s(self.distances))
    }
}
