//! Many prompts, continued several in each pass.

use super::options::Options;
use super::ready::{OnPiece, Piece, Ready, continuation, generation};
use super::report::{Drawn, Report};
use crate::interventions::Reads;
use crate::open::Opened;
use crate::studies::study::Run;
use crate::texts::Prompt;
use crate::words::count;
use anyhow::{Context, bail};
use gpt2_model::hooks::{Chain, Hooks};

/// Prompts that are continued together, each to the text that it gets alone.
pub struct Batch<'a> {
    options: &'a Options,
    run: &'a Run<'a>,
    rows: Vec<Row>,
}

/// One of many prompts.
#[derive(Debug)]
pub struct Row {
    /// The prompt.
    pub prompt: Prompt,
    /// Its name in errors.
    place: String,
    /// The most tokens to generate after it.
    new: usize,
}

impl Row {
    /// A prompt, which errors call `place`.
    ///
    /// # Errors
    /// When the context has no room for it and the new tokens.
    pub fn new(options: &Options, opened: &Opened, prompt: Prompt, place: String) -> anyhow::Result<Self> {
        let new = options.new_tokens(opened, prompt.ids.len());
        let n = opened.model.config().n_positions;
        let room = n + 1 - prompt.ids.len();
        if new > room {
            bail!(
                "{place}: a prompt of {} and {new} new ones do not fit the model's n_positions = {n}; at most {room} new tokens do",
                count(prompt.ids.len(), "token"),
            )
        }
        Ok(Self { prompt, place, new })
    }
}

impl<'a> Batch<'a> {
    /// A batch without prompts.
    ///
    /// # Errors
    /// When an option has no meaning beside others or with many prompts, or an intervention takes its mean over the prompt.
    pub fn new(options: &'a Options, run: &'a Run<'a>) -> anyhow::Result<Self> {
        let spelling = run.opened.spelling;
        options.check(spelling)?;
        let alone = [("beams", options.beams.is_some()), ("draft", options.draft.is_some())];
        if let Some((option, _)) = alone.iter().find(|(_, given)| *given) {
            bail!("{}: continues one prompt at a time", spelling.option(option));
        }
        if run.interventions.options().take_own_means() {
            bail!(
                "{}: there are several texts; give the texts to take the mean over with {}",
                spelling.option("mean-ablate"),
                spelling.option("mean-of")
            );
        }
        Ok(Self { options, run, rows: vec![] })
    }

    /// Whether there is no prompt in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether a prompt may join. The longest prompt and the largest number of new tokens count for all; where interventions name
    /// positions, those of each prompt must be the same columns.
    #[must_use]
    pub fn takes(&self, row: &Row) -> bool {
        let Some(first) = self.rows.first() else { return true };
        let rows = || self.rows.iter().chain([row]);
        let width = rows().map(|row| row.prompt.ids.len()).max().unwrap_or(0);
        let new = rows().map(|row| row.new).max().unwrap_or(0);
        let alike = first.prompt.ids.len() == row.prompt.ids.len()
            || !self.run.interventions.options().need_whole_texts();
        self.rows.len() < self.options.batch
            && alike
            && width + new <= self.run.opened.model.config().n_positions + 1
    }

    /// Adds a prompt.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Continues all prompts, which leave the batch, and returns their reports in order. `hooks` read what interventions leave, and
    /// `on_piece` hears each row's text as it comes; if it ends the work, the reports have what there is.
    ///
    /// # Errors
    /// When an intervention does not fit the prompts, a number is not finite, or a hook fails.
    pub fn run(&mut self, hooks: Option<&dyn Hooks>, on_piece: OnPiece) -> anyhow::Result<Vec<Report>> {
        let Self { options, run, .. } = *self;
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(vec![]);
        }
        let together = || match (rows.first(), rows.last()) {
            (Some(first), Some(last)) if rows.len() > 1 => span(&first.place, &last.place),
            _ => rows.iter().map(|row| row.place.clone()).collect(),
        };
        let texts: Vec<&[u32]> = rows.iter().map(|row| &row.prompt.ids[..]).collect();
        let applied = run.interventions.of(Reads::Growing(&texts)).with_context(together)?;
        let prompts: Vec<Vec<u32>> = rows.iter().map(|row| row.prompt.ids.clone()).collect();
        let most = rows.iter().map(|row| row.new).max().unwrap_or(0);
        let found = rows.iter().map(|row| continuation(options, run.opened, &row.prompt));
        let mut found = found.collect::<anyhow::Result<Vec<_>>>()?;
        let changes = (!applied.list.is_empty()).then_some(&applied.list as &dyn Hooks);
        let all: Vec<&dyn Hooks> = changes.into_iter().chain(hooks).collect();
        let chain = Chain(&all);
        let mut generation = generation(options, run, &prompts, most)?;
        if !all.is_empty() {
            generation = generation.with_hooks(&chain);
        }
        let mut ended = false;
        'steps: while let Some(step) = generation.next() {
            for (i, id) in step.with_context(together)?.into_iter().enumerate() {
                let Some(id) = id else { continue };
                if on_piece(i, Piece::Token(&found[i].push(id))).is_break() {
                    ended = true;
                    break 'steps;
                }
                if found[i].ids.len() == rows[i].new || found[i].stopped_at().is_some() {
                    generation.end(i);
                }
            }
        }
        let mut reports = vec![];
        for (i, (Row { prompt, new, .. }, mut found)) in rows.into_iter().zip(found).enumerate() {
            let rest = found.finish();
            if !ended && !rest.is_empty() {
                ended = on_piece(i, Piece::Rest(&rest)).is_break();
            }
            let ready = Ready::new(options, run, &applied, prompt, new)?;
            reports.push(Report::Drawn(Box::new(Drawn::new(options, run.seed, ready, found))));
        }
        Ok(reports)
    }
}

/// The place of several rows: `FILE, line 1 to line 3`, `text 0 to text 2`.
fn span(first: &str, last: &str) -> String {
    let end = last.rsplit_once(", ").map_or(last, |(_, end)| end);
    format!("{first} to {end}")
}
