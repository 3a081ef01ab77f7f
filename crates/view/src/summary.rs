//! What a head does, in five numbers.

use crate::triangle::{check, lower_triangle};
use candle_core::{Result, Tensor};
use serde::Serialize;
use std::fmt;

/// The least mean weight that makes a head one that looks at itself, the previous or the first token.
///
/// Below one half, because the first token soaks up part of every head's weight.
pub const FOCUS_THRESHOLD: f32 = 0.4;

/// The weights of one head, averaged over its queries.
///
/// The three masses overlap at the start of a text: at position 0 the token itself is the first, and at
/// position 1 the previous token is the first. Each query counts in every mass that applies to it, so
/// the masses of a short text can sum to more than 1. A query whose row is all zeros counts as 0.
///
/// A NaN among the weights makes the numbers that it enters NaN (`null` in JSON).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadSummary {
    /// Shannon entropy of a query's weights in nats: 0 for one token, `ln n` for n alike.
    pub entropy: f32,
    /// How far back a query looks, in tokens: the sum over keys of weight times distance.
    pub mean_distance: f32,
    /// The weight on the query's own token.
    pub on_self: f32,
    /// The weight on the token before, over the queries that have one; 0 where none has.
    pub on_previous: f32,
    /// The weight on the first token of the text.
    pub on_first: f32,
}

/// Where a head looks most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Focus {
    /// The query's own token.
    Itself,
    /// The token before.
    Previous,
    /// The first token of the text.
    First,
    /// None of these.
    Spread,
}

impl fmt::Display for Focus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Itself => "itself",
            Self::Previous => "previous",
            Self::First => "first",
            Self::Spread => "spread",
        })
    }
}

impl HeadSummary {
    /// The largest of the three masses if it is at least [`FOCUS_THRESHOLD`], else [`Focus::Spread`].
    ///
    /// Of equal masses the earlier in the order of [`Focus`] wins; a NaN never does.
    #[must_use]
    pub fn focus(&self) -> Focus {
        let masses = [
            (Focus::Itself, self.on_self),
            (Focus::Previous, self.on_previous),
            (Focus::First, self.on_first),
        ];
        let mut best = (Focus::Spread, f32::NEG_INFINITY);
        for (focus, mass) in masses {
            if mass >= FOCUS_THRESHOLD && mass > best.1 {
                best = (focus, mass);
            }
        }
        best.0
    }
}

/// The summary of each head.
///
/// Only the keys up to a query's position count: what stands above the diagonal is not read. Sums are
/// taken in f64.
///
/// # Shapes
/// `weights` (H, T, S), of any float dtype and on any device -> H summaries
///
/// # Errors
/// When `weights` is not of rank 3, has no query, or has more queries than keys.
pub fn summarize(weights: &Tensor) -> Result<Vec<HeadSummary>> {
    let &[heads, t, s] = weights.dims() else {
        candle_core::bail!("summarize: weights have shape {:?}, expected (H, T, S)", weights.dims())
    };
    check(t, s, "summarize")?;
    // Head by head, so that the f64 copy is that of one head.
    (0..heads).map(|h| Ok(average(&lower_triangle(&weights.get(h)?, "summarize")?))).collect()
}

fn average(rows: &[Vec<f64>]) -> HeadSummary {
    let (mut entropy, mut distance) = (0.0, 0.0);
    let (mut itself, mut previous, mut first) = (0.0, 0.0, 0.0);
    let mut with_previous = 0_usize;
    for row in rows {
        for (back, &w) in row.iter().rev().enumerate() {
            // 0·ln 0 is 0, its limit.
            if w != 0.0 {
                entropy -= w * w.ln();
            }
            distance += w * back as f64;
        }
        itself += row.last().copied().unwrap_or_default();
        first += row.first().copied().unwrap_or_default();
        if let Some(&w) = row.iter().rev().nth(1) {
            previous += w;
            with_previous += 1;
        }
    }
    let queries = rows.len();
    HeadSummary {
        entropy: mean(entropy, queries),
        mean_distance: mean(distance, queries),
        on_self: mean(itself, queries),
        on_previous: mean(previous, with_previous),
        on_first: mean(first, queries),
    }
}

