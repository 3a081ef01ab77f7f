//! Common parts of studies of pairs: interventions, the library's study, and provenance.

use super::metric_names::MetricName;
use crate::interventions::{Applied, Reads};
use crate::provenance::RunProvenance;
use crate::studies::study::Run;
use crate::texts::PairsInput;
use gpt2_circuits::discovery::{Pair, Study};

/// Whether two metrics are the same but for rounding, so that no share can be taken of their difference. Probabilities are rounded by
/// their size, other metrics by that of logits.
pub(super) fn are_alike(a: f64, b: f64, metric: Option<MetricName>) -> bool {
    let size = a.abs().max(b.abs());
    let is_probability = metric.is_some_and(MetricName::is_probability);
    (a - b).abs() <= 1e-6 * if is_probability { size } else { size.max(1.0) }
}

/// The interventions for runs over pairs: over a pair that is given by itself, they may name its positions. A file is a list of
/// pairs, however many it holds.
pub(super) fn on_pairs(run: &Run, input: &PairsInput, pairs: &[Pair]) -> anyhow::Result<Applied> {
    run.interventions.of(match (input.one(), pairs) {
        (Some(_), [pair]) => Reads::Branches(&pair.clean),
        _ => Reads::Others("pairs of prompts"),
    })
}

/// The pairs of a study on the run's model, under interventions.
pub(super) fn study_of<'a>(
    run: &Run<'a>,
    pairs: &'a [Pair],
    applied: &'a Applied,
) -> anyhow::Result<Study<'a>> {
    let study = Study::new(&run.opened.model, pairs)?;
    Ok(if applied.list.is_empty() { study } else { study.with_hooks(&applied.list)? })
}

/// The facts that runs over pairs depend on; of a single pair, its tokens, too.
pub(super) fn provenance(run: &Run, pairs: &[Pair], applied: &Applied) -> anyhow::Result<RunProvenance> {
    let longest = pairs.first().map_or(1, |pair| pair.clean.len());
    let mut provenance = RunProvenance::of_tokens(run.opened, longest)?.under(applied);
    if let [pair] = pairs {
        provenance.ids.clone_from(&pair.clean);
        provenance.corrupt_ids.clone_from(&pair.corrupt);
    }
    Ok(provenance)
}
