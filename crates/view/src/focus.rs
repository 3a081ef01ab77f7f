//! [`Focus`]: the kind of a head, by where it looks most.

use crate::summary::HeadSummary;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// The least excess over uniform attention with which a head is of a kind: see [`Share::excess`].
///
/// It is below one half, because the first token soaks up part of every head's weight.
pub const FOCUS_THRESHOLD: f32 = 0.3;

/// A head's kind: the tokens that it looks at most.
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
    /// The tokens after earlier copies of the query's token.
    Induction,
    /// Punctuation and line ends (Clark et al. 2019, "What Does BERT Look at?").
    Marks,
    /// The four tokens before.
    Recent,
    /// All keys about alike.
    Even,
    /// None of these.
    Spread,
}

impl Focus {
    /// All kinds, in the order above.
    pub(crate) const ALL: [Self; 9] = [
        Self::Itself,
        Self::Previous,
        Self::First,
        Self::Duplicate,
        Self::Induction,
        Self::Marks,
        Self::Recent,
        Self::Even,
        Self::Spread,
    ];

    /// The tokens that it looks at, in three words.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Itself => "the token itself",
            Self::Previous => "the token before",
            Self::First => "the first token",
            Self::Duplicate => "same token, earlier",
            Self::Induction => "what followed earlier",
            Self::Marks => "punctuation, line ends",
            Self::Recent => "the latest tokens",
            Self::Even => "all tokens alike",
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
            Self::Marks => "marks",
            Self::Recent => "recent",
            Self::Even => "even",
            Self::Spread => "spread",
        })
    }
}

/// A mean weight on certain keys, and what it would be if attention were uniform.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The mean weight, 0 to 1.
    pub weight: f32,
    /// The mean weight if attention were uniform, 0 to 1.
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

/// A head's shares of weight besides those on the token itself and on the first, which have kinds of their own. Only
/// `recent` includes the token before.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Looks {
    /// On the earlier copies of the query's token.
    pub duplicate: Share,
    /// On what followed the earlier copies: an induction head looks there.
    pub induction: Share,
    /// On tokens without a letter or a digit: punctuation, line ends, spaces. A part of a character is none of these.
    pub marks: Share,
    /// On the four tokens before the query, the nearest included.
    pub recent: Share,
    /// The mean entropy divided by that of uniform attention, 0 to 1.
    pub evenness: f32,
}

/// The least evenness of a head whose kind is [`Focus::Even`]; uniform attention has 1.
const EVEN: f32 = 0.85;
/// The number of tokens before the query that count as recent.
const RECENT: usize = 4;

impl Looks {
    /// A head about which nothing is known.
    pub const NONE: Self = Self {
        duplicate: Share::NONE,
        induction: Share::NONE,
        marks: Share::NONE,
        recent: Share::NONE,
        evenness: 0.0,
    };

    /// The means over the queries that have such keys, from the visible weights of each query: the last of them is on the
    /// query itself.
    pub(crate) fn new(rows: &[Vec<f32>], text: &Places) -> Self {
        let mut sums = [WeightSum::default(); 4];
        let (mut entropy, mut uniform) = (0.0, 0.0);
        for row in rows {
            let i = row.len() - 1;
            let copies = &text.copies[i];
            // The first token and the one before have kinds of their own.
            let is_other = |&key: &usize| key > 0 && key + 1 < i;
            sums[0].add(row, copies.iter().copied().filter(is_other));
            sums[1].add(row, copies.iter().map(|&copy| copy + 1).filter(is_other));
            sums[2].add(row, (1..i).filter(|&key| text.marks[key]).filter(is_other));
            // Among so few tokens, everything is recent.
            if i > 2 * RECENT {
                sums[3].add(row, i - RECENT..i);
            }
            entropy -= row.iter().filter(|&&w| w != 0.0).map(|w| w * w.ln()).sum::<f32>();
            uniform += (row.len() as f32).ln();
        }
        let [duplicate, induction, marks, recent] = sums.map(WeightSum::mean);
        let evenness = if uniform > 0.0 { entropy / uniform } else { 0.0 };
        Self { duplicate, induction, marks, recent, evenness }
    }
}

/// A text's copies of tokens and its punctuation, from which heads get their kinds.
#[derive(Debug)]
pub(crate) struct Places {
    /// The positions of the earlier copies of each token.
    copies: Vec<Vec<usize>>,
    /// Whether a token has neither a letter nor a digit, nor a part of one.
    marks: Vec<bool>,
}

impl Places {
    pub(crate) fn new(ids: &[u32], tokens: &[String]) -> Self {
        let mut places: HashMap<u32, Vec<usize>> = HashMap::new();
        let copies = ids.iter().enumerate().map(|(i, id)| {
            let places = places.entry(*id).or_default();
            let earlier = places.clone();
            places.push(i);
            earlier
        });
        // U+FFFD stands for a part of a character, which may be a letter.
        let is_letter = |c: char| c.is_alphanumeric() || c == char::REPLACEMENT_CHARACTER;
        let marks = tokens.iter().map(|token| !token.chars().any(is_letter));
        Self { copies: copies.collect(), marks: marks.collect() }
    }
}

