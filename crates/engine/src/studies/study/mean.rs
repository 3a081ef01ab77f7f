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

/// Three digits behind the point; with `#`, three digits in all of a mean below 0.01, such as that of a probability.
impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.mean.abs();
        let is_small = f.alternate() && (1e-6..0.01).contains(&size);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 3 to 11
        let digits = if is_small { (2.0 - size.log10().floor()) as usize } else { 3 };
        write!(f, "{:+.digits$}", self.mean)?;
        self.error.map_or(Ok(()), |error| write!(f, " ± {error:.digits$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_mean_has_three_digits_if_it_is_asked_for_them() {
        let of = |mean, error| Mean { mean, error };
        assert_eq!(of(0.000_412_3, None).to_string(), "+0.000");
        assert_eq!(format!("{:#}", of(0.000_412_3, Some(0.000_02))), "+0.000412 ± 0.000020");
        assert_eq!(format!("{:#}", of(-0.5, Some(0.25))), "-0.500 ± 0.250");
        assert_eq!(format!("{:#}", of(0.0, None)), "+0.000");
        assert_eq!(format!("{:#}", of(f64::NAN, None)), "NaN");
    }
}
