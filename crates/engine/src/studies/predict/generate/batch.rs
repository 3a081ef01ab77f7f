//! Many prompts, continued several in each pass.

use super::options::Options;
use super::ready::{OnPiece, Piece, Ready, continuation, generation, hooked};
use super::report::{Drawn, Report};
use crate::interventions::{Applied, Reads};
use crate::open::Opened;
use crate::studies::study::Run;
use crate::texts::{Continuation, Prompt};
use crate::words::count;
use anyhow::{Context, bail};
use gpt2_loader::Tokenizer;
use gpt2_model::hooks::{Chain, Hooks};
use std::collections::BTreeMap;
use std::iter::Fuse;
use std::ops::ControlFlow;

/// Prompts that are continued several in each pass, each to the text that it gets alone.
pub struct Batches<'a> {
    options: &'a Options,
    run: &'a Run<'a>,
}

/// One of many prompts.
#[derive(Debug)]
pub struct Row<T> {
    prompt: Prompt,
    /// Its name in errors.
    place: String,
    /// The most tokens to generate after it.
    new: usize,
    /// It comes back with the report.
    tag: T,
}

/// Hears the report of each prompt, in the order of the prompts.
pub type OnReport<'a, T> = &'a mut dyn FnMut(T, Report) -> anyhow::Result<()>;

impl<T> Row<T> {
    /// A prompt, which errors call `place`. Its report comes back with `tag`.
    ///
    /// # Errors
    /// When the context has no room for it and the new tokens.
    pub fn new(
        options: &Options,
        opened: &Opened,
        prompt: Prompt,
        place: String,
        tag: T,
    ) -> anyhow::Result<Self> {
        let new = options.new_tokens(opened, prompt.ids.len());
        let n = opened.model.config().n_positions;
        let room = n + 1 - prompt.ids.len();
        if new > room {
            bail!(
                "{place}: a prompt of {} and {new} new ones do not fit the model's n_positions = {n}; at most {room} new tokens do",
                count(prompt.ids.len(), "token"),
            )
        }
        Ok(Self { prompt, place, new, tag })
    }
}

/// Prompts as they come, up to the first that cannot be had.
struct PromptSource<I, T> {
    prompts: Fuse<I>,
    next: Option<Row<T>>,
    failed: anyhow::Result<()>,
}

impl<T, I: Iterator<Item = anyhow::Result<Row<T>>>> PromptSource<I, T> {
    fn next(&mut self) -> Option<Row<T>> {
        if self.next.is_some() || self.failed.is_err() {
            return self.next.take();
        }
        self.prompts.next()?.map_err(|error| self.failed = Err(error)).ok()
    }
}

/// A prompt with its text so far.
struct Begun<'a, T> {
    number: usize,
    row: Row<T>,
    found: Continuation<&'a Tokenizer>,
}

/// Reports that wait for those of the prompts before them.
struct InOrder<'a, T> {
    on_report: OnReport<'a, T>,
    next: usize,
    waiting: BTreeMap<usize, (T, Report)>,
}

impl<T> InOrder<'_, T> {
    fn push(&mut self, number: usize, tag: T, report: Report) -> anyhow::Result<()> {
        self.waiting.insert(number, (tag, report));
        while let Some((tag, report)) = self.waiting.remove(&self.next) {
            self.next += 1;
            (self.on_report)(tag, report)?;
        }
        Ok(())
    }
}

