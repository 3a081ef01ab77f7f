//! One number that says how a prediction came out.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::log_softmax;

/// What to measure of the prediction after a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Metric {
    /// The log-probability of a token, in nats.
    LogProb(u32),
    /// The logit of a token.
    Logit(u32),
    /// The logit of `answer` less that of `against`: how much more the model expects the one than the other (Wang et al. 2022,
    /// "Interpretability in the Wild"). In nats, it is the logarithm of the ratio of their probabilities.
    LogitDifference {
        /// The token that the model should expect.
        answer: u32,
        /// The token to compare it with.
        against: u32,
    },
}

impl Metric {
    /// The metric of each row of logits, in f32 or wider; differentiable.
    ///
    /// # Shapes
    /// `logits` (.., V) -> (..)
    ///
    /// # Errors
    /// When a token is not below V.
    pub fn of(self, logits: &Tensor) -> Result<Tensor> {
        let v = logits.dim(D::Minus1)?;
        for token in self.tokens() {
            if token as usize >= v {
                candle_core::bail!("target {token} is not in 0..{v} (vocab_size)")
            }
        }
        let logits = logits.to_dtype(candle_fused::accumulator(logits.dtype()))?;
        let of = |x: &Tensor, token: u32| x.narrow(D::Minus1, token as usize, 1)?.squeeze(D::Minus1);
        match self {
            Self::LogProb(token) => of(&log_softmax(&logits, D::Minus1)?, token),
            Self::Logit(token) => of(&logits, token),
            Self::LogitDifference { answer, against } => of(&logits, answer)? - of(&logits, against)?,
        }
    }

    fn tokens(self) -> Vec<u32> {
        match self {
            Self::LogProb(token) | Self::Logit(token) => vec![token],
            Self::LogitDifference { answer, against } => vec![answer, against],
        }
    }
}

/// f64 on the CPU: some GPUs have no f64.
pub(super) fn wide(x: &Tensor) -> Result<Tensor> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}
