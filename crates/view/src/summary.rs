//! Sums up a head in five numbers and the baseline of three of them.

use crate::rows::{check, lower_triangle};
use candle_core::{Result, Tensor};
use serde::Serialize;

/// The weights of one head, averaged over the queries that see at least two keys.
///
/// The query at position 0 does not count: it sees only one key, so its weight is always on itself, which is also the
/// first token. For a text of one token, though, the averages are over that token.
///
/// The masses on the previous and on the first token overlap: at position 1 the previous token is the
/// first, and that query counts in both, so the three masses of a short text can sum to more than 1. A
/// query whose row is all zeros counts as 0.
///
/// A NaN among the weights turns all numbers that depend on it into NaN (`null` in JSON).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HeadSummary {
    /// Shannon entropy of a query's weights in nats: 0 for one token, `ln n` for n equal weights.
    pub entropy: f32,
    /// The mean distance that a query looks back, in tokens: the sum over keys of weight times distance.
    pub mean_distance: f32,
    /// The weight on the query's own token.
    pub on_self: f32,
    /// The weight on the previous token; 0 in a text of one token.
    pub on_previous: f32,
    /// The weight on the first token of the text.
    pub on_first: f32,
    /// The value of each of the three masses if attention were uniform: the mean of 1 / (visible keys).
    pub uniform: f32,
}

/// The summary of each head.
///
/// Only the keys up to a query's position count: it ignores weights above the diagonal. It sums in f64.
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
    // Head by head, so that only one head is copied to f64 at a time.
    let head = |h| -> Result<HeadSummary> {
        let rows = lower_triangle::<f64>(&weights.get(h)?, "summarize")?;
        Ok(average(s - t, &rows.iter().map(|row| query(row)).collect::<Vec<_>>()))
    };
    (0..heads).map(head).collect()
}

/// Numbers about each query of one head, for when the weights themselves are unknown: T of each kind, as
/// [`HeadSummary`] defines them for one query.
#[derive(Debug, Clone, Copy)]
pub struct QueryNumbers<'a> {
    /// Entropy in nats.
    pub entropy: &'a [f32],
    /// Tokens back.
    pub mean_distance: &'a [f32],
    /// The weight on the query's own token.
    pub on_self: &'a [f32],
    /// The weight on the token before.
    pub on_previous: &'a [f32],
    /// The weight on the first token.
    pub on_first: &'a [f32],
}

impl HeadSummary {
    /// The summary that [`summarize`] would compute from the weights of these queries, which come after `past` tokens.
    ///
    /// # Errors
    /// When there is no query, or the kinds differ in length.
    pub fn of_queries(past: usize, numbers: QueryNumbers) -> Result<Self> {
        let QueryNumbers { entropy, mean_distance, on_self, on_previous, on_first } = numbers;
        let all = [entropy, mean_distance, on_self, on_previous, on_first];
        let t = entropy.len();
        if t == 0 || all.iter().any(|numbers| numbers.len() != t) {
            candle_core::bail!(
                "HeadSummary: {:?} numbers of queries, expected the same number of each, and at least one",
                all.map(<[f32]>::len)
            )
        }
        let queries: Vec<_> = (0..t).map(|i| all.map(|numbers| f64::from(numbers[i]))).collect();
        Ok(average(past, &queries))
    }
}

/// A query's entropy, distance, and masses on itself, the previous and the first token.
fn query(row: &[f64]) -> [f64; 5] {
    let (mut entropy, mut distance) = (0.0, 0.0);
    for (back, &w) in row.iter().rev().enumerate() {
        // 0·ln 0 is 0, its limit.
        if w != 0.0 {
            entropy -= w * w.ln();
        }
        distance += w * back as f64;
    }
    let [itself, previous] = [0, 1].map(|back| row.iter().rev().nth(back).copied().unwrap_or_default());
    [entropy, distance, itself, previous, row.first().copied().unwrap_or_default()]
}

