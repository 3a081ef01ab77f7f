//! Text after a prompt: drawn token by token, with a draft that guesses or without, or searched with beams; after many prompts too.
//!
//! [`Options::continuing`] continues one prompt, [`Options::continue_all`] several; a [`Batch`] takes them one after another, for a
//! file that need not fit into memory.

mod batch;
mod continuing;
mod draft;
mod options;
mod ready;
mod report;

pub use batch::{Batch, Row};
pub use continuing::Continuing;
pub use draft::{DraftCounts, DraftKind};
pub use options::Options;
pub(super) use options::cache_dtype;
pub use ready::{OnPiece, Piece, Ready};
pub use report::{BeamText, Drawn, Report, SamplingSettings, Searched};

use crate::studies::study::{Outcome, Run, Study};
use crate::texts::Prompt;
use gpt2_model::hooks::Hooks;
use std::ops::ControlFlow;

impl Study for Options {
    const NAME: &'static str = "generate";
    type Report = Report;

    fn run(&self, run: &Run) -> anyhow::Result<Outcome<Report>> {
        let mut heard = Ok(());
        let mut tokens = 0;
        let mut on_piece = |_: usize, piece: Piece| {
            tokens += u64::from(matches!(piece, Piece::Token(_)));
            heard = run.observer.step("tokens", tokens, None);
            if heard.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (report, _) = self.continuing(run, run.prompt(&self.prompt)?)?.run(None, &mut on_piece)?;
        heard?;
        Ok(Outcome::new(report))
    }
}

impl Options {
    /// Continues several prompts, each to the text that it gets alone: in batches, or with beams or a draft one after another. `hooks`
    /// read what interventions leave; `on_piece` hears each prompt's text as it comes, and may end the work.
    ///
    /// # Errors
    /// As for [`Options::continuing`] and [`Batch::run`].
    pub fn continue_all(
        &self,
        run: &Run,
        prompts: Vec<Prompt>,
        hooks: Option<&dyn Hooks>,
        on_piece: OnPiece,
    ) -> anyhow::Result<Vec<Report>> {
        let mut reports = vec![];
        if self.beams.is_some() || self.draft.is_some() || prompts.len() == 1 {
            for (i, prompt) in prompts.into_iter().enumerate() {
                let mut heard = ControlFlow::Continue(());
                let mut on_piece = |_: usize, piece: Piece| {
                    heard = on_piece(i, piece);
                    heard
                };
                reports.push(self.continuing(run, prompt)?.run(hooks, &mut on_piece)?.0);
                if heard.is_break() {
                    break;
                }
            }
            return Ok(reports);
        }
        let mut batch = Batch::new(self, run)?;
        let mut ended = false;
        let mut complete = |batch: &mut Batch, reports: &mut Vec<Report>| {
            let first = reports.len();
            let mut on_piece = |row: usize, piece: Piece| {
                let heard = on_piece(first + row, piece);
                ended |= heard.is_break();
                heard
            };
            reports.extend(batch.run(hooks, &mut on_piece)?);
            anyhow::Ok(ended)
        };
        for (i, prompt) in prompts.into_iter().enumerate() {
            let row = Row::new(self, run.opened, prompt, format!("text {i}"))?;
            if !batch.takes(&row) && complete(&mut batch, &mut reports)? {
                return Ok(reports);
            }
            batch.push(row);
        }
        complete(&mut batch, &mut reports)?;
        Ok(reports)
    }
}
