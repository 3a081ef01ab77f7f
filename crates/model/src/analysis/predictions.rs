//! Measures how well a model predicts texts, and how far the predictions of two models diverge.

use super::readout::Readout;
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::Hooks;
use candle_core::{D, DType, Result, Tensor};
use candle_fused::attention::Summary;
use candle_nn::ops::log_softmax;

/// The surprise of the tokens of some texts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Surprises {
    /// For each text, `-ln p` of each token but the first, given those before it: T - 1 numbers in nats.
    pub nats: Vec<Vec<f64>>,
    /// If asked for, L summaries of the attention weights, (B, H, longest T). Entries past a text's end are
    /// padding.
    pub summaries: Vec<Summary>,
}

/// Rows of logits in memory at a time.
pub(super) const LOGITS_ROWS: usize = 256;

/// Runs the model over texts of different lengths together: shorter ones are filled up at their end, which no token of
/// theirs sees. It takes least time if they have about the same length. `hooks` act in the run, on all texts at once, and on what
/// fills them up: an intervention that takes means over positions needs texts of equal length.
///
/// # Errors
/// When there is no text, or one is empty, longer than N, or holds an id of V or above, and for errors from hooks.
pub fn surprises(
    model: &Gpt2LMHeadModel,
    texts: &[&[u32]],
    with_summaries: bool,
    hooks: Option<&dyn Hooks>,
) -> Result<Surprises> {
    let lengths = || texts.iter().map(|ids| ids.len());
    let (Some(1..), Some(longest)) = (lengths().min(), lengths().max()) else {
        candle_core::bail!("surprises: expected texts of at least one token each")
    };
    let device = model.device();
    let filled =
        |ids: &&[u32]| ids.iter().copied().chain(std::iter::repeat_n(0, longest - ids.len())).collect();
    let rows: Vec<Vec<u32>> = texts.iter().map(filled).collect();
    let input = Tensor::new(rows, device)?; // (B, T)
    let args = ForwardArgs { output_summaries: with_summaries, hooks, ..ForwardArgs::default() };
    let readout = Readout::of(model, &input, args)?;
    let parts = texts.iter().enumerate().filter(|(_, ids)| ids.len() > 1);
    let rows = parts.clone().map(|(row, ids)| readout.values().get(row)?.narrow(0, 0, ids.len() - 1));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let targets: Vec<u32> = parts.flat_map(|(_, ids)| &ids[1..]).copied().collect();
    let mut all = Vec::with_capacity(targets.len());
    if !rows.is_empty() {
        let rows = Tensor::cat(&rows, 0)?; // (rows, C or V)
        let targets = Tensor::new(targets, device)?; // (rows)
        for first in (0..targets.elem_count()).step_by(LOGITS_ROWS) {
            let count = LOGITS_ROWS.min(targets.elem_count() - first);
            let logits = readout.logits_of(&rows.narrow(0, first, count)?)?; // (count, V)
            all.extend(candle_fused::cross_entropies(&logits, &targets.narrow(0, first, count)?)?);
        }
    }
    let mut rest = all.into_iter();
    let nats = texts.iter().map(|ids| rest.by_ref().take(ids.len() - 1).collect()).collect();
    Ok(Surprises { nats, summaries: readout.output.summaries })
}

/// Sums over predicted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Comparison {
    /// The number of tokens predicted.
    pub tokens: usize,
    /// The surprise of the tokens in nats, for each model.
    pub surprise: [f64; 2],
    /// The divergence of the second model's distribution from the first's, in nats.
    pub divergence: f64,
    /// The number of tokens for which both models rank the same token first.
    pub agreeing: usize,
    /// The largest difference between two logits.
    pub largest_difference: f64,
}

/// Rows to compare at a time, so that the tables in between stay small.
const COMPARED_ROWS: usize = 128;

