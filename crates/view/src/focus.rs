//! [`Focus`]: the kind of a head, by where it looks most.

use crate::HeadSummary;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// The least excess over uniform attention with which a head is of a kind: see [`Share::excess`].
///
/// It is below one half, because the first token soaks up part of every head's weight.
pub const FOCUS_THRESHOLD: f32 = 0.3;

/// Where a head looks most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Focus {
    /// The query's own token.
    Itself,
    /// The token before.
    Previous,
    /// The first token of the text.
    First,
    /// Earlier copies of the query's token.
    Duplicate,
    /// What followed earlier copies of the query's token.
    Induction,
    /// None of these.
    Spread,
}

impl Focus {
    /// What it looks at, in three words.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Itself => "the token itself",
            Self::Previous => "the token before",
            Self::First => "the first token",
            Self::Duplicate => "same token, earlier",
            Self::Induction => "what followed earlier",
            Self::Spread => "over many tokens",
        }
    }
}

impl fmt::Display for Focus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Itself => "itself",
            Self::Previous => "previous",
            Self::First => "first",
            Self::Duplicate => "duplicate",
            Self::Induction => "induction",
            Self::Spread => "spread",
        })
    }
}

/// A mean weight on certain keys, and what it would be if attention were uniform.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The mean weight, 0 to 1.
    pub weight: f32,
    /// The same of uniform attention, 0 to 1.
    pub uniform: f32,
}

impl Share {
    /// The share of no queries: it exceeds nothing.
    pub const NONE: Self = Self { weight: 0.0, uniform: 1.0 };

    /// `(weight - uniform) / (1 - uniform)`: 0 for uniform attention, 1 for all weight on these keys, and for a
    /// mixture of the two, the part of the latter. `None` where even uniform attention has all weight there.
    #[must_use]
    pub fn excess(self) -> Option<f32> {
        (self.uniform < 1.0).then(|| (self.weight - self.uniform) / (1.0 - self.uniform))
    }
}

/// Where a head looks from tokens that the text has had before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnRepeats {
    /// On the earlier copies of the token, but for the first token of the text and the token before.
    pub duplicate: Share,
    /// On what followed the earlier copies, with the same exceptions: an induction head looks there.
    pub induction: Share,
}

impl OnRepeats {
    /// The shares of a text without repetition.
    pub const NONE: Self = Self { duplicate: Share::NONE, induction: Share::NONE };

    /// The means over the queries whose token has earlier copies, from the visible weights of each query.
    pub(crate) fn of(rows: &[Vec<f32>], copies: &Copies) -> Self {
        let mut sums = [Sum::default(); 2];
        for ((i, row), copies) in rows.iter().enumerate().zip(&copies.0) {
            // The first token and the one before have kinds of their own.
            let is_other = |&key: &usize| key > 0 && key + 1 < i;
            sums[0].add(row, copies.iter().copied().filter(is_other));
            sums[1].add(row, copies.iter().map(|&copy| copy + 1).filter(is_other));
        }
        let [duplicate, induction] = sums.map(Sum::mean);
        Self { duplicate, induction }
    }
}

/// The positions of the earlier copies of each token of a text.
#[derive(Debug)]
pub(crate) struct Copies(Vec<Vec<usize>>);

impl Copies {
    pub(crate) fn of(ids: &[u32]) -> Self {
        let mut places: HashMap<u32, Vec<usize>> = HashMap::new();
        let copies = ids.iter().enumerate().map(|(i, id)| {
            let places = places.entry(*id).or_default();
            let earlier = places.clone();
            places.push(i);
            earlier
        });
        Self(copies.collect())
    }
}

#[derive(Default, Clone, Copy)]
struct Sum {
    weight: f32,
    uniform: f32,
    queries: u32,
}

impl Sum {
    fn add(&mut self, row: &[f32], keys: impl Iterator<Item = usize>) {
        let (mut weight, mut count) = (0.0, 0u32);
        for key in keys {
            weight += row[key];
            count += 1;
        }
        if count > 0 {
            self.weight += weight;
            self.uniform += count as f32 / row.len() as f32;
            self.queries += 1;
        }
    }

    fn mean(self) -> Share {
        match self.queries {
            0 => Share::NONE,
            n => Share { weight: self.weight / n as f32, uniform: self.uniform / n as f32 },
        }
    }
}

