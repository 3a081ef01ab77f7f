//! Training rows that only a model which looks back can predict: random tokens, repeated.
//!
//! In a text there is little to gain from finding an earlier copy of the present token, so small models do not learn it.
//! In these rows nothing else helps, and the heads that do it appear: one that attends to the previous token, and
//! induction heads, which attend to what followed the present token before (Olsson et al. 2022, "In-context Learning
//! and Induction Heads").

use rand::Rng;

/// The tokens of the shortest span.
const SHORTEST: f64 = 8.0;

/// How many of the rows are random tokens, repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeats {
    /// The probability of each row.
    pub(crate) fraction: f64,
    pub(crate) vocab_size: usize,
}

impl Repeats {
    /// `len` tokens: a span of random ones, again and again. Each row has a span of its own length, from [`SHORTEST`] to
    /// half of the row, since one length would teach heads a distance. Short spans are as frequent as long ones on a scale
    /// of logarithms: they have few tokens to choose from, and so are learnt first. `None` for a row of the text.
    pub(crate) fn row(&self, len: usize, rng: &mut impl Rng) -> Option<Vec<u32>> {
        // Draw nothing if no rows are wanted: a run without repeats sees the same text as ever.
        if self.fraction == 0.0 || !rng.random_bool(self.fraction) {
            return None;
        }
        let longest = (len / 2).max(1) as f64;
        let shortest = longest.min(SHORTEST);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between the two
        let span = rng.random_range(shortest.ln()..=longest.ln()).exp().round() as usize;
        #[allow(clippy::cast_possible_truncation)] // ids are u32
        let ids: Vec<u32> = (0..span).map(|_| rng.random_range(0..self.vocab_size) as u32).collect();
        Some(ids.into_iter().cycle().take(len).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn a_row_repeats_a_span_of_its_own_length() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let repeats = Repeats { fraction: 1.0, vocab_size: 1000 };
        let spans: Vec<usize> = (0..50)
            .map(|_| {
                let row = repeats.row(65, &mut rng).unwrap();
                assert!(row.len() == 65 && row.iter().all(|id| *id < 1000));
                (1..65).find(|span| row[*span..] == row[..65 - span]).unwrap()
            })
            .collect();
        assert!(spans.iter().all(|span| (8..=32).contains(span)), "{spans:?}");
        let (shortest, longest) = (spans.iter().min().unwrap(), spans.iter().max().unwrap());
        assert!(*shortest < 12 && *longest > 24, "{spans:?}");
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