impl Comparison {
    /// Adds the predictions of some tokens.
    ///
    /// # Shapes
    /// `logits` (T, V) of each model, `targets` (T): the tokens that came
    ///
    /// # Errors
    /// When a shape does not fit, or a logit is not finite.
    pub fn add(&mut self, logits: [&Tensor; 2], targets: &Tensor) -> Result<()> {
        let count = targets.dim(0)?;
        if logits[0].dims2()?.0 != count || logits[0].dims() != logits[1].dims() {
            candle_core::bail!(
                "comparison: logits {:?} and {:?} for {count} targets",
                logits[0].dims(),
                logits[1].dims()
            )
        }
        for first in (0..count).step_by(COMPARED_ROWS) {
            let rows = COMPARED_ROWS.min(count - first);
            let part = |x: &Tensor| x.narrow(0, first, rows)?.to_dtype(DType::F32);
            self.add_rows([&part(logits[0])?, &part(logits[1])?], &targets.narrow(0, first, rows)?)?;
        }
        self.tokens += count;
        Ok(())
    }

    fn add_rows(&mut self, logits: [&Tensor; 2], targets: &Tensor) -> Result<()> {
        let difference = (logits[0] - logits[1])?.abs()?;
        let largest = f64::from(difference.max_all()?.to_scalar::<f32>()?);
        // NaN, and infinity minus infinity, do not survive a maximum; a sum shows both.
        if !difference.sum_all()?.to_scalar::<f32>()?.is_finite() {
            candle_core::bail!("comparison: a logit is not finite")
        }
        self.largest_difference = self.largest_difference.max(largest);
        let logs = [log_softmax(logits[0], D::Minus1)?, log_softmax(logits[1], D::Minus1)?]; // (rows, V)
        let total = |x: Tensor| -> Result<f64> {
            Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f64::from).sum())
        };
        for (surprise, logs) in self.surprise.iter_mut().zip(&logs) {
            *surprise -= total(logs.gather(&targets.unsqueeze(1)?, 1)?)?;
        }
        self.divergence += total((logs[0].exp()? * (&logs[0] - &logs[1])?)?.sum(D::Minus1)?)?;
        let best = |logits: &Tensor| logits.argmax(D::Minus1)?.to_vec1::<u32>();
        let pairs = best(logits[0])?.into_iter().zip(best(logits[1])?);
        self.agreeing += pairs.filter(|(a, b)| a == b).count();
        Ok(())
    }

    /// The perplexity of each model: e to the mean surprise.
    #[must_use]
    pub fn perplexity(&self) -> [f64; 2] {
        self.surprise.map(|surprise| (surprise / self.tokens as f64).exp())
    }

    /// The mean divergence of the second model's distribution from the first's, in nats.
    #[must_use]
    pub fn mean_divergence(&self) -> f64 {
        self.divergence / self.tokens as f64
    }

    /// The share of tokens where both find the same one the most probable.
    #[must_use]
    pub fn agreement(&self) -> f64 {
        self.agreeing as f64 / self.tokens as f64
    }
}

/// The places of the `k` largest numbers, the largest first; of equal ones, the earlier first. A NaN counts as larger than all numbers.
#[must_use]
pub fn highest(numbers: &[f32], k: usize) -> Vec<u32> {
    let higher =
        |a: &u32, b: &u32| numbers[*b as usize].total_cmp(&numbers[*a as usize]).then_with(|| a.cmp(b));
    #[allow(clippy::cast_possible_truncation)] // ids are u32
    let mut ids: Vec<u32> = (0..numbers.len() as u32).collect();
    if ids.len() > k {
        ids.select_nth_unstable_by(k, higher);
        ids.truncate(k);
    }
    ids.sort_unstable_by(higher);
    ids
}

/// The most probable next tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Likely {
    /// Ids and their probabilities, the most probable first; none if a logit is NaN or infinity, or all are -infinity.
    pub tokens: Vec<(u32, f32)>,
    /// The probability of the token that was asked for.
    pub actual: Option<f32>,
}