/// The means of the numbers from [`query`], for queries after `past` tokens.
#[allow(clippy::cast_possible_truncation)] // f32 is what is shown
fn average(past: usize, queries: &[[f64; 5]]) -> HeadSummary {
    // Each query sees one key more than the one before, so at most the first sees only one.
    let alone = usize::from(past == 0 && queries.len() > 1);
    let queries = &queries[alone..];
    let mean = |sum: f64| (sum / queries.len() as f64) as f32;
    let of = |i: usize| mean(queries.iter().map(|query| query[i]).sum());
    let seen = past + alone + 1..past + alone + 1 + queries.len();
    HeadSummary {
        entropy: of(0),
        mean_distance: of(1),
        on_self: of(2),
        on_previous: of(3),
        on_first: of(4),
        uniform: mean(seen.map(|keys| 1.0 / keys as f64).sum()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::focus::{FOCUS_THRESHOLD, Focus, Looks};
    use candle_core::{DType, Device};

    fn one(rows: &[[f32; 4]; 4]) -> Result<HeadSummary> {
        let all = summarize(&Tensor::new(rows, &Device::Cpu)?.unsqueeze(0)?)?;
        assert_eq!(all.len(), 1);
        Ok(all[0])
    }

    fn assert_near(found: HeadSummary, expected: [f64; 6]) {
        let HeadSummary { entropy, mean_distance, on_self, on_previous, on_first, uniform } = found;
        let found = [entropy, mean_distance, on_self, on_previous, on_first, uniform].map(f64::from);
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
    /// The mean of 1/2, 1/3 and 1/4.
    const BASELINE: f64 = 13.0 / 36.0;

    /// T queries after `past` tokens that give `share` of their weight to the key that `target` finds for
    /// a position, and spread the rest evenly.
    fn head(past: usize, t: usize, share: f32, target: impl Fn(usize) -> usize) -> Result<HeadSummary> {
        let weight = |at: usize, key: usize| {
            let even = (1.0 - share) / (at + 1) as f32;
            if key == target(at) { share + even } else { even }
        };
        let rows = (past..past + t).flat_map(|at| (0..past + t).map(move |key| (at, key)));
        let weights: Vec<f32> = rows.map(|(at, key)| if key <= at { weight(at, key) } else { 0.0 }).collect();
        Ok(summarize(&Tensor::from_vec(weights, (1, t, past + t), &Device::Cpu)?)?[0])
    }

    #[test]
    fn uniform_attention() -> Result<()> {
        // Over positions 1 to 3: entropy (ln 2 + ln 3 + ln 4) / 3, distance (1/2 + 1 + 3/2) / 3.
        assert_near(one(&UNIFORM)?, [24f64.ln() / 3.0, 1.0, BASELINE, BASELINE, BASELINE, BASELINE]);
        Ok(())
    }

    #[test]
    fn uniform_attention_is_spread_at_any_length() -> Result<()> {
        for t in 2..=64 {
            for past in [0, 1, 5] {
                let summary = head(past, t, 0.0, |at| at)?;
                for mass in [summary.on_self, summary.on_previous, summary.on_first] {
                    assert!((mass - summary.uniform).abs() < 1e-6, "{past} + {t}: {summary:?}");
                }
                assert_eq!(summary.focus(Looks::NONE), Focus::Spread, "{past} + {t}: {summary:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_purpose_is_recognized_whole_and_in_part() -> Result<()> {
        let targets: [fn(usize) -> usize; 3] = [|at| at, |at| at.saturating_sub(1), |_| 0];
        for (focus, target) in [Focus::Itself, Focus::Previous, Focus::First].into_iter().zip(targets) {
            let pure = head(0, 8, 1.0, target)?;
            assert_eq!(pure.focus(Looks::NONE), focus, "{pure:?}");
            // (1/2 + 1/3 + .. + 1/8) / 7
            assert!((f64::from(pure.uniform) - 481.0 / 1960.0).abs() < 1e-6, "{pure:?}");
            // The excess equals the share on the target, so the threshold lies between these two.
            assert_eq!(head(0, 8, FOCUS_THRESHOLD + 0.01, target)?.focus(Looks::NONE), focus);
            assert_eq!(head(0, 8, FOCUS_THRESHOLD - 0.01, target)?.focus(Looks::NONE), Focus::Spread);
        }
        Ok(())
    }

    #[test]
    fn at_position_1_the_first_token_is_the_previous() -> Result<()> {
        let summary = head(0, 2, 1.0, |_| 0)?;
        assert_near(summary, [0.0, 1.0, 0.0, 1.0, 1.0, 0.5]);
        assert_eq!(summary.focus(Looks::NONE), Focus::Previous, "the earlier of two alike");
        Ok(())
    }

    #[test]
    fn a_row_of_zeros_counts_as_0() -> Result<()> {
        let mut rows = UNIFORM;
        rows[2] = [0.; 4];
        // Entropy (ln 2 + ln 4) / 3, distance (1/2 + 3/2) / 3, each mass (1/2 + 1/4) / 3.
        assert_near(one(&rows)?, [8f64.ln() / 3.0, 2.0 / 3.0, 0.25, 0.25, 0.25, BASELINE]);
        let empty = one(&[[0.; 4]; 4])?;
        assert_near(empty, [0.0, 0.0, 0.0, 0.0, 0.0, BASELINE]);
        assert_eq!(empty.focus(Looks::NONE), Focus::Spread);
        Ok(())
    }

    #[test]
    fn heads_of_one_purpose() -> Result<()> {
        let identity = one(&IDENTITY)?;
        assert_near(identity, [0.0, 0.0, 1.0, 0.0, 0.0, BASELINE]);
        assert_eq!(identity.focus(Looks::NONE), Focus::Itself);
        assert!(identity.entropy.is_sign_positive(), "-0.00 in a table puzzles");

        let previous = one(&PREVIOUS)?;
        assert_near(previous, [0.0, 1.0, 0.0, 1.0, 1.0 / 3.0, BASELINE]);
        assert_eq!(previous.focus(Looks::NONE), Focus::Previous);

        let first = one(&FIRST)?;
        assert_near(first, [0.0, 2.0, 0.0, 1.0 / 3.0, 1.0, BASELINE]);
        assert_eq!(first.focus(Looks::NONE), Focus::First);
        Ok(())
    }

    #[test]
    fn one_query_after_a_cache_sits_at_the_end() -> Result<()> {
        let weights = Tensor::new(&[[[0.2f64, 0.3, 0.5]]], &Device::Cpu)?; // (1, 1, 3)
        let entropy = -(0.2 * 0.2f64.ln() + 0.3 * 0.3f64.ln() + 0.5 * 0.5f64.ln());
        assert_near(summarize(&weights)?[0], [entropy, 0.2 * 2.0 + 0.3, 0.5, 0.3, 0.2, 1.0 / 3.0]);
        Ok(())
    }

    #[test]
    fn a_single_token_attends_to_itself() -> Result<()> {
        let single = summarize(&Tensor::ones((1, 1, 1), DType::F32, &Device::Cpu)?)?[0];
        assert_near(single, [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
        assert_eq!(single.focus(Looks::NONE), Focus::Itself);
        // A softmax may sum to a little more than 1.
        assert_eq!(HeadSummary { on_self: 1.0 + f32::EPSILON, ..single }.focus(Looks::NONE), Focus::Itself);
        assert_eq!(HeadSummary { on_self: f32::NAN, ..single }.focus(Looks::NONE), Focus::Spread);
        Ok(())
    }

    #[test]
    fn heads_keep_their_order_and_halves_are_taken() -> Result<()> {
        let weights = Tensor::new(&[IDENTITY, FIRST, PREVIOUS], &Device::Cpu)?; // (3, 4, 4)
        let wide = summarize(&weights)?;
        let focus: Vec<String> = wide.iter().map(|s| s.focus(Looks::NONE).to_string()).collect();
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
    fn nan_stays_nan_and_wrong_shapes_are_refused() -> Result<()> {
        let mut rows = UNIFORM;
        rows[3][1] = f32::NAN;
        let summary = one(&rows)?;
        assert!(summary.entropy.is_nan() && summary.mean_distance.is_nan());
        assert!((summary.on_self - 13.0 / 36.0).abs() < 1e-6);
        // A NaN among the averaged numbers does not affect the baseline, and never wins.
        rows[3] = [f32::NAN; 4];
        let summary = one(&rows)?;
        assert!(summary.on_self.is_nan() && summary.on_previous.is_nan() && summary.on_first.is_nan());
        assert!((f64::from(summary.uniform) - BASELINE).abs() < 1e-6);
        assert_eq!(summary.focus(Looks::NONE), Focus::Spread);

        let numbers = QueryNumbers {
            entropy: &[0.0],
            mean_distance: &[],
            on_self: &[],
            on_previous: &[],
            on_first: &[],
        };
        assert!(HeadSummary::of_queries(0, numbers).is_err());
        let flat = Tensor::zeros((4, 4), DType::F32, &Device::Cpu)?;
        let err = summarize(&flat).expect_err("rank 2").to_string();
        assert!(err.contains("[4, 4]") && err.contains("(H, T, S)"), "{err}");
        assert!(summarize(&Tensor::zeros((2, 4, 3), DType::F32, &Device::Cpu)?).is_err());
        assert!(summarize(&Tensor::zeros((2, 0, 3), DType::F32, &Device::Cpu)?).is_err());
        Ok(())
    }
}
