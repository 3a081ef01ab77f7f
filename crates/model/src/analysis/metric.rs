//! One number that says how a prediction came out.

use super::text_metric::TextMetric;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::log_softmax;
use std::sync::Arc;

/// A measure of the model's prediction: after a text, at several of its positions, or of your own.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Metric {
    /// The log-probability of a token, in nats.
    LogProb(u32),
    /// The logit of a token.
    Logit(u32),
    /// The probability that any of `answers` comes next less that of any of `against` (Hanna et al. 2023, "How does GPT-2 compute
    /// greater-than?"), from -1 to 1.
    Probability {
        /// The tokens that the model should expect, at least one.
        answers: Vec<u32>,
        /// The tokens to compare them with, if any.
        against: Vec<u32>,
    },
    /// The mean of another metric of single positions over some positions of the text, at least one.
    At(Vec<usize>, Box<Metric>),
    /// A measure of a whole text, such as a [`Loss`](super::Loss), a [`Divergence`](super::Divergence) or one of your own.
    OfText(Arc<dyn TextMetric>),
    /// The mean logit of `answers` less the mean logit of `against` (Wang et al. 2022, "Interpretability in the Wild").
    /// With one token on each side, it is the logarithm of the ratio of their probabilities, in nats.
    LogitDifference {
        /// The tokens that the model should expect, at least one.
        answers: Vec<u32>,
        /// The tokens to compare them with, at least one.
        against: Vec<u32>,
    },
}

impl Metric {
    /// The logit of one token less that of another.
    #[must_use]
    pub fn difference(answer: u32, against: u32) -> Self {
        Self::LogitDifference { answers: vec![answer], against: vec![against] }
    }

    /// The probability of one token, from 0 to 1.
    #[must_use]
    pub fn probability(answer: u32) -> Self {
        Self::Probability { answers: vec![answer], against: vec![] }
    }

    /// The metric of each text, in f32 or wider; differentiable.
    ///
    /// # Shapes
    /// `logits` (B, T, V), or (B, 1, V) of the last position unless [`reads_all_positions`](Self::reads_all_positions) -> (B), or
    /// (1) from a [`TextMetric`] of all rows together
    ///
    /// # Errors
    /// When a token is not below V, a position is not below T, there is no answer, or a metric of one's own fails.
    pub fn of_texts(&self, logits: &Tensor) -> Result<Tensor> {
        let t = logits.dim(1)?;
        let logits = logits.to_dtype(candle_fused::accumulator(logits.dtype()))?;
        match self {
            Self::OfText(metric) => metric.of(&logits),
            Self::At(positions, metric) => {
                if let Some(position) = positions.iter().find(|&&position| position >= t) {
                    candle_core::bail!("metric: position {position} of a text of {t} tokens")
                }
                let of = |&position: &usize| metric.of(&logits.narrow(1, position, 1)?.squeeze(1)?);
                Tensor::stack(&positions.iter().map(of).collect::<Result<Vec<_>>>()?, 0)?.mean(0)
            }
            _ => self.of(&logits.narrow(1, t - 1, 1)?.squeeze(1)?),
        }
    }

    /// Whether the metric needs the logits of every position, not only those of the last one.
    #[must_use]
    pub fn reads_all_positions(&self) -> bool {
        match self {
            Self::At(..) => true,
            Self::OfText(metric) => metric.reads_all_positions(),
            _ => false,
        }
    }

    /// Refuses a metric of all texts together, for an analysis that measures each text for itself.
    pub(super) fn check_of_each(&self, analysis: &str) -> Result<()> {
        match self {
            Self::OfText(metric) if metric.is_of_all_together() => candle_core::bail!(
                "{analysis}: {metric:?} measures all texts together, and here each counts for itself; give a metric of each text, such as \
                 FunctionMetric::of_each"
            ),
            _ => Ok(()),
        }
    }

    /// The metric of each row of logits, in f32 or wider; differentiable.
    ///
    /// # Shapes
    /// `logits` (.., V) -> (..)
    ///
    /// # Errors
    /// When a token is not below V, there is no answer, or the metric is one of whole texts.
    pub fn of(&self, logits: &Tensor) -> Result<Tensor> {
        let v = logits.dim(D::Minus1)?;
        self.check(v)?;
        let logits = logits.to_dtype(candle_fused::accumulator(logits.dtype()))?;
        let of = |x: &Tensor, token: u32| x.narrow(D::Minus1, token as usize, 1)?.squeeze(D::Minus1);
        let mean = |tokens: &[u32]| {
            let all = tokens.iter().map(|&token| of(&logits, token)).collect::<Result<Vec<_>>>()?;
            if let [only] = &all[..] { Ok(only.clone()) } else { Tensor::stack(&all, 0)?.mean(0) }
        };
        match self {
            Self::LogProb(token) => of(&log_softmax(&logits, D::Minus1)?, *token),
            Self::Logit(token) => of(&logits, *token),
            Self::Probability { answers, against } => {
                let log_p = log_softmax(&logits, D::Minus1)?;
                let p_of_any = |tokens: &[u32]| {
                    let each = tokens.iter().map(|&token| of(&log_p, token)?.exp());
                    Tensor::stack(&each.collect::<Result<Vec<_>>>()?, 0)?.sum(0)
                };
                let p = p_of_any(answers)?;
                if against.is_empty() { Ok(p) } else { p - p_of_any(against)? }
            }
            Self::LogitDifference { answers, against } => mean(answers)? - mean(against)?,
            Self::At(..) | Self::OfText(_) => {
                candle_core::bail!("metric: {self:?} is one of whole texts, not of single positions")
            }
        }
    }

    /// Refuses tokens that are not below V, a token that is an answer twice, and a side without any answer.
    ///
    /// # Errors
    /// When the metric breaks one of these rules.
    pub fn check(&self, v: usize) -> Result<()> {
        let (answers, against) = match self {
            Self::LogProb(token) | Self::Logit(token) => (std::slice::from_ref(token), &[][..]),
            Self::OfText(_) => return Ok(()),
            Self::At(positions, _) if positions.is_empty() => {
                candle_core::bail!("a metric of several positions needs at least one")
            }
            Self::At(_, metric) if metric.reads_all_positions() => {
                candle_core::bail!("a metric of whole texts cannot be taken at single positions")
            }
            Self::At(_, metric) => return metric.check(v),
            Self::LogitDifference { answers, against } if answers.is_empty() || against.is_empty() => {
                candle_core::bail!("a logit difference needs at least one right and one wrong answer")
            }
            Self::Probability { answers, .. } if answers.is_empty() => {
                candle_core::bail!("a probability needs at least one right answer")
            }
            Self::LogitDifference { answers, against } | Self::Probability { answers, against } => {
                (&answers[..], &against[..])
            }
        };
        if let Some(token) = answers.iter().chain(against).find(|&&token| token as usize >= v) {
            candle_core::bail!("target {token} is not in 0..{v} (vocab_size)")
        }
        if let Some(token) = answers.iter().find(|token| against.contains(token)) {
            candle_core::bail!("token {token} is both a right and a wrong answer")
        }
        for side in [answers, against] {
            if let Some(token) =
                side.iter().enumerate().find_map(|(i, token)| side[..i].contains(token).then_some(token))
            {
                candle_core::bail!("token {token} is an answer twice")
            }
        }
        Ok(())
    }
}

/// f64 on the CPU: some GPUs have no f64.
pub(super) fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}