/// The `k` most probable tokens, and the probability of `actual`, given the logits (V): their softmax, in f64.
///
/// # Panics
/// When `actual` is V or above.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // f32 is what is shown
pub fn most_likely(logits: &[f32], k: usize, actual: Option<u32>) -> Likely {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum();
    if !total.is_finite() {
        return Likely::default();
    }
    let probability = |id: u32| ((f64::from(logits[id as usize]) - largest).exp() / total) as f32;
    Likely {
        tokens: highest(logits, k).into_iter().map(|id| (id, probability(id))).collect(),
        actual: actual.map(probability),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_figures_are_those_of_the_distributions() -> Result<()> {
        let logs = |rows: [[f64; 2]; 2]| Tensor::new(&rows.map(|row| row.map(f64::ln)), &Device::Cpu);
        let p = logs([[0.5, 0.5], [0.9, 0.1]])?;
        let q = logs([[0.25, 0.75], [0.8, 0.2]])?;
        let mut comparison = Comparison::default();
        comparison.add([&p, &q], &Tensor::new(&[0u32, 1], &Device::Cpu)?)?;
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a}, not {b}");
        close(comparison.perplexity()[0], (1.0f64 / (0.5 * 0.1)).sqrt());
        close(comparison.perplexity()[1], (1.0f64 / (0.25 * 0.2)).sqrt());
        let first = 0.5 * 2f64.ln() + 0.5 * (0.5f64 / 0.75).ln();
        let second = 0.9 * (0.9f64 / 0.8).ln() + 0.1 * 0.5f64.ln();
        close(comparison.mean_divergence(), f64::midpoint(first, second));
        close(comparison.largest_difference, 2f64.ln());
        assert_eq!((comparison.tokens, comparison.agreeing), (2, 1));
        let broken = Tensor::new(&[[f64::NAN, 0.0]], &Device::Cpu)?;
        assert!(comparison.add([&broken, &broken], &Tensor::new(&[0u32], &Device::Cpu)?).is_err());
        Ok(())
    }

    #[test]
    fn rows_are_the_same_all_at_once_and_one_by_one() -> Result<()> {
        // More than are compared at a time.
        let (t, v) = (300, 5);
        let logits = |salt: usize| {
            let numbers = (0..t * v).map(|i| ((i * 7919 + salt * 31) % 1009) as f32 / 500.0);
            Tensor::from_iter(numbers, &Device::Cpu)?.reshape((t, v))
        };
        let a = logits(1)?;
        let b = logits(2)?;
        let targets = Tensor::from_iter((0..300u32).map(|i| i * i % 5), &Device::Cpu)?;
        let mut whole = Comparison::default();
        let mut parts = Comparison::default();
        whole.add([&a, &b], &targets)?;
        for row in 0..t {
            let part = |x: &Tensor| x.narrow(0, row, 1);
            parts.add([&part(&a)?, &part(&b)?], &part(&targets)?)?;
        }
        assert_eq!((whole.tokens, whole.agreeing), (300, parts.agreeing));
        assert_eq!(parts.tokens, 300);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-4 * b.abs(), "{a}, not {b}");
        near(whole.divergence, parts.divergence);
        near(whole.largest_difference, parts.largest_difference);
        near(whole.surprise[0], parts.surprise[0]);
        near(whole.agreement(), parts.agreeing as f64 / 300.0);
        for (logits, targets) in [
            ([&a, &b.narrow(0, 0, 299)?], &targets),
            ([&a, &b.narrow(1, 0, 4)?], &targets),
            ([&a, &b], &targets.narrow(0, 0, 299)?),
        ] {
            let error = whole.add(logits, targets).expect_err("shapes").to_string();
            assert!(error.contains("comparison: logits [300, 5]"), "{error}");
        }
        Ok(())
    }
}
