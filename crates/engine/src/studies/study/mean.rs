//! A mean and how far it may be off.

use serde::Serialize;
use std::fmt;

/// A mean over pairs or draws, and its standard error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of the sample by the square root of its size; `None` for a single value.
    pub error: Option<f64>,
}

impl Mean {
    /// The mean of some values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        Self { mean, error: (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt()) }
    }
}

impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+.3}", self.mean)?;
        self.error.map_or(Ok(()), |error| write!(f, " ± {error:.3}"))
    }
}