#[derive(Default, Clone, Copy)]
struct WeightSum {
    weight: f32,
    uniform: f32,
    queries: u32,
}

impl WeightSum {
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
    /// [`FOCUS_THRESHOLD`]; otherwise [`Focus::Even`] if it is near to uniform attention, or [`Focus::Spread`].
    ///
    /// Among equal ones, the first in the order of [`Focus`] wins; a NaN never does. In a text of one token, all weight is on
    /// the token itself.
    #[must_use]
    pub fn focus(&self, looks: Looks) -> Focus {
        if self.uniform >= 1.0 && !self.on_self.is_nan() {
            return Focus::Itself;
        }
        let of = |weight| Share { weight, uniform: self.uniform };
        let shares = [
            (Focus::Itself, of(self.on_self)),
            (Focus::Previous, of(self.on_previous)),
            (Focus::First, of(self.on_first)),
            (Focus::Duplicate, looks.duplicate),
            (Focus::Induction, looks.induction),
            (Focus::Marks, looks.marks),
        ];
        let neither = if looks.evenness >= EVEN { Focus::Even } else { Focus::Spread };
        let mut best = (neither, f32::NEG_INFINITY);
        for (focus, share) in shares {
            match share.excess() {
                Some(excess) if excess >= FOCUS_THRESHOLD && excess > best.1 => best = (focus, excess),
                _ => {}
            }
        }
        // What is recent includes the token before, so it is the kind only of a head that has no narrower one.
        if best.0 == neither && looks.recent.excess().is_some_and(|excess| excess >= FOCUS_THRESHOLD) {
            return Focus::Recent;
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
        let focus = |summary: HeadSummary| summary.focus(Looks::NONE);
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
        let on = |duplicate, induction| Looks {
            duplicate: share(duplicate),
            induction: share(induction),
            ..Looks::NONE
        };
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
        let tokens = |text: &str| -> Vec<String> { text.chars().map(String::from).collect() };
        let Looks { duplicate, induction, marks, recent, evenness } =
            Looks::new(&rows, &Places::new(&[7, 8, 7, 8, 8], &tokens("ab,b.")));
        let near = |share: Share, weight: f32, uniform: f32| {
            assert!(
                (share.weight - weight).abs() < 1e-6 && (share.uniform - uniform).abs() < 1e-6,
                "{share:?}"
            );
        };
        near(duplicate, f32::midpoint(0.3, 0.4), f32::midpoint(1. / 4., 1. / 5.));
        near(induction, 0.1, 1. / 5.);
        near(marks, 0.1, 1. / 5.); // the comma, from the last token; before that, it is the token before
        assert_eq!(recent, Share::NONE, "in so short a text everything is recent");
        assert!(evenness > 0.5 && evenness < 0.9, "{evenness}");
        let parts = ["a", "b", "\u{fffd}", "\u{fffd}", "."].map(String::from);
        let in_parts = Looks::new(&rows, &Places::new(&[7, 8, 7, 8, 8], &parts));
        assert_eq!(in_parts.marks, Share::NONE, "what may be a letter is not a mark");
        let once = Looks::new(&rows, &Places::new(&[1, 2, 3, 4, 5], &tokens("abcde")));
        assert_eq!((once.duplicate, once.induction, once.marks), (Share::NONE, Share::NONE, Share::NONE));
    }

    #[test]
    fn uniform_attention_is_even_and_the_latest_tokens_are_recent() {
        let places = Places::new(&(0..20).collect::<Vec<_>>(), &vec!["a".to_owned(); 20]);
        let rows = |weight: &dyn Fn(usize, usize) -> f32| -> Vec<Vec<f32>> {
            (0..20).map(|i| (0..=i).map(|j| weight(i, j)).collect()).collect()
        };
        let none = HeadSummary { on_self: 0.1, on_previous: 0.1, on_first: 0.1, uniform: 0.1, ..some() };
        let uniform = Looks::new(&rows(&|i, _| 1.0 / (i + 1) as f32), &places);
        assert!((uniform.evenness - 1.0).abs() < 1e-5);
        assert_eq!(none.focus(uniform), Focus::Even);
        let recent =
            Looks::new(&rows(&|i, j| if j < i && i - j <= 4 { 1.0 / i.min(4) as f32 } else { 0.0 }), &places);
        assert!((recent.recent.weight - 1.0).abs() < 1e-6);
        assert_eq!(none.focus(recent), Focus::Recent);
    }

    #[test]
    fn every_kind_has_three_words() {
        for focus in Focus::ALL {
            assert_eq!(focus.meaning().split(' ').count(), 3, "{focus}");
        }
    }
}
