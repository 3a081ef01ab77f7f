//! The scores of a section of the corpus, computed by all ranks together.

use super::scores::WindowScores;
use crate::interventions::{Prepared, Reads};
use crate::observer::Observer;
use crate::open::{Opened, explain_not_finite};
use crate::texts::{CorpusDocument, DocumentWindow, batches, windows};
use anyhow::{Context, bail};
use gpt2_model::analysis::surprises;
use gpt2_model::hooks::Hooks;
use gpt2_parallel::Group;

/// The settings for reading a document.
pub(super) struct Reading<'a> {
    pub(super) changes: &'a Prepared<'a>,
    /// Whether an intervention needs each document to fit the model's context.
    pub(super) whole: bool,
    /// The token before each document.
    pub(super) bos: Option<u32>,
    pub(super) context: usize,
    pub(super) stride: usize,
    pub(super) summaries: bool,
}

/// The scores of a document.
pub(super) struct ScoredDocument {
    pub(super) tokens: usize,
    /// Of its windows.
    pub(super) parts: Vec<WindowScores>,
}

/// The tokens of each document, and its scores, on every rank; none if this process is alone and was asked to stop. `progress` hears
/// how many of the section's batches are done, and how many there are.
pub(super) fn scored(
    group: &dyn Group,
    opened: &Opened,
    reading: &Reading,
    section: &[CorpusDocument],
    observer: &dyn Observer,
    mut progress: impl FnMut(usize, usize) -> candle_core::Result<()>,
) -> anyhow::Result<Option<Vec<ScoredDocument>>> {
    let config = opened.model.config();
    let mut ids: Vec<Vec<u32>> = vec![];
    for document in section {
        let place = || document.place();
        let of_document: Vec<u32> = reading.bos.into_iter().chain(document.ids(opened)?).collect();
        if reading.whole && !of_document.is_empty() {
            if of_document.len() > reading.context {
                bail!(
                    "{}: has {} tokens, and an intervention names positions or takes a mean over each document, which \
                     must fit the model's context of {}; shorten it, or leave the intervention out",
                    place(),
                    of_document.len(),
                    reading.context
                );
            }
            reading.changes.of(Reads::Whole(&[&of_document])).with_context(place)?;
        }
        ids.push(of_document);
    }
    let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
    let windows = windows(&lengths, reading.context, reading.stride);
    let batches = batches(&windows, |a, b| reading.changes.treat_alike(a, b));
    let mut mine = vec![];
    for (number, batch) in batches.iter().enumerate().skip(group.rank()).step_by(group.size()) {
        if group.size() == 1 && observer.is_asked_to_stop() {
            return Ok(None);
        }
        for part in parts(opened, reading, &windows, &ids, batch)? {
            mine.extend(part.to_bytes());
        }
        progress(number + 1, batches.len())?;
    }
    // Each rank's parts, in the order of its batches.
    let all = group.gather_bytes(&mine)?;
    let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let heads = if reading.summaries { config.n_layer * config.n_head } else { 0 };
    let mut of_windows: Vec<Option<WindowScores>> = vec![None; windows.len()];
    for (number, batch) in batches.iter().enumerate() {
        for &window in batch {
            of_windows[window] = WindowScores::take(&mut rests[number % group.size()], heads);
        }
    }
    let bos = usize::from(reading.bos.is_some());
    let scored = |length: &usize| ScoredDocument { tokens: length - bos, parts: vec![] };
    let mut documents: Vec<ScoredDocument> = lengths.iter().map(scored).collect();
    for (window, part) in windows.iter().zip(of_windows) {
        documents[window.document].parts.push(part.context("a rank sent fewer scores than it has windows")?);
    }
    Ok(Some(documents))
}

fn parts(
    opened: &Opened,
    reading: &Reading,
    windows: &[DocumentWindow],
    ids: &[Vec<u32>],
    batch: &[usize],
) -> anyhow::Result<Vec<WindowScores>> {
    let texts: Vec<&[u32]> =
        batch.iter().map(|&i| &ids[windows[i].document][windows[i].tokens.clone()]).collect();
    // All texts of a batch have the same changes.
    let changes = reading.changes.of(Reads::Whole(&texts[..1]))?.list;
    let hooks = (!changes.is_empty()).then_some(&changes as &dyn Hooks);
    let surprises = surprises(&opened.model, &texts, reading.summaries, hooks)?;
    let mut parts = vec![];
    for (row, &window) in batch.iter().enumerate() {
        let part = WindowScores::new(&windows[window], row, &surprises)?;
        if !part.surprise.is_finite() {
            let ids = opened.model.ids(texts[row])?;
            bail!("{}", explain_not_finite(&opened.model, &ids, hooks, opened.spelling));
        }
        parts.push(part);
    }
    Ok(parts)
}