impl HeadSummary {
    /// The kind of the head: where its weight exceeds uniform attention most ([`Share::excess`]), if that is at least
    /// [`FOCUS_THRESHOLD`]; otherwise [`Focus::Spread`].
    ///
    /// Among equal ones, the first in the order of [`Focus`] wins; a NaN never does. A text of one token counts as
    /// spread.
    #[must_use]
    pub fn focus(&self, repeats: OnRepeats) -> Focus {
        let of = |weight| Share { weight, uniform: self.uniform };
        let shares = [
            (Focus::Itself, of(self.on_self)),
            (Focus::Previous, of(self.on_previous)),
            (Focus::First, of(self.on_first)),
            (Focus::Duplicate, repeats.duplicate),
            (Focus::Induction, repeats.induction),
        ];
        let mut best = (Focus::Spread, f32::NEG_INFINITY);
        for (focus, share) in shares {
            match share.excess() {
                Some(excess) if excess >= FOCUS_THRESHOLD && excess > best.1 => best = (focus, excess),
                _ => {}
            }
        }
        best.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a baseline of 1/2, an excess of 0.3 is a mass of 0.65.
    fn some() -> HeadSummary {
        HeadSummary {
            entropy: 1.0,
            mean_distance: 2.0,
            on_self: 0.64,
            on_previous: 0.2,
            on_first: 0.66,
            uniform: 0.5,
        }
    }

    #[test]
    fn focus_needs_the_threshold_and_ignores_nan() {
        let focus = |summary: HeadSummary| summary.focus(OnRepeats::NONE);
        let some = some();
        assert_eq!(focus(some), Focus::First);
        assert_eq!(focus(HeadSummary { on_first: 0.64, ..some }), Focus::Spread);
        assert_eq!(focus(HeadSummary { on_self: 0.66, ..some }), Focus::Itself);
        let barely = HeadSummary { uniform: 0.0, on_first: FOCUS_THRESHOLD, on_self: 0.0, ..some };
        assert_eq!(focus(barely), Focus::First);
        assert_eq!(focus(HeadSummary { on_first: f32::NAN, ..some }), Focus::Spread);
        assert_eq!(focus(HeadSummary { on_self: f32::NAN, ..some }), Focus::First);
        assert_eq!(focus(HeadSummary { uniform: f32::NAN, ..some }), Focus::Spread);
    }

    #[test]
    fn repeats_count_if_they_exceed_the_rest() {
        let share = |weight| Share { weight, uniform: 0.2 };
        let on =
            |duplicate, induction| OnRepeats { duplicate: share(duplicate), induction: share(induction) };
        // 0.66 on the first token is an excess of 0.32; here 0.46 is one of 0.325, and 0.44 one of 0.3.
        assert_eq!(some().focus(on(0.0, 0.46)), Focus::Induction);
        assert_eq!(some().focus(on(0.46, 0.46)), Focus::Duplicate);
        assert_eq!(some().focus(on(0.45, 0.45)), Focus::First);
        assert_eq!(some().focus(on(f32::NAN, 0.5)), Focus::Induction);
    }

    #[test]
    fn the_shares_are_those_of_the_weights() {
        let rows: Vec<Vec<f32>> = vec![
            vec![1.0],
            vec![0.5, 0.5],
            vec![0.1, 0.2, 0.7], // a: its copy is 0, the first token; 1 followed, the token before
            vec![0.0, 0.3, 0.6, 0.1], // b: its copy is 1; 2 followed, the token before
            vec![0.0, 0.4, 0.1, 0.3, 0.2], // b: its copies are 1 and 3, the token before; 2 followed, and 4 is the query
        ];
        let OnRepeats { duplicate, induction } = OnRepeats::of(&rows, &Copies::of(&[7, 8, 7, 8, 8]));
        let near = |share: Share, weight: f32, uniform: f32| {
            assert!(
                (share.weight - weight).abs() < 1e-6 && (share.uniform - uniform).abs() < 1e-6,
                "{share:?}"
            );
        };
        near(duplicate, f32::midpoint(0.3, 0.4), f32::midpoint(1. / 4., 1. / 5.));
        near(induction, 0.1, 1. / 5.);
        let once = OnRepeats::of(&rows, &Copies::of(&[1, 2, 3, 4, 5]));
        assert_eq!(once, OnRepeats::NONE);
    }

    #[test]
    fn every_kind_has_three_words() {
        use Focus::{Duplicate, First, Induction, Itself, Previous, Spread};
        for focus in [Itself, Previous, First, Duplicate, Induction, Spread] {
            assert_eq!(focus.meaning().split(' ').count(), 3, "{focus}");
        }
    }
}
