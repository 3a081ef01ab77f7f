//! Training rows that only a model which looks back can predict: random tokens whose spans come again.
//!
//! In a text there is little to gain from finding an earlier copy of the present token, so small models do not learn it.
//! In these rows nothing else helps, and the heads that do it appear: one that attends to the previous token, and
//! induction heads, which attend to what followed the present token before (Olsson et al. 2022, "In-context Learning
//! and Induction Heads").

use rand::Rng;

/// The tokens of the shortest span: one to recognize, and one to predict.
const SHORTEST: f64 = 2.0;
/// How often a span is new rather than a copy of an earlier one.
const NEW: f64 = 0.25;

/// How many of the rows are random tokens with repeated spans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeats {
    /// The probability of each row.
    pub(crate) fraction: f64,
    pub(crate) vocab_size: usize,
}

impl Repeats {
    /// `len` tokens: spans of random ones, most of them copies of an earlier span of the row, in random order. If one
    /// span came again and again, a model could as well compare what stood two or three tokens back.
    /// The spans have 2 tokens to a quarter of the row, short ones more often. `None` for a row of the text.
    pub(crate) fn row(&self, len: usize, rng: &mut impl Rng) -> Option<Vec<u32>> {
        // Draw nothing if no rows are wanted: a run without repeats sees the same text as ever.
        if self.fraction == 0.0 || !rng.random_bool(self.fraction) {
            return None;
        }
        let longest = (len as f64 / 4.0).max(SHORTEST);
        let mut spans: Vec<Vec<u32>> = vec![];
        let mut row = vec![];
        while row.len() < len {
            if spans.is_empty() || rng.random_bool(NEW) {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between the two
                let span = rng.random_range(SHORTEST.ln()..=longest.ln()).exp().round() as usize;
                #[allow(clippy::cast_possible_truncation)] // ids are u32
                spans.push((0..span).map(|_| rng.random_range(0..self.vocab_size) as u32).collect());
                row.extend(spans.last().into_iter().flatten());
            } else {
                row.extend(&spans[rng.random_range(0..spans.len())]);
            }
        }
        row.truncate(len);
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    /// In a vocabulary so large that no token occurs twice by chance, a token that has occurred before tells what follows
    /// in most places, and the other tokens tell nothing.
    #[test]
    fn most_tokens_follow_what_they_followed_before() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let repeats = Repeats { fraction: 1.0, vocab_size: 1 << 30 };
        let (mut known, mut right) = (0, 0);
        for _ in 0..50 {
            let row = repeats.row(257, &mut rng).unwrap();
            assert_eq!(row.len(), 257);
            for i in 1..256 {
                if let Some(copy) = row[..i].iter().rposition(|id| *id == row[i]) {
                    known += 1;
                    right += usize::from(row[copy + 1] == row[i + 1]);
                }
            }
        }
        let (known, right) = (f64::from(known) / (50.0 * 255.0), right as f64 / f64::from(known));
        assert!((0.5..0.9).contains(&known), "{known} of the tokens have occurred before");
        // The end of a span tells nothing, and spans have 62 / ln 32 = 18 tokens on average.
        assert!((0.92..0.98).contains(&right), "{right} of those are followed by the same");
    }

    #[test]
    fn the_fraction_is_that_of_the_rows() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut count = |fraction| {
            let repeats = Repeats { fraction, vocab_size: 10 };
            (0..1000).filter(|_| repeats.row(9, &mut rng).is_some()).count()
        };
        assert_eq!((count(0.0), count(1.0)), (0, 1000));
        // Five standard deviations of 1000 draws.
        assert!((230..=370).contains(&count(0.3)));
    }
}
