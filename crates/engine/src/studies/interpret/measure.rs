//! The metric of studies of pairs: the difference of answers, another metric by its name, or one of the caller's own.

pub use super::metric_names::{METRICS, MetricName};

use super::over_pairs::on_pairs;
use crate::interventions::Applied;
use crate::studies::study::Run;
use crate::texts::{AnswerSides, PairsInput};
use crate::words::name_of;
use anyhow::{Context, bail};
use gpt2_circuits::discovery::Pair;
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::{Divergence, Loss, Metric};
use gpt2_model::hooks::Hooks;
use serde_json::Value;
use std::sync::Arc;

/// The pairs of a study as they are measured, and the interventions of its runs.
pub(super) struct Measured {
    pub(super) pairs: Vec<Pair>,
    pub(super) applied: Applied,
    /// The metric; `None` for that of the answers.
    pub(super) metric: Option<String>,
    /// Whether it compares right answers with wrong ones, so that it should be above 0.
    pub(super) is_difference: bool,
    /// The source of the pairs with their answers, and the metric, for the outputs of a run.
    pub(super) facts: Value,
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
    let is_named = |names: &[MetricName]| name.is_some_and(|name| names.contains(&name));
    let by_answers = run.metric.is_none() && !is_named(&[MetricName::Loss, MetricName::Kl]);
    let sides = AnswerSides {
        right: by_answers,
        wrong: by_answers && !is_named(&[MetricName::LogProb, MetricName::Probability]),
    };
    if run.metric.is_some() && name.is_some() {
        bail!("{option}: there are two; give one");
    }
    if let Some(pair) = input.one() {
        let metric =
            || name.map_or("a function".to_owned(), |name| spelling.given("metric", name_of(METRICS, &name)));
        if !sides.right && !pair.correct.all().is_empty() {
            bail!("{}: {} does not read it; leave it out", spelling.option("answer"), metric());
        }
        if !sides.wrong && pair.incorrect.is_some() {
            bail!("{}: {} does not read it; leave it out", spelling.option("against"), metric());
        }
    }
    if !positions.is_empty() && !by_answers {
        bail!("{}: are for metrics of answers", spelling.option("positions"));
    }
    let mut pairs = input.read(run.opened, sides, run.observer)?;
    let metric = said(run, name, positions);
    let mut facts = input.facts(&pairs);
    if let Some(metric) = &metric {
        facts["metric"] = metric.as_str().into();
    }
    let is_difference =
        sides.wrong && pairs.iter().all(|pair| matches!(pair.metric, Metric::LogitDifference { .. }));
    let applied = on_pairs(run, input, &pairs)?;
    let hooks = (!applied.list.is_empty()).then_some(&applied.list as &dyn Hooks);
    for (place, pair) in pairs.iter_mut().enumerate() {
        let metric = match (run.metric, name) {
            (Some(own), _) => own(place),
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
    Ok(Measured { pairs, applied, metric, is_difference, facts })
}

/// The metric in words.
fn said(run: &Run, name: Option<MetricName>, positions: &[usize]) -> Option<String> {
    let what = match (run.metric.map(|own| own(0)), name) {
        (Some(Metric::OfText(own)), _) => format!("{own:?}"),
        (Some(own), _) => format!("{own:?}"),
        (None, Some(name)) => name_of(METRICS, &name).to_owned(),
        (None, None) if positions.is_empty() => return None,
        (None, None) => "the metric of the answers".to_owned(),
    };
    if positions.is_empty() { Some(what) } else { Some(format!("{what} at positions {positions:?}")) }
}

/// The metric of this name for a pair whose metric is that of its answers.
fn of_name(run: &Run, pair: &Pair, name: MetricName, hooks: Option<&dyn Hooks>) -> anyhow::Result<Metric> {
    let spelling = run.opened.spelling;
    let (answers, against) = match &pair.metric {
        Metric::LogitDifference { answers, against } | Metric::Probability { answers, against } => {
            (&answers[..], &against[..])
        }
        Metric::LogProb(token) => (std::slice::from_ref(token), &[][..]),
        other => bail!("{other:?} has no answers"),
    };
    if name.is_difference() && against.is_empty() {
        bail!("{}: a difference needs wrong answers, too", spelling.option("against"));
    }
    Ok(match name {
        MetricName::LogitDifference => pair.metric.clone(),
        MetricName::LogProb => match answers {
            [only] => Metric::LogProb(*only),
            _ => bail!(
                "{}: is of one right answer; give one",
                spelling.given("metric", name_of(METRICS, &name))
            ),
        },
        MetricName::Probability => Metric::Probability { answers: answers.to_vec(), against: vec![] },
        MetricName::ProbabilityDifference => {
            Metric::Probability { answers: answers.to_vec(), against: against.to_vec() }
        }
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
