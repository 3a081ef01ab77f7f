//! The agreement of estimates with exact numbers, and whether there is a difference to share.

use crate::studies::Mean;
use crate::studies::interpret::measure::MetricName;
use crate::studies::interpret::over_pairs::are_alike;
use crate::studies::study::Run;
use anyhow::bail;

/// Below this correlation, the estimates say little of the exact numbers.
const AGREEING: f64 = 0.5;

/// Pearson's correlation of exact and estimated numbers; `None` if either does not vary.
pub(super) fn correlation<T>(heads: &[T], both: impl Fn(&T) -> (f64, f64)) -> Option<f64> {
    let n = heads.len() as f64;
    let (exact, estimated): (Vec<f64>, Vec<f64>) = heads.iter().map(both).unzip();
    let off = |values: Vec<f64>| -> Vec<f64> {
        let mean = values.iter().sum::<f64>() / n;
        values.into_iter().map(|x| x - mean).collect()
    };
    let exact = off(exact);
    let estimated = off(estimated);
    let sum = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let spread = (sum(&exact, &exact) * sum(&estimated, &estimated)).sqrt();
    (spread > 0.0).then(|| sum(&exact, &estimated) / spread)
}

/// A sentence on the correlation of all heads' estimates with the exact numbers, a warning if it is low; `None` for a
/// single head.
#[must_use]
pub fn agreement(heads: usize, correlation: Option<f64>) -> Option<String> {
    let found = match correlation {
        Some(correlation) => format!("correlate with the exact numbers by {correlation:.2}"),
        None if heads > 1 => "do not vary together with the exact numbers".to_owned(),
        None => return None,
    };
    let agree = format!("the estimates of all {heads} heads, from one backward pass, {found}");
    if correlation.is_some_and(|correlation| correlation >= AGREEING) {
        return Some(agree);
    }
    Some(format!("warning: {agree}: do not rely on them"))
}

/// Refuses texts with the same metric, and notes where the clean one makes the wrong answer likelier. `clean` is its metric,
/// `difference` how much larger that is than the corrupted text's; `right` and `wrong` name the answers, if it compares some.
pub(super) fn check_difference(
    run: &Run,
    clean: f64,
    difference: f64,
    right: &str,
    wrong: Option<&str>,
    metric: Option<MetricName>,
) -> anyhow::Result<()> {
    if are_alike(clean, clean - difference, metric) {
        let clean = Mean::of(&[clean]);
        bail!(
            "the metric is {clean:#} after either prompt, so there is nothing to bring back: choose prompts and answers \
             that tell the two apart"
        );
    }
    if let Some(wrong) = wrong.filter(|_| clean < 0.0) {
        run.observer.note(&format!(
            "the clean prompt makes {right} less likely than {wrong}: swap the prompts or the answers, if the model should get the \
             clean one right"
        ));
    }
    Ok(())
}
