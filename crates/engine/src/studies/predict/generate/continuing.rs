//! A prompt that is continued by itself.

use super::draft::DraftCounts;
use super::options::Options;
use super::ready::{OnPiece, Piece, Ready, continuation, generation, hooked};
use super::report::{Drawn, Report, Searched};
use crate::interventions::{Applied, Reads};
use crate::observer::steps;
use crate::open::{Opened, describe_not_finite};
use crate::studies::study::Run;
use crate::texts::{Continuation, Prompt};
use anyhow::{Context, anyhow};
use gpt2_loader::Tokenizer;
use gpt2_model::Generation;
use gpt2_model::beams::BeamSearch;
use gpt2_model::hooks::{Chain, Hooks};
use std::time::Instant;

/// A prompt with all that continues it.
pub struct Continuing<'a> {
    options: &'a Options,
    run: &'a Run<'a>,
    /// The prompt, and what its result depends on.
    pub ready: Ready,
    /// The interventions.
    pub applied: Applied,
    way: Way<'a>,
}

/// The way to continue a prompt.
enum Way<'a> {
    Draw(Box<Generation<'a>>, Continuation<&'a Tokenizer>),
    Search(BeamSearch),
}

impl Options {
    /// Prepares to continue a prompt by itself.
    ///
    /// # Errors
    /// When an option or an intervention has no meaning here, the context has no room, or the draft cannot be opened.
    pub fn continuing<'a>(&'a self, run: &'a Run<'a>, prompt: Prompt) -> anyhow::Result<Continuing<'a>> {
        let opened = run.opened;
        self.check(opened.spelling)?;
        let most = self.new_tokens(opened, prompt.ids.len());
        let applied = run.interventions.of(Reads::Growing(&[&prompt.ids]))?;
        let ready = Ready::new(self, run, &applied, prompt, most)?;
        let way = if let Some(search) = self.search() {
            Way::Search(search)
        } else {
            let prompts = std::slice::from_ref(&ready.prompt.ids);
            let mut generation = generation(self, run, prompts, most)?;
            if let Some(draft) = &self.draft {
                generation.check_draft().with_context(|| opened.spelling.option("draft"))?;
                generation = generation.with_draft(draft.open(opened, run.observer)?)?;
            }
            Way::Draw(Box::new(generation), continuation(self, opened, &ready.prompt)?)
        };
        Ok(Continuing { options: self, run, ready, applied, way })
    }
}

impl Continuing<'_> {
    /// Continues the prompt. `hooks` read what interventions leave, and `on_piece` hears the text as it comes; the whole of it is in
    /// the report. If `on_piece` ends the work, the report has what there is. The interventions come back with it.
    ///
    /// # Errors
    /// When a number is not finite, or a hook fails.
    pub fn run(self, hooks: Option<&dyn Hooks>, on_piece: OnPiece) -> anyhow::Result<(Report, Applied)> {
        let Continuing { options, run, ready, applied, way } = self;
        let changes = &applied.list as &dyn Hooks;
        let changed = (!applied.list.is_empty()).then_some(changes);
        let all: Vec<&dyn Hooks> = changed.into_iter().chain(hooks).collect();
        let chain = Chain(&all);
        let start = Instant::now();
        let report = match way {
            Way::Draw(generation, continuation) => {
                let mut generation = hooked(*generation, options, &chain, run.opened.spelling)?;
                let explain = |error: candle_core::Error, new: &[u32]| {
                    explained(error, run.opened, &[&ready.prompt.ids[..], new].concat(), changes)
                };
                let found = drawn(&mut generation, continuation, explain, on_piece)?;
                let seconds = start.elapsed().as_secs_f64();
                let draft = options.draft.as_ref().zip(generation.drafted());
                let mut report = Drawn::new(options, run.seed, ready, found);
                report.seconds = Some(seconds);
                report.tokens_per_second = Some(report.ids.len() as f64 / seconds);
                report.draft = draft.map(|(kind, of)| DraftCounts::new(kind, of));
                Report::Drawn(Box::new(report))
            }
            Way::Search(search) => {
                // Without hooks, a pass may take a shorter way.
                let hooks = (!all.is_empty()).then_some(&chain as &dyn Hooks);
                let mut progress = steps(run.observer, "tokens");
                let ids = &ready.prompt.ids;
                let found = search.run_with(&run.opened.model, ids, ready.most, hooks, &mut progress)?;
                // The search may end before its last step.
                if ready.most > 0 {
                    progress(ready.most, ready.most)?;
                }
                let seconds = start.elapsed().as_secs_f64();
                Report::Searched(Box::new(Searched::new(run.opened, search, ready, found, seconds)?))
            }
        };
        Ok((report, applied))
    }
}

/// Draws the text, up to a stop string. `explain` words an error, given the new ids before it.
fn drawn<'a>(
    generation: &mut Generation,
    mut found: Continuation<&'a Tokenizer>,
    explain: impl FnOnce(candle_core::Error, &[u32]) -> anyhow::Error,
    on_piece: OnPiece,
) -> anyhow::Result<Continuation<&'a Tokenizer>> {
    for step in generation {
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                // What there is of the text comes before the error.
                let rest = found.finish();
                if !rest.is_empty() {
                    let _ = on_piece(0, Piece::Rest(&rest));
                }
                return Err(explain(error, &found.ids));
            }
        };
        if let Some(id) = step.first().copied().flatten() {
            if on_piece(0, Piece::Token(&found.push(id))).is_break() {
                // Whoever ended the work hears no more; the text still gets its last characters.
                found.finish();
                return Ok(found);
            }
            if found.stopped_at().is_some() {
                break;
            }
        }
    }
    let rest = found.finish();
    if !rest.is_empty() {
        let _ = on_piece(0, Piece::Rest(&rest));
    }
    Ok(found)
}

/// Explains why a step after `ids` failed: if a number was not finite, says where it first appeared.
fn explained(error: candle_core::Error, opened: &Opened, ids: &[u32], changes: &dyn Hooks) -> anyhow::Error {
    let hooks = Some(changes);
    let Ok(text) = opened.input_ids(ids) else { return error.into() }; // (1, T)
    match opened.model.first_not_finite(&text, hooks) {
        Ok(Some(found)) => {
            anyhow!(describe_not_finite(&found, &opened.model, &text, hooks, opened.spelling))
        }
        _ => error.into(),
    }
}
