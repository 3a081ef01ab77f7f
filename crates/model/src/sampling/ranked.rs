//! Tokens in the order of their logits, sorted as far as someone looks.

use std::cmp::Ordering;

/// How many tokens are sorted at first; from then on, each time three times as many as are sorted already. A draw rarely looks
/// further than the first ones, and to sort a whole vocabulary takes milliseconds.
const FIRST: usize = 64;

/// Tokens and their logits, the highest first; of equal ones, the lower token first.
pub(super) struct Ranked {
    tokens: Vec<(usize, f32)>,
    /// How many are in order; all others come after these.
    sorted: usize,
}

fn descending(a: &(usize, f32), b: &(usize, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

impl Ranked {
    pub(super) fn new(logits: &[f32]) -> Self {
        Self { tokens: logits.iter().copied().enumerate().collect(), sorted: 0 }
    }

    /// The token of this rank, and its logit.
    pub(super) fn get(&mut self, rank: usize) -> (usize, f32) {
        while rank >= self.sorted && self.sorted < self.tokens.len() {
            let rest = &mut self.tokens[self.sorted..];
            let next = (3 * self.sorted).max(FIRST).min(rest.len());
            if next < rest.len() {
                rest.select_nth_unstable_by(next, descending);
            }
            rest[..next].sort_unstable_by(descending);
            self.sorted += next;
        }
        self.tokens[rank]
    }
}
