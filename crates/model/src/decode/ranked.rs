//! Tokens in the order of their logits: all of a vocabulary, or as many of the highest ones as are known.

use candle_fused::TokenSearch;
use std::cmp::Ordering;

/// The number of tokens to sort at first; each further step sorts three times the number that is already sorted. A draw rarely looks
/// further than the first ones, and to sort a whole vocabulary takes milliseconds.
const FIRST: usize = 64;

/// Tokens and their logits, the highest first; of equal ones, the lower token first.
pub(super) struct Ranked {
    tokens: Vec<(usize, f32)>,
    /// The number of tokens in order; all others come after these.
    sorted: usize,
    /// The number of tokens in all.
    vocabulary: usize,
    /// The sum of the weights of all tokens, if some of these are not here.
    sum: f64,
}

pub(super) fn descending(a: &(usize, f32), b: &(usize, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

pub(super) fn highest(tokens: &[(usize, f32)]) -> f32 {
    tokens.iter().fold(f32::NEG_INFINITY, |highest, (_, logit)| highest.max(*logit))
}

impl Ranked {
    /// All tokens of a vocabulary.
    pub(super) fn all(logits: &[f32]) -> Self {
        let tokens: Vec<_> = logits.iter().copied().enumerate().collect();
        Self { vocabulary: tokens.len(), tokens, sorted: 0, sum: 0.0 }
    }

    /// The tokens with the highest logits of a vocabulary, in order, and the sum of the weights of all.
    pub(super) fn first_of(vocabulary: usize, highest: &[(u32, f32)], sum: f64) -> Self {
        let mut tokens: Vec<_> = highest.iter().map(|&(id, logit)| (id as usize, logit)).collect();
        let mut sorted = tokens.len();
        if sorted == vocabulary {
            tokens.sort_unstable_by_key(|&(id, _)| id); // as `all` has them
            sorted = 0;
        }
        Self { tokens, sorted, vocabulary, sum }
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn highest(&self) -> f32 {
        highest(&self.tokens)
    }

    /// The sum of the weights of all tokens, as long as nothing is sorted, and how far it may be from that of all logits, beside itself.
    pub(super) fn sum(&self, weight: impl Fn(f32) -> f64) -> (f64, f64) {
        if self.tokens.len() < self.vocabulary {
            return (self.sum, TokenSearch::ERROR_OF_SUM);
        }
        (self.tokens.iter().map(|&(_, logit)| weight(logit)).sum(), 0.0)
    }

    /// The token of this rank, and its logit; `None` if it is not known.
    pub(super) fn get(&mut self, rank: usize) -> Option<(usize, f32)> {
        while rank >= self.sorted && self.sorted < self.tokens.len() {
            let rest = &mut self.tokens[self.sorted..];
            let next = (3 * self.sorted).max(FIRST).min(rest.len());
            if next < rest.len() {
                rest.select_nth_unstable_by(next, descending);
            }
            rest[..next].sort_unstable_by(descending);
            self.sorted += next;
        }
        self.tokens.get(rank).copied()
    }

    /// The first `count` tokens; `None` if some are not known.
    pub(super) fn first(mut self, count: usize) -> Option<Vec<(usize, f32)>> {
        if 0 < count && count < self.tokens.len() {
            self.get(count - 1);
        }
        if count > self.tokens.len() {
            return None;
        }
        self.tokens.truncate(count);
        Some(self.tokens)
    }
}
