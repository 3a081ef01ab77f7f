//! The angles of rotary positions, and how models stretch them to longer contexts.

use candle_core::{DType, Device, Result, Tensor};
use std::f64::consts::PI;

/// Adjusts the frequencies for a context longer than the one that a model was trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// The original frequencies.
    None,
    /// All divided by this factor (Chen et al. 2023, "Extending Context Window of LLMs via Position Interpolation").
    Linear(f64),
    /// Llama 3.1's: long waves divided by `factor`, short ones as they are, a line between (`rope_type` `llama3`).
    Llama3 {
        /// `factor`
        factor: f64,
        /// `low_freq_factor`
        low: f64,
        /// `high_freq_factor`
        high: f64,
        /// `original_max_position_embeddings`
        original: usize,
    },
    /// YaRN (Peng et al. 2023, §3.2 and §3.4): as above, by how often a pair turns, and both tables times a factor.
    Yarn {
        /// `factor`
        factor: f64,
        /// `beta_fast`, usually 32: pairs that turn more often stay as they are
        fast: f64,
        /// `beta_slow`, usually 1: pairs that turn less often are divided by the factor
        slow: f64,
        /// `original_max_position_embeddings`
        original: usize,
        /// `truncate`, usually true: the first and the last pair between the two are rounded to whole pairs. gpt-oss's is false.
        truncate: bool,
        /// `attention_factor`, on both tables; without one, `0.1·ln(factor) + 1`, or 1 if the factor is at most 1. For `DeepSeek`, it is
        /// `(0.1·mscale·ln(factor) + 1) / (0.1·mscale_all_dim·ln(factor) + 1)`; the square of the denominator goes into its
        /// [`Sdpa::scale`](crate::attention::Sdpa::scale).
        attention_factor: Option<f64>,
    },
}

impl RopeScaling {
    /// The frequency of each of the `w` pairs, and the factor on both tables.
    pub(super) fn frequencies(self, w: usize, theta: f64) -> (Vec<f64>, f64) {
        let plain: Vec<f64> = (0..w).map(|i| theta.powf(-(i as f64) / w as f64)).collect();
        match self {
            Self::None => (plain, 1.),
            Self::Linear(factor) => (plain.iter().map(|f| f / factor).collect(), 1.),
            Self::Llama3 { factor, low, high, original } => {
                let scaled = plain.iter().map(|f| {
                    let waves = original as f64 * f / (2. * PI);
                    let share = ((waves - low) / (high - low)).clamp(0., 1.);
                    f / factor * (1. - share) + f * share
                });
                (scaled.collect(), 1.)
            }
            Self::Yarn { factor, fast, slow, original, truncate, attention_factor } => {
                // The pair that turns so often within the original context.
                let pair = |turns: f64| w as f64 * (original as f64 / (turns * 2. * PI)).ln() / theta.ln();
                let first = pair(fast);
                let last = pair(slow);
                let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
                let first = first.max(0.);
                let last = last.min(2. * w as f64 - 1.);
                let width = if last > first { last - first } else { 1e-3 };
                let scaled = plain.iter().enumerate().map(|(i, f)| {
                    let share = ((i as f64 - first) / width).clamp(0., 1.);
                    f / factor * share + f * (1. - share)
                });
                let usual = if factor > 1. { 0.1 * factor.ln() + 1. } else { 1. };
                (scaled.collect(), attention_factor.unwrap_or(usual))
            }
        }
    }
}

/// The cosines and sines of each position.
#[derive(Debug, Clone)]
pub struct RotaryTables {
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
}

impl RotaryTables {
    /// Tables of N `positions` for the first `dim` channels of a head: all D, or those that turn. Computed in f64, then rounded.
    ///
    /// # Errors
    /// When `dim` is odd, a number makes no frequencies, or the device fails.
    pub fn new(
        dim: usize,
        positions: usize,
        theta: f64,
        scaling: RopeScaling,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let (frequencies, factor) = scaling.frequencies(dim / 2, theta);
        let bad = frequencies.iter().chain([&factor]).any(|f| !f.is_finite() || *f <= 0.);
        if !dim.is_multiple_of(2) || dim == 0 || bad {
            candle_core::bail!("rope: {dim} channels with theta {theta} and {scaling:?} make no frequencies")
        }
        let table = |function: fn(f64) -> f64| {
            let numbers = (0..positions).flat_map(|n| frequencies.iter().map(move |f| n as f64 * f));
            let numbers: Vec<f64> = numbers.map(|angle| factor * function(angle)).collect();
            Tensor::from_vec(numbers, (positions, dim / 2), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        Ok(Self { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// The rows of `t` positions from `start` on: `cos` and `sin`, (t, dim / 2), views.
    ///
    /// # Errors
    /// When there are fewer positions.
    pub fn at(&self, start: usize, t: usize) -> Result<(Tensor, Tensor)> {
        let positions = self.cos.dim(0)?;
        if start.checked_add(t).is_none_or(|end| end > positions) {
            candle_core::bail!("rope: {t} positions from {start} on, of {positions} in the tables")
        }
        Ok((self.cos.narrow(0, start, t)?, self.sin.narrow(0, start, t)?))
    }
}
