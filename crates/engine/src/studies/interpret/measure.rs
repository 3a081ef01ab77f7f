//! The metric of studies of pairs: the difference of answers, another metric by its name, or one of the caller's own.

use super::over_pairs::on_pairs;
use crate::interventions::Applied;
use crate::studies::study::Run;
use crate::texts::PairsInput;
use crate::words::{Choices, name_of};
use anyhow::{Context, bail};
use gpt2_circuits::discovery::Pair;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{Divergence, Loss, Metric};
use gpt2_model::hooks::Hooks;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A metric by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricName {
    /// The mean logit of the right answers less that of the wrong ones.
    LogitDifference,
    /// The log-probability of the only right answer.
    LogProb,
    /// The probability of the only right answer.
    Probability,
    /// The mean surprise of the clean text's tokens.
    Loss,
    /// The divergence of the prediction after the text from the clean run's.
    Kl,
}

/// Metrics by name.
pub const METRICS: &Choices<MetricName> = &[
    ("logit-difference", MetricName::LogitDifference),
    ("log-prob", MetricName::LogProb),
    ("probability", MetricName::Probability),
    ("loss", MetricName::Loss),
    ("kl", MetricName::Kl),
];

/// The pairs of a study as they are measured, and the interventions of its runs.
pub(super) struct Measured {
    pub(super) pairs: Vec<Pair>,
    pub(super) applied: Applied,
    /// The metric; `None` for that of the answers.
    pub(super) metric: Option<String>,
}

/// Reads the pairs of a study and gives them its metric: `name` at `positions`, the run's own, or that of their answers.
pub(super) fn measured(
    run: &Run,
    input: &PairsInput,
    name: Option<MetricName>,
    positions: &[usize],
) -> anyhow::Result<Measured> {
    let spelling = run.opened.spelling;
    let option = spelling.option("metric");
    let by_answers = run.metric.is_none() && !matches!(name, Some(MetricName::Loss | MetricName::Kl));
    if run.metric.is_some() && name.is_some() {
        bail!("{option}: there are two; give one");
    }
    if !positions.is_empty() && !by_answers {
        bail!("{}: are for metrics of answers", spelling.option("positions"));
    }
    let mut pairs = input.read(run.opened, by_answers, run.observer)?;
    let applied = on_pairs(run, input, &pairs)?;
    let hooks = (!applied.list.is_empty()).then_some(&applied.list as &dyn Hooks);
    for (place, pair) in pairs.iter_mut().enumerate() {
        let metric = match (run.metric, name) {
            (Some(own), _) => own.clone(),
            (None, Some(name)) => of_name(run, pair, name, hooks).with_context(|| format!("pair {place}"))?,
            (None, None) => pair.metric.clone(),
        };
        pair.metric =
            if positions.is_empty() { metric } else { Metric::At(positions.to_vec(), Box::new(metric)) };
        if let Some(position) = positions.iter().find(|&&position| position >= pair.clean.len()) {
            let given = spelling.given("positions", position);
            bail!("{given}: pair {place} has {} tokens", pair.clean.len());
        }
    }
    Ok(Measured { pairs, applied, metric: said(run, name, positions) })
}

/// The metric in words.
fn said(run: &Run, name: Option<MetricName>, positions: &[usize]) -> Option<String> {
    let what = match (run.metric, name) {
        (Some(Metric::OfText(own)), _) => format!("{own:?}"),
        (Some(metric), _) => format!("{metric:?}"),
        (None, Some(name)) => name_of(METRICS, &name).to_owned(),
        (None, None) if positions.is_empty() => return None,
        (None, None) => "the metric of the answers".to_owned(),
    };
    if positions.is_empty() { Some(what) } else { Some(format!("{what} at positions {positions:?}")) }
}

/// The metric of this name for a pair whose metric is that of its answers.
fn of_name(run: &Run, pair: &Pair, name: MetricName, hooks: Option<&dyn Hooks>) -> anyhow::Result<Metric> {
    let spelling = run.opened.spelling;
    let right = || match &pair.metric {
        Metric::LogProb(token) => Ok(*token),
        Metric::LogitDifference { answers, .. } if answers.len() == 1 => Ok(answers[0]),
        _ => {
            let option = spelling.given("metric", name_of(METRICS, &name));
            bail!("{option}: is of one right answer; give one")
        }
    };
    Ok(match name {
        MetricName::LogitDifference => match &pair.metric {
            difference @ Metric::LogitDifference { .. } => difference.clone(),
            _ => bail!("{}: a difference needs wrong answers, too", spelling.option("against")),
        },
        MetricName::LogProb => Metric::LogProb(right()?),
        MetricName::Probability => Metric::Probability(right()?),
        MetricName::Loss => {
            if pair.clean.len() < 2 {
                bail!("a text of one token predicts none of its own");
            }
            Metric::OfText(Arc::new(Loss { texts: vec![pair.clean.clone()] }))
        }
        MetricName::Kl => {
            let ids = run.opened.input_ids(&pair.clean)?;
            let args = ForwardArgs { hooks, last_logits_only: true, ..ForwardArgs::default() };
            let logits = run.opened.model.forward(&ids, args)?.logits;
            Metric::OfText(Arc::new(Divergence::from(&logits)?))
        }
    })
}
