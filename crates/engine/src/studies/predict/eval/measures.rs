//! The harness' measures: accuracies, perplexities, and how far they may be off.

use gpt2_model::analysis::Likelihood;
use rand_mt::Mt;
use rayon::prelude::*;

/// Draws that share a seed.
const CHUNK: usize = 1000;

/// A number and its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) value: f64,
    /// None where it is not defined.
    pub(super) error: Option<f64>,
}

impl Estimate {
    /// The mean of numbers, and the standard error of a mean.
    pub(super) fn mean_of(numbers: &[f64]) -> Self {
        let n = numbers.len() as f64;
        Self { value: mean(numbers), error: (numbers.len() > 1).then(|| deviation(numbers) / n.sqrt()) }
    }

    /// A number of which nothing is drawn.
    pub(super) fn without_error(value: f64) -> Self {
        Self { value, error: None }
    }

    /// e to the mean surprise; its error is the deviation among perplexities of samples that are drawn from these, with replacement, as
    /// many as `draws`, in thousands from 1000 on. Python's generator draws them, by the harness' seeds, so that the errors are its own.
    pub(super) fn perplexity_of(log_probs: &[f64], draws: usize) -> Self {
        let value = (-mean(log_probs)).exp();
        let error = (log_probs.len() > 1 && draws > 1).then(|| {
            let chunk = CHUNK.min(draws);
            let seeds = 0..u32::try_from(draws / chunk).unwrap_or(u32::MAX);
            let drawn = seeds.into_par_iter().map(|seed| perplexities(log_probs, seed, chunk));
            deviation(&drawn.collect::<Vec<_>>().concat())
        });
        Self { value, error }
    }

    /// The mean over groups of examples that each count once.
    pub(super) fn mean_over(groups: &[Self]) -> Self {
        let n = groups.len() as f64;
        let value = groups.iter().map(|one| one.value).sum::<f64>() / n;
        let squares = groups.iter().map(|one| one.error.map(|error| error * error)).sum::<Option<f64>>();
        Self { value, error: squares.map(|squares| squares.sqrt() / n) }
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The standard deviation of a sample.
fn deviation(numbers: &[f64]) -> f64 {
    let mean = mean(numbers);
    let squares: f64 = numbers.iter().map(|x| (x - mean).powi(2)).sum();
    (squares / (numbers.len() as f64 - 1.0)).sqrt()
}

/// Perplexities of `count` samples.
fn perplexities(log_probs: &[f64], seed: u32, count: usize) -> Vec<f64> {
    let mut generator = Mt::new_with_key([seed]);
    let n = log_probs.len() as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a share of the length
    let mut draw = || {
        // 53 bits, from two numbers of 32.
        let high = f64::from(generator.next_u32() >> 5);
        let low = f64::from(generator.next_u32() >> 6);
        let share = (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0;
        log_probs[(share * n) as usize]
    };
    (0..count).map(|_| (-(0..log_probs.len()).map(|_| draw()).sum::<f64>() / n).exp()).collect()
}

/// The index of the largest number; of equal ones, the first. NaN counts as larger than all.
pub(super) fn first_largest(numbers: impl IntoIterator<Item = f64>) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (i, x) in numbers.into_iter().enumerate() {
        if i == 0 || x > best.1 || (x.is_nan() && !best.1.is_nan()) {
            best = (i, x);
        }
    }
    best.0
}

/// Whether the right choice is the most probable, and whether it is by its log-probability per character.
pub(super) fn is_right(found: &[Likelihood], lengths: &[usize], answer: usize) -> (bool, bool) {
    let sums = || found.iter().map(|one| one.log_prob);
    let per_character = sums().zip(lengths).map(|(log_prob, length)| log_prob / *length as f64);
    (first_largest(sums()) == answer, first_largest(per_character) == answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_numbers_the_first_is_the_largest() {
        for (numbers, index) in [
            (&[1.0, 3.0, 3.0][..], 1),
            (&[f64::NEG_INFINITY, f64::NEG_INFINITY], 0),
            (&[f64::NAN, 9.0], 0),
            (&[9.0, f64::NAN, f64::NAN], 1),
        ] {
            assert_eq!(first_largest(numbers.iter().copied()), index, "{numbers:?}");
        }
    }

    #[test]
    fn samples_are_drawn_as_pythons_random_draws_them() {
        // random.seed(0); random.choices(range(10), k=5) is [8, 7, 4, 2, 5].
        let numbers: Vec<f64> = (0..10).map(f64::from).collect();
        let mut generator = Mt::new_with_key([0]);
        let mut draw = || {
            let high = f64::from(generator.next_u32() >> 5);
            let low = f64::from(generator.next_u32() >> 6);
            (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0 * 10.0
        };
        let drawn: Vec<f64> = (0..10).map(|_| draw().floor()).collect();
        assert_eq!(drawn[..5], [8.0, 7.0, 4.0, 2.0, 5.0]);
        let expected = (-drawn.iter().sum::<f64>() / 10.0).exp();
        assert_eq!(perplexities(&numbers, 0, 1), [expected]);
    }
}