impl<'a> Batches<'a> {
    /// Checks what holds for all prompts.
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
        Ok(Self { options, run })
    }

    /// Continues prompts as they come, up to `batch` in each pass. A text that ends leaves its place to the next prompt; under
    /// interventions or hooks, which see whole batches, all texts of a batch end before the next one begins. `hooks` read what interventions
    /// leave, and `on_piece` hears each text as it comes, with the number of its prompt; if it ends the work, the prompts taken
    /// so far are reported, their texts as far as they are.
    ///
    /// # Errors
    /// When a prompt cannot be had, after all before it have been reported; when an intervention does not fit the prompts, a number is
    /// not finite, or a hook or `on_report` fails.
    pub fn run<T>(
        &self,
        prompts: impl Iterator<Item = anyhow::Result<Row<T>>>,
        hooks: Option<&dyn Hooks>,
        on_piece: OnPiece,
        on_report: OnReport<T>,
    ) -> anyhow::Result<()> {
        let mut source = PromptSource { prompts: prompts.fuse(), next: None, failed: Ok(()) };
        let mut reports = InOrder { on_report, next: 0, waiting: BTreeMap::new() };
        loop {
            let mut rows = vec![];
            while rows.len() < self.options.batch
                && let Some(row) = source.next()
            {
                if !self.fit_together(&rows, &row) {
                    source.next = Some(row);
                    break;
                }
                rows.push(row);
            }
            if rows.is_empty() {
                return source.failed;
            }
            if self.continue_from(rows, &mut source, hooks, on_piece, &mut reports)?.is_break() {
                return Ok(());
            }
        }
    }

    /// Whether a prompt may begin with others: the longest prompt and the largest number of new tokens count for all. Where interventions
    /// name positions, those of each prompt must be the same columns.
    fn fit_together<T>(&self, rows: &[Row<T>], row: &Row<T>) -> bool {
        let Some(first) = rows.first() else { return true };
        let all = || rows.iter().chain([row]);
        let width = all().map(|row| row.prompt.ids.len()).max().unwrap_or(0);
        let new = all().map(|row| row.new).max().unwrap_or(0);
        let alike = first.prompt.ids.len() == row.prompt.ids.len()
            || !self.run.interventions.options().need_whole_texts();
        alike && width + new <= self.run.opened.model.config().n_positions + 1
    }

    /// Continues `rows`, and prompts of `source` in the places of those that end, until all have ended.
    fn continue_from<T>(
        &self,
        rows: Vec<Row<T>>,
        source: &mut PromptSource<impl Iterator<Item = anyhow::Result<Row<T>>>, T>,
        hooks: Option<&dyn Hooks>,
        on_piece: OnPiece,
        reports: &mut InOrder<T>,
    ) -> anyhow::Result<ControlFlow<()>> {
        let Self { options, run } = *self;
        let prompts: Vec<Vec<u32>> = rows.iter().map(|row| row.prompt.ids.clone()).collect();
        let most = rows.iter().map(|row| row.new).max().unwrap_or(0);
        let mut next = reports.next;
        let mut begin = |row: Row<T>| {
            let found = continuation(options, run.opened, &row.prompt)?;
            next += 1;
            anyhow::Ok(Begun { number: next - 1, row, found })
        };
        let places = rows.into_iter().map(|row| begin(row).map(Some));
        let mut places = places.collect::<anyhow::Result<Vec<_>>>()?; // none where a text has been reported
        let texts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let applied = run.interventions.of(Reads::Growing(&texts)).with_context(|| span(&places))?;
        let changes = (!applied.list.is_empty()).then_some(&applied.list as &dyn Hooks);
        let all: Vec<&dyn Hooks> = changes.into_iter().chain(hooks).collect();
        let chain = Chain(&all);
        let generation = generation(options, run, &prompts, most)?;
        let mut generation = hooked(generation, options, &chain, run.opened.spelling)?;
        // Those that do not fit beside the first ones wait for them.
        while all.is_empty()
            && places.len() < options.batch
            && let Some(row) = source.next()
        {
            generation.add(&row.prompt.ids, row.new)?;
            places.push(Some(begin(row)?));
        }
        let mut flow = ControlFlow::Continue(());
        'steps: while let Some(step) = generation.next() {
            for (place, id) in step.with_context(|| span(&places))?.into_iter().enumerate() {
                let (Some(id), Some(Begun { number, row, found })) = (id, &mut places[place]) else {
                    continue;
                };
                flow = on_piece(*number, Piece::Token(&found.push(id)));
                if flow.is_break() {
                    break 'steps;
                }
                if found.ids.len() < row.new && found.stopped_at().is_none() && !found.is_at_end() {
                    continue;
                }
                generation.end(place);
                // It is reported before the next prompt is asked for, which may take its time.
                if let Some(ended) = places[place].take() {
                    flow = self.report(ended, &applied, on_piece, reports)?;
                }
                if flow.is_break() {
                    break 'steps;
                }
                if all.is_empty()
                    && let Some(row) = source.next()
                {
                    generation.replace(place, &row.prompt.ids, row.new)?;
                    places[place] = Some(begin(row)?);
                }
            }
        }
        let mut rest: Vec<_> = places.into_iter().flatten().collect();
        rest.sort_by_key(|begun| begun.number);
        for begun in rest {
            let mut silent = |_: usize, _: Piece| ControlFlow::Break(());
            let on_piece = if flow.is_break() { &mut silent } else { &mut *on_piece };
            let heard = self.report(begun, &applied, on_piece, reports)?;
            flow = if flow.is_break() { flow } else { heard };
        }
        Ok(flow)
    }

    /// Reports a text that has ended.
    fn report<T>(
        &self,
        begun: Begun<T>,
        applied: &Applied,
        on_piece: OnPiece,
        reports: &mut InOrder<T>,
    ) -> anyhow::Result<ControlFlow<()>> {
        let Begun { number, row: Row { prompt, new, tag, .. }, mut found } = begun;
        let rest = found.finish();
        let flow =
            if rest.is_empty() { ControlFlow::Continue(()) } else { on_piece(number, Piece::Rest(&rest)) };
        let ready = Ready::new(self.options, self.run, applied, prompt, new)?;
        let report = Drawn::new(self.options, self.run.seed, ready, found);
        reports.push(number, tag, Report::Drawn(Box::new(report)))?;
        Ok(flow)
    }
}

/// The prompts whose texts have not ended: `FILE, line 1 to line 3`, `text 0 to text 2`.
fn span<T>(places: &[Option<Begun<T>>]) -> String {
    let begun = || places.iter().flatten();
    let first = begun().min_by_key(|begun| begun.number).map_or("", |begun| &begun.row.place);
    let last = begun().max_by_key(|begun| begun.number).map_or("", |begun| &begun.row.place);
    let end = last.rsplit_once(", ").map_or(last, |(_, end)| end);
    if begun().count() == 1 { first.to_owned() } else { format!("{first} to {end}") }
}
