//! The log-probabilities of requests, computed by all ranks together.

use super::journal::Journal;
use super::requests::Request;
use crate::interventions::Reads;
use crate::open::explain_not_finite;
use crate::studies::study::Run;
use crate::texts::{DocumentWindow, batches};
use anyhow::{Context, bail};
use gpt2_model::analysis::{Likelihood, PredictedEnd, likelihoods};
use gpt2_model::hooks::Hooks;
use gpt2_parallel::{Alone, Group};

/// The bytes of a likelihood between ranks.
const BYTES: usize = 9;

/// The log-probability of each request. A journal has what an earlier run found, and gets what this one finds. `place` names an example
/// for errors.
pub(super) fn scored(
    run: &Run,
    group: &dyn Group,
    requests: &[Request],
    mut journal: Option<Journal>,
    place: impl Fn(usize) -> String,
) -> anyhow::Result<Vec<Likelihood>> {
    // The last token of each is not read.
    let read =
        |request: &Request| DocumentWindow { document: 0, tokens: 0..request.ids.len() - 1, context: 0 };
    let read: Vec<DocumentWindow> = requests.iter().map(read).collect();
    let batches = batches(&read, |a, b| run.interventions.treat_alike(a, b));
    let mut mine = vec![];
    let mut done = 0;
    for (number, batch) in batches.iter().enumerate() {
        done += batch.len();
        if number % group.size() == group.rank() {
            let before = journal.as_ref().and_then(|journal| journal.found(number, batch.len()));
            // A number that is not finite is found again, so that its error says where it comes from.
            let is_kept = |found: &&Vec<Likelihood>| {
                run.allow_nonfinite || found.iter().all(|one| one.log_prob.is_finite())
            };
            let before = before.filter(is_kept);
            let found = if let Some(found) = before {
                found.clone()
            } else {
                let found = batch_scored(run, requests, batch, &place)?;
                journal.as_mut().map_or(Ok(()), |journal| journal.add(number, &found))?;
                found
            };
            for likelihood in found {
                mine.extend(likelihood.log_prob.to_le_bytes());
                mine.push(u8::from(likelihood.is_greedy));
            }
            run.observer.step("requests", done as u64, Some(requests.len() as u64))?;
        }
    }
    run.observer.step("requests", requests.len() as u64, Some(requests.len() as u64))?;
    let all = group.gather_bytes(&mine)?;
    let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let mut found = vec![Likelihood { log_prob: f64::NAN, is_greedy: false }; requests.len()];
    for (number, batch) in batches.iter().enumerate() {
        for &request in batch {
            let bytes = rests[number % group.size()].split_off(..BYTES);
            let (log_prob, is_greedy) = bytes.and_then(<[u8]>::split_first_chunk).context(
                "another process sent fewer answers than its share; start every rank with the same program",
            )?;
            found[request] =
                Likelihood { log_prob: f64::from_le_bytes(*log_prob), is_greedy: is_greedy == [1] };
        }
    }
    Ok(found)
}

fn batch_scored(
    run: &Run,
    requests: &[Request],
    batch: &[usize],
    place: &impl Fn(usize) -> String,
) -> anyhow::Result<Vec<Likelihood>> {
    let opened = run.opened;
    let end = |&i: &usize| PredictedEnd { ids: &requests[i].ids, predicted: requests[i].predicted };
    let texts: Vec<PredictedEnd> = batch.iter().map(end).collect();
    // All texts of a batch have the same changes.
    let first = || place(requests[batch[0]].example);
    let changes = run.interventions.of(Reads::Whole(&[texts[0].read()])).with_context(first)?.list;
    let hooks = (!changes.is_empty()).then_some(&changes as &dyn Hooks);
    let found = likelihoods(&opened.model, &texts, hooks)?;
    for (row, likelihood) in found.iter().enumerate() {
        if !run.allow_nonfinite && !likelihood.log_prob.is_finite() {
            let ids = opened.model.ids(texts[row].read())?;
            let why = explain_not_finite(&opened.model, &ids, hooks, opened.spelling);
            bail!("{}: {why}", place(requests[batch[row]].example));
        }
    }
    Ok(found)
}

/// The log-probability of the last tokens of each text, given those before, as many as `predicted` says; and whether each of them is
/// the most probable one. A program that brings its own tokens, such as lm-evaluation-harness itself, asks this.
///
/// # Errors
/// When a text does not fit the model, a number is not finite, or the observer ends it.
pub fn token_likelihoods(
    run: &Run,
    texts: Vec<Vec<u32>>,
    predicted: Vec<usize>,
) -> anyhow::Result<Vec<(f64, bool)>> {
    let window = run.opened.model.config().n_positions;
    if texts.len() != predicted.len() {
        bail!(
            "{} texts and {} numbers of predicted tokens: expected one for each",
            texts.len(),
            predicted.len()
        );
    }
    let request = |(example, (ids, predicted)): (usize, (Vec<u32>, usize))| {
        if predicted == 0 || predicted >= ids.len() || ids.len() > window + 1 {
            bail!(
                "text {example}: has {} tokens, of which the last {predicted} are to be predicted; expected one at least, another before it, and \
                 {} tokens in all at most",
                ids.len(),
                window + 1
            );
        }
        Ok(Request { ids, predicted, example })
    };
    let requests = texts.into_iter().zip(predicted).enumerate().map(request);
    let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
    if requests.is_empty() {
        return Ok(vec![]);
    }
    let found = scored(run, &Alone, &requests, None, |example| format!("text {example}"))?;
    Ok(found.into_iter().map(|one| (one.log_prob, one.is_greedy)).collect())
}