#[allow(clippy::cast_possible_truncation)] // f32 is what is shown
fn mean(sum: f64, count: usize) -> f32 {
    if count == 0 { 0.0 } else { (sum / count as f64) as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn one(rows: &[[f32; 4]; 4]) -> Result<HeadSummary> {
        let all = summarize(&Tensor::new(rows, &Device::Cpu)?.unsqueeze(0)?)?;
        assert_eq!(all.len(), 1);
        Ok(all[0])
    }

    fn assert_near(found: HeadSummary, expected: [f64; 5]) {
        let HeadSummary { entropy, mean_distance, on_self, on_previous, on_first } = found;
        let found = [entropy, mean_distance, on_self, on_previous, on_first].map(f64::from);
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    const THIRD: f32 = 1.0 / 3.0;
    const UNIFORM: [[f32; 4]; 4] =
        [[1., 0., 0., 0.], [0.5, 0.5, 0., 0.], [THIRD, THIRD, THIRD, 0.], [0.25, 0.25, 0.25, 0.25]];
    const IDENTITY: [[f32; 4]; 4] = [[1., 0., 0., 0.], [0., 1., 0., 0.], [0., 0., 1., 0.], [0., 0., 0., 1.]];
    const PREVIOUS: [[f32; 4]; 4] = [[1., 0., 0., 0.], [1., 0., 0., 0.], [0., 1., 0., 0.], [0., 0., 1., 0.]];
    const FIRST: [[f32; 4]; 4] = [[1., 0., 0., 0.]; 4];

    #[test]
    fn uniform_attention() -> Result<()> {
        // Entropy (ln 1 + ln 2 + ln 3 + ln 4) / 4, distance (0 + 1/2 + 1 + 3/2) / 4,
        // self and first (1 + 1/2 + 1/3 + 1/4) / 4, previous (1/2 + 1/3 + 1/4) / 3.
        let expected = [24f64.ln() / 4.0, 0.75, 25.0 / 48.0, 13.0 / 36.0, 25.0 / 48.0];
        assert_near(one(&UNIFORM)?, expected);
        Ok(())
    }

    #[test]
    fn heads_of_one_purpose() -> Result<()> {
        let identity = one(&IDENTITY)?;
        assert_near(identity, [0.0, 0.0, 1.0, 0.0, 0.25]);
        assert_eq!(identity.focus(), Focus::Itself);
        assert!(identity.entropy.is_sign_positive(), "-0.00 in a table puzzles");

        let previous = one(&PREVIOUS)?;
        assert_near(previous, [0.0, 0.75, 0.25, 1.0, 0.5]);
        assert_eq!(previous.focus(), Focus::Previous);

        let first = one(&FIRST)?;
        assert_near(first, [0.0, 1.5, 0.25, 1.0 / 3.0, 1.0]);
        assert_eq!(first.focus(), Focus::First);
        Ok(())
    }

    #[test]
    fn one_query_after_a_cache_sits_at_the_end() -> Result<()> {
        let weights = Tensor::new(&[[[0.2f64, 0.3, 0.5]]], &Device::Cpu)?; // (1, 1, 3)
        let entropy = -(0.2 * 0.2f64.ln() + 0.3 * 0.3f64.ln() + 0.5 * 0.5f64.ln());
        assert_near(summarize(&weights)?[0], [entropy, 0.2 * 2.0 + 0.3, 0.5, 0.3, 0.2]);
        let single = summarize(&Tensor::ones((1, 1, 1), DType::F32, &Device::Cpu)?)?[0];
        assert_near(single, [0.0, 0.0, 1.0, 0.0, 1.0]);
        Ok(())
    }

    #[test]
    fn heads_keep_their_order_and_halves_are_taken() -> Result<()> {
        let weights = Tensor::new(&[IDENTITY, FIRST, PREVIOUS], &Device::Cpu)?; // (3, 4, 4)
        let wide = summarize(&weights)?;
        let focus: Vec<String> = wide.iter().map(|s| s.focus().to_string()).collect();
        assert_eq!(focus, ["itself", "first", "previous"]);
        assert_eq!(summarize(&weights.to_dtype(DType::BF16)?)?, wide);
        Ok(())
    }

    #[test]
    fn weights_above_the_diagonal_are_not_read() -> Result<()> {
        let mut rows = IDENTITY;
        rows[0] = [1., 7., f32::NAN, 9.];
        assert_eq!(one(&rows)?, one(&IDENTITY)?);
        Ok(())
    }

    #[test]
    fn focus_needs_the_threshold_and_ignores_nan() {
        let even = HeadSummary {
            entropy: 1.0,
            mean_distance: 2.0,
            on_self: 0.39,
            on_previous: 0.2,
            on_first: FOCUS_THRESHOLD,
        };
        assert_eq!(even.focus(), Focus::First);
        assert_eq!(HeadSummary { on_first: 0.39, ..even }.focus(), Focus::Spread);
        assert_eq!(HeadSummary { on_first: f32::NAN, ..even }.focus(), Focus::Spread);
        assert_eq!(HeadSummary { on_self: f32::NAN, ..even }.focus(), Focus::First);
    }

    #[test]
    fn nan_stays_nan_and_wrong_shapes_are_refused() -> Result<()> {
        let mut rows = UNIFORM;
        rows[3][1] = f32::NAN;
        let summary = one(&rows)?;
        assert!(summary.entropy.is_nan() && summary.mean_distance.is_nan());
        assert!((summary.on_self - 25.0 / 48.0).abs() < 1e-6);

        let flat = Tensor::zeros((4, 4), DType::F32, &Device::Cpu)?;
        let err = summarize(&flat).expect_err("rank 2").to_string();
        assert!(err.contains("[4, 4]") && err.contains("(H, T, S)"), "{err}");
        assert!(summarize(&Tensor::zeros((2, 4, 3), DType::F32, &Device::Cpu)?).is_err());
        assert!(summarize(&Tensor::zeros((2, 0, 3), DType::F32, &Device::Cpu)?).is_err());
        Ok(())
    }
}
