//! The harness' measures: accuracies, perplexities, and how far they may be off.

use crate::observer::Observer;
use gpt2_model::analysis::Likelihood;
use rand_mt::Mt;
use rayon::prelude::*;

/// Draws that share a seed.
const CHUNK: usize = 1000;
/// Numbers that a thread draws before the observer is asked: some hundredths of a second.
const NUMBERS: usize = 1 << 21;

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

    /// e to the mean surprise. Its error is the deviation among the perplexities of `draws` samples that are drawn from these, with
    /// replacement, by Python's generator: the harness' own where it draws as many, below 1000 and in thousands. The observer may end it.
    pub(super) fn perplexity_of(
        log_probs: &[f64],
        draws: usize,
        observer: &dyn Observer,
    ) -> anyhow::Result<Self> {
        let value = (-mean(log_probs)).exp();
        let has_error = log_probs.len() > 1 && draws > 1;
        let error = has_error.then(|| drawn(log_probs, draws, observer).map(|drawn| deviation(&drawn)));
        Ok(Self { value, error: error.transpose()? })
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

/// The perplexities of `draws` samples.
fn drawn(log_probs: &[f64], draws: usize, observer: &dyn Observer) -> anyhow::Result<Vec<f64>> {
    let at_once = (NUMBERS / log_probs.len()).clamp(1, CHUNK);
    let streams = draws.div_ceil(CHUNK);
    let mut all = Vec::with_capacity(draws);
    for first in (0..streams).step_by(rayon::current_num_threads()) {
        let some = first..streams.min(first + rayon::current_num_threads());
        let stream = |seed: usize| -> anyhow::Result<DrawStream> {
            Ok(DrawStream::new(u32::try_from(seed)?, CHUNK.min(draws - seed * CHUNK)))
        };
        let mut some = some.map(stream).collect::<anyhow::Result<Vec<_>>>()?;
        while some.iter().any(|stream| stream.left > 0) {
            some.par_iter_mut().for_each(|stream| stream.draw(log_probs, at_once));
            let done = all.len() + some.iter().map(|stream| stream.found.len()).sum::<usize>();
            observer.step("samples", done as u64, Some(draws as u64))?;
        }
        all.extend(some.into_iter().flat_map(|stream| stream.found));
    }
    Ok(all)
}

/// Samples that one seed draws, one after another.
struct DrawStream {
    generator: Mt,
    left: usize,
    /// Their perplexities.
    found: Vec<f64>,
}

impl DrawStream {
    fn new(seed: u32, count: usize) -> Self {
        Self { generator: Mt::new_with_key([seed]), left: count, found: Vec::with_capacity(count) }
    }

    /// Draws the next samples, `count` at most.
    fn draw(&mut self, log_probs: &[f64], count: usize) {
        let n = log_probs.len() as f64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a share of the length
        let mut one = || {
            // 53 bits, from two numbers of 32.
            let high = f64::from(self.generator.next_u32() >> 5);
            let low = f64::from(self.generator.next_u32() >> 6);
            let share = (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0;
            log_probs[(share * n) as usize]
        };
        let count = count.min(self.left);
        for _ in 0..count {
            self.found.push((-(0..log_probs.len()).map(|_| one()).sum::<f64>() / n).exp());
        }
        self.left -= count;
    }
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
    use crate::observer::Silent;
    use std::sync::Mutex;

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
        let mut stream = DrawStream::new(0, 1);
        stream.draw(&numbers, 5);
        assert_eq!((stream.left, stream.found), (0, vec![expected]));
    }

    /// Hears how many samples are drawn, and ends the work after some calls.
    struct Counting {
        heard: Mutex<Vec<u64>>,
        calls: usize,
    }

    impl Observer for Counting {
        fn step(&self, steps: &str, done: u64, _: Option<u64>) -> candle_core::Result<()> {
            assert_eq!(steps, "samples");
            let mut heard = self.heard.lock().expect("no thread fails");
            heard.push(done);
            if heard.len() > self.calls {
                candle_core::bail!("ended")
            }
            Ok(())
        }
    }

    #[test]
    fn as_many_samples_are_drawn_as_were_asked_for() -> anyhow::Result<()> {
        let numbers: Vec<f64> = (0..10).map(|x| f64::from(x) / -3.0).collect();
        for draws in [2, 999, 1000, 1001, 2500, 3000] {
            let counting = Counting { heard: Mutex::default(), calls: usize::MAX };
            let all = drawn(&numbers, draws, &counting)?;
            assert_eq!(all.len(), draws);
            assert_eq!(counting.heard.into_inner()?.last(), Some(&(draws as u64)));
            // However many are drawn in all, and on however many threads, each seed gives its own.
            let whole = drawn(&numbers, 3000, &Silent)?;
            assert_eq!(all, whole[..draws]);
        }
        for draws in [0, 1] {
            assert_eq!(Estimate::perplexity_of(&numbers, draws, &Silent)?.error, None);
        }
        Ok(())
    }

    /// A million texts: 100,000 samples of them take minutes, and the observer ends the work among the first of one seed.
    #[test]
    fn an_observer_ends_the_drawing_soon() {
        let numbers = vec![-1.0; 1_000_000];
        let counting = Counting { heard: Mutex::default(), calls: 2 };
        let ended = Estimate::perplexity_of(&numbers, 100_000, &counting).expect_err("it is ended");
        assert!(ended.to_string().contains("ended"), "{ended}");
        let heard = counting.heard.into_inner().expect("no thread fails");
        let threads = rayon::current_num_threads().min(100) as u64;
        assert_eq!(heard, [2 * threads, 4 * threads, 6 * threads]);
    }
}
