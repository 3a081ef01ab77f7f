//! Text after a prompt: drawn token by token, with a draft that guesses or without, or searched with beams; after many prompts too.
//!
//! [`Options::continuing`] continues one prompt, [`Options::continue_all`] several; [`Batches`] take them one after another, from a
//! file that need not fit into memory.

mod batch;
mod continuing;
mod draft;
mod options;
mod ready;
mod report;

pub use batch::{Batches, OnReport, Row};
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
    /// See [`Options::continuing`] and [`Batches::run`].
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
        let rows = prompts.into_iter().enumerate();
        let rows = rows.map(|(i, prompt)| Row::new(self, run.opened, prompt, format!("text {i}"), ()));
        let rows = rows.collect::<anyhow::Result<Vec<_>>>()?; // one that has no room is refused before any pass
        Batches::new(self, run)?.run(rows.into_iter().map(Ok), hooks, on_piece, &mut |(), report| {
            reports.push(report);
            Ok(())
        })?;
        Ok(reports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interventions::{InterventionOptions, Prepared};
    use crate::observer::{Observer, Silent};
    use crate::open::{DeviceChoice, ModelOptions};
    use crate::texts::{Content, Prompt};
    use std::ops::ControlFlow;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Fails at the second token, and would hear more.
    struct FailsOnce(AtomicU64);

    impl Observer for FailsOnce {
        fn step(&self, _: &str, done: u64, _: Option<u64>) -> candle_core::Result<()> {
            self.0.store(done, Ordering::Relaxed);
            if done == 2 {
                candle_core::bail!("enough")
            }
            Ok(())
        }
    }

    #[test]
    fn an_observer_that_fails_once_ends_the_text_with_its_error() -> anyhow::Result<()> {
        let opened = ModelOptions::default().open(DeviceChoice::Cpu, false, &Silent)?;
        let observer = FailsOnce(AtomicU64::new(0));
        let interventions = Prepared::new(InterventionOptions::default(), &opened, &observer)?;
        let prompt = Content::from("ROMEO:");
        let options = Options { prompt, max_new_tokens: Some(8), ..Options::default() };
        let error = options.run(&Run::new(&interventions, &observer)).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains("enough")), "{error:?}");
        assert_eq!(observer.0.load(Ordering::Relaxed), 2);
        Ok(())
    }

    /// The others do not fit beside the first. They wait for it, and then come together.
    #[test]
    fn prompts_that_waited_for_a_long_one_share_their_passes() -> anyhow::Result<()> {
        let opened = ModelOptions::default().open(DeviceChoice::Cpu, false, &Silent)?;
        let interventions = Prepared::new(InterventionOptions::default(), &opened, &Silent)?;
        let run = Run::new(&interventions, &Silent);
        let options = Options { batch: 3, temperature: 0.0, max_new_tokens: Some(8), ..Options::default() };
        let row = |length: usize, number: usize| {
            let prompt = Prompt::of_ids(&opened, vec![7; length], None, "prompt")?;
            Row::new(&options, &opened, prompt, format!("prompt {number}"), number)
        };
        let n = opened.model.config().n_positions;
        let rows = [row(n - 7, 0)?, row(9, 1)?, row(9, 2)?];
        let mut heard = vec![];
        let on_piece: OnPiece = &mut |number, piece| {
            if let Piece::Token(_) = piece {
                heard.push(number);
            }
            ControlFlow::Continue(())
        };
        let mut reported = vec![];
        Batches::new(&options, &run)?.run(rows.into_iter().map(Ok), None, on_piece, &mut |number, _| {
            reported.push(number);
            Ok(())
        })?;
        assert_eq!(reported, [0, 1, 2]);
        let others: Vec<usize> = heard.into_iter().filter(|&number| number > 0).collect();
        assert_eq!(others, [1, 2].repeat(others.len() / 2), "a token of each in every pass");
        assert!(!others.is_empty());
        Ok(())
    }
}
