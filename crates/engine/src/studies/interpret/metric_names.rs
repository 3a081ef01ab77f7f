//! Metrics by name.

use crate::words::Choices;
use serde::{Deserialize, Serialize};

/// A metric by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricName {
    /// The mean logit of the right answers less that of the wrong ones.
    LogitDifference,
    /// The log-probability of the only right answer.
    LogProb,
    /// The probability that any of the right answers comes next.
    Probability,
    /// The probability that any of the right answers comes next less that of any of the wrong ones.
    ProbabilityDifference,
    /// The mean surprise of the clean text's tokens.
    Loss,
    /// The divergence of the prediction after the text from the clean run's.
    Kl,
}

impl MetricName {
    /// Whether it compares right answers with wrong ones.
    pub(super) const fn is_difference(self) -> bool {
        matches!(self, Self::LogitDifference | Self::ProbabilityDifference)
    }

    /// Whether it is a probability, or a difference of some.
    pub(super) const fn is_probability(self) -> bool {
        matches!(self, Self::Probability | Self::ProbabilityDifference)
    }
}

/// Metrics by name.
pub const METRICS: &Choices<MetricName> = &[
    ("logit-difference", MetricName::LogitDifference),
    ("log-prob", MetricName::LogProb),
    ("probability", MetricName::Probability),
    ("probability-difference", MetricName::ProbabilityDifference),
    ("loss", MetricName::Loss),
    ("kl", MetricName::Kl),
];
