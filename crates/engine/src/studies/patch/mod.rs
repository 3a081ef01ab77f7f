//! Which parts of the model carry the difference between two texts, or between the texts of many pairs.

mod many;
mod one;
mod paths;

use super::run::{Outcome, Run, Study};
use crate::texts::PairsInput;
use anyhow::bail;
use gpt2_circuits::discovery::Freeze;
use paths::FreezeName;
use serde::{Deserialize, Serialize};

pub use many::{HeadMeans, LayerMeans, PairDifferences, PairsReport};
pub use one::{HeadPatch, LayerPatch, PairReport};
pub use paths::{FREEZES, PathOptions, PathPatch, PathReport, PathsText};

/// The options of patching.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The pairs of texts.
    pub pairs: PairsInput,
    /// Whether to patch each head at each position, too; for a single pair.
    pub by_position: bool,
    /// Senders and readers to patch, too.
    pub path: Vec<PathsText>,
    /// What stays as in the clean run between them.
    #[serde(with = "FreezeName")]
    pub freeze: Freeze,
    /// Whether to leave out attention and MLPs at each position, which take a run each, and the warning about estimates, which
    /// the caller shows. It is for faces that show a summary, and no option.
    #[serde(skip)]
    pub summary: bool,
}

/// The shares of one pair, or their means over many.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Of a pair by itself.
    One(Box<PairReport>),
    /// Of several pairs, or those of a file.
    Many(Box<PairsReport>),
}

impl Study for Options {
    const NAME: &'static str = "patch";
    // Streams are patched, too, and within a circuit no part reads one as a whole.
    const REFUSES: &'static [&'static str] = &["circuit"];
    type Report = Report;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let pairs = self.pairs.read(run.opened, run.observer)?;
        match (self.pairs.one(), &pairs[..]) {
            (Some(texts), [pair]) => self.one(run, texts, pair),
            _ if self.by_position => {
                let option = run.opened.spelling.switch("by-position");
                bail!("{option}: positions of several pairs do not correspond; give one pair")
            }
            _ => self.many(run, &pairs),
        }
    }
}

/// Below this correlation, the estimates say little of the exact numbers.
const AGREEING: f64 = 0.5;

/// Pearson's correlation of exact and estimated numbers; `None` if either does not vary.
fn correlation<T>(heads: &[T], both: impl Fn(&T) -> (f64, f64)) -> Option<f64> {
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

impl Options {
    /// Tells the reader of all numbers when the estimates mislead; the reader of a summary sees it among the results.
    fn warn(&self, run: &Run, heads: usize, correlation: Option<f64>) {
        let agreement = agreement(heads, correlation).filter(|text| text.starts_with("warning"));
        agreement.filter(|_| !self.summary).iter().for_each(|text| run.observer.note(text));
    }
}

/// The smallest difference that shares can be taken of.
const SMALLEST: f64 = 1e-6;

/// Refuses texts with the same metric, and notes where the clean one makes the wrong answer likelier. `clean` is its metric,
/// `difference` how much larger that is than the corrupted text's; `right` and `wrong` name the answers, if it compares some.
fn check_difference(
    run: &Run,
    clean: f64,
    difference: f64,
    right: &str,
    wrong: Option<&str>,
) -> anyhow::Result<()> {
    if difference.abs() < SMALLEST {
        bail!(
            "the logit difference is {clean:.4} after either prompt, so there is nothing to bring back: choose prompts and answers \
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
