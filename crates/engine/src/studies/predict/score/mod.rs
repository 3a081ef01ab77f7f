//! Scores of a model's predictions for each document of a corpus, on one process or on many. It writes a line for each document, and a run that
//! stopped goes on where it was, so it is a function of its own instead of a [`Study`](crate::studies::study::Study).

mod lines;
mod options;
mod scores;
mod section;
mod totals;

pub use lines::DocumentTotals;
pub use options::{Documents, Options};
pub use totals::{Report, ScoredPlace};

use crate::observer::Stopped;
use crate::open::Opened;
use crate::provenance::RunProvenance;
use crate::spelling::Spelling;
use crate::studies::study::Run;
use crate::texts::{By, Corpus, CorpusDocument, shared};
use crate::words::count;
use anyhow::{Context, bail};
use candle_fused::Isa;
use gpt2_parallel::{Fact, Group};
use lines::{ScoreLines, fields};
use scores::{Row, WindowScores, layers};
use section::{Reading, ScoredDocument, scored};
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Instant;

/// The first line of the file of scores.
#[derive(Serialize)]
struct ScoreHeader<'a> {
    provenance: RunProvenance,
    /// The unit that counts as a document.
    #[serde(flatten)]
    by: &'a By,
    /// The tokens of a window, and the tokens by which it moves on.
    window: usize,
    stride: usize,
    bos: bool,
    summaries: bool,
    /// The model's config and weights, the tokenizer, and what interventions read from files.
    fingerprint: String,
    isa: &'static str,
}

/// A run over a corpus that is about to start.
pub struct Scoring<'a> {
    options: &'a Options,
    run: &'a Run<'a>,
    group: &'a dyn Group,
    /// The documents' source; none on other ranks than 0, which get the texts from it.
    corpus: Option<Corpus<'a>>,
    reading: Reading<'a>,
    first_line: String,
    lines: Option<ScoreLines<'a>>,
    total: Report,
}

/// The way in which a stopped run goes on, in words.
#[must_use]
pub fn to_resume(spelling: Spelling) -> &'static str {
    match spelling {
        Spelling::Flags => "run the same command with --resume to continue",
        Spelling::Keywords => "call it again with resume=True to continue",
    }
}

impl Options {
    /// Scores a corpus alone, without other processes.
    ///
    /// # Errors
    /// See [`Options::find`], [`Options::start`] and [`Scoring::run`], and when the file of scores is one that is read.
    pub fn score(&self, run: &Run) -> anyhow::Result<Report> {
        if self.jsonl.as_deref() == Some(Path::new("-")) {
            bail!("{}: expected the name of a file; ./- is one", run.opened.spelling.given("jsonl", "-"));
        }
        let alone = gpt2_parallel::Alone;
        let documents = self.find(&alone, run.opened.spelling, run.observer)?;
        self.spare_inputs(run, &documents)?;
        let mut scoring = self.start(run, &alone, documents)?;
        scoring.open()?;
        scoring.run()?.context("the only process leads")
    }

    /// Prepares to score the documents with all ranks of a group.
    ///
    /// # Errors
    /// When an option or an intervention does not fit the model, or it has no tokenizer.
    pub fn start<'a>(
        &'a self,
        run: &'a Run<'a>,
        group: &'a dyn Group,
        Documents { by, corpus }: Documents<'a>,
    ) -> anyhow::Result<Scoring<'a>> {
        let opened = run.opened;
        opened.tokenizer()?;
        let reading = self.reading(run)?;
        let described = run.interventions.described();
        let provenance = RunProvenance::of_tokens(opened, reading.context)?.under(&described);
        let total = Report::new(provenance.clone(), &reading, corpus.as_ref());
        let first_line = first_line(provenance, &by, run, &reading)?;
        Ok(Scoring { options: self, run, group, corpus, reading, first_line, lines: None, total })
    }

    fn reading<'a>(&self, run: &Run<'a>) -> anyhow::Result<Reading<'a>> {
        let config = run.opened.model.config();
        let spelling = run.opened.spelling;
        let most = config.n_positions;
        let context = self.window.unwrap_or(most);
        if self.window.is_some_and(|window| !(2..=most).contains(&window)) {
            let given = spelling.given("window", context);
            bail!("{given}: expected 2 to {most} tokens, the model's context");
        }
        let stride = self.stride.unwrap_or((context / 2).max(1));
        if self.stride.is_some_and(|stride| !(1..=context).contains(&stride)) {
            let given = spelling.given("stride", stride);
            bail!("{given}: expected at most the {context} tokens of a window");
        }
        let option = spelling.option("bos");
        let none = || format!("{option}: the model's config names no bos_token_id; leave {option} out");
        let bos = if self.bos { Some(config.bos_token_id.with_context(none)?) } else { None };
        let changes = run.interventions;
        let whole = changes.options().need_whole_texts();
        Ok(Reading { changes, whole, bos, context, stride, summaries: self.summaries })
    }
}

impl Scoring<'_> {
    /// The facts that the scores depend on.
    #[must_use]
    pub fn provenance(&self) -> &RunProvenance {
        &self.total.provenance
    }

    /// Opens the file of scores, after all ranks have agreed on the work.
    ///
    /// # Errors
    /// When a rank has another model or other options, or an earlier run's file does not belong to this one.
    pub fn open(&mut self) -> anyhow::Result<()> {
        agree(self.group, &self.first_line)?;
        let Options { jsonl, resume, .. } = self.options;
        if let Some(out) = jsonl.as_ref().filter(|_| self.group.rank() == 0) {
            let spelling = self.run.opened.spelling;
            let lines = ScoreLines::open(out, &self.first_line, *resume, spelling, self.run.observer)?;
            self.lines = Some(lines);
        }
        Ok(())
    }

    /// Scores all documents. The report is rank 0's.
    ///
    /// # Errors
    /// When a document cannot be read, a number is not finite, a rank is lost, or the observer ends it: with
    /// [`Stopped`] if it asks for that.
    pub fn run(mut self) -> anyhow::Result<Option<Report>> {
        let Self { run, group, .. } = self;
        let started = Instant::now();
        let mut before = 0;
        while let Some(section) = self.next_section()? {
            let stopped = group.any(run.observer.is_asked_to_stop())?;
            let scored = if stopped {
                None
            } else {
                let mut progress = |done, all| self.step_within(before, done, all);
                scored(group, run.opened, &self.reading, &section, run.observer, &mut progress)?
            };
            let Some(scored) = scored else { return Err(self.stopped().into()) };
            self.add(&section, &scored)?;
            self.step(false)?;
            before = self.corpus.as_ref().map_or(0, Corpus::read);
        }
        self.step(true)?;
        let leads = group.rank() == 0;
        if self.total.documents == 0 && leads {
            self.lines.map(ScoreLines::discard).transpose()?;
            bail!("{}: holds no document", self.options.corpus.display());
        }
        if let Some(lines) = self.lines {
            lines.finish()?;
        }
        let mut total = self.total;
        total.seconds = started.elapsed().as_secs_f64();
        total.loss = (total.predicted > 0).then(|| total.surprise / total.predicted as f64);
        total.perplexity = total.loss.map(f64::exp);
        Ok(leads.then_some(total))
    }

    /// Tells how many bytes are scored.
    fn step(&self, is_last: bool) -> anyhow::Result<()> {
        if let Some(corpus) = &self.corpus {
            let all = if is_last { Some(corpus.read()) } else { corpus.bytes };
            self.run.observer.step("bytes", corpus.read(), all)?;
        }
        Ok(())
    }

    /// Tells how many bytes are scored when `done` of `all` batches of a section are, which begins at the byte `before`.
    fn step_within(&self, before: u64, done: usize, all: usize) -> candle_core::Result<()> {
        let Some(corpus) = &self.corpus else { return Ok(()) };
        let section = corpus.read().saturating_sub(before);
        // No text has more bytes than an f64 counts exactly.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let part = (section as f64 * done as f64 / all as f64) as u64;
        self.run.observer.step("bytes", before + part, corpus.bytes)
    }

    fn stopped(&self) -> Stopped {
        let done = count(self.total.documents, "document");
        let resume = to_resume(self.run.opened.spelling);
        let resume = if self.options.jsonl.is_some() { format!("; {resume}") } else { String::new() };
        Stopped(format!("stopped after {done}{resume}"))
    }

    /// The next documents that are not scored yet, on every rank; none at the end. Adds what an earlier run found of those before.
    fn next_section(&mut self) -> anyhow::Result<Option<Vec<CorpusDocument>>> {
        let mut section = vec![];
        if let Some(corpus) = &mut self.corpus {
            section = corpus.section()?;
            if let Some(lines) = &mut self.lines {
                while !section.is_empty()
                    && let Some(found) = lines.has(&section)?
                {
                    section.iter().zip(found).for_each(|(document, row)| self.total.add(document, row));
                    section = corpus.section()?;
                }
            }
        }
        let section = shared(self.group, section)?;
        Ok(Some(section).filter(|section| !section.is_empty()))
    }

    /// Adds the scores of documents to the totals and to the file.
    fn add(&mut self, section: &[CorpusDocument], scored: &[ScoredDocument]) -> anyhow::Result<()> {
        let mut text = String::new();
        for (document, ScoredDocument { tokens, parts }) in section.iter().zip(scored) {
            let row = row(document, *tokens, parts, self.run.opened)?;
            let loss = row.loss.unwrap_or(0.0);
            let totals = DocumentTotals { tokens: row.tokens, predicted: row.predicted, loss };
            self.total.add(document, totals);
            text += &serde_json::to_string(&row)?;
            text.push('\n');
        }
        self.total.fresh += section.len();
        self.lines.as_mut().map_or(Ok(()), |lines| lines.add(&text))
    }
}

fn first_line(provenance: RunProvenance, by: &By, run: &Run, reading: &Reading) -> anyhow::Result<String> {
    let &Reading { context: window, stride, bos, summaries, .. } = reading;
    let opened = run.opened;
    // The built-in tokenizer has no file, and is one.
    let mut hash = DefaultHasher::new();
    (opened.model.fingerprint()?, opened.tokenizer()?.to_json().ok()).hash(&mut hash);
    reading.changes.hash(&mut hash, run.observer)?;
    let fingerprint = format!("{:016x}", hash.finish());
    let isa = Isa::current().as_str();
    let bos = bos.is_some();
    Ok(serde_json::to_string(&ScoreHeader {
        provenance,
        by,
        window,
        stride,
        bos,
        summaries,
        fingerprint,
        isa,
    })?)
}

/// Refuses ranks whose lines would differ.
fn agree(group: &dyn Group, first_line: &str) -> anyhow::Result<()> {
    let remedy = "start every rank with the same command and the same model";
    let facts = fields(&serde_json::from_str(first_line)?);
    let fact = |(what, value): (String, serde_json::Value)| Fact { what, value: value.to_string(), remedy };
    group.agree(|| Ok(facts.into_iter().map(fact).collect()))
}

fn row<'a>(
    document: &'a CorpusDocument,
    tokens: usize,
    parts: &[WindowScores],
    opened: &Opened,
) -> anyhow::Result<Row<'a>> {
    let predicted = parts.iter().map(|part| part.predicted).sum();
    let surprise: f64 = parts.iter().map(|part| part.surprise).sum(); // nats
    let loss = (predicted > 0).then(|| surprise / predicted as f64);
    let perplexity = loss.map(f64::exp);
    if perplexity.is_some_and(f64::is_infinite) {
        bail!(
            "{}: its perplexity exceeds the range of f64: the text is too improbable for the model",
            document.place()
        );
    }
    let heads = opened.model.config().n_head;
    let layers = if parts.iter().any(|part| part.heads.is_empty()) { vec![] } else { layers(parts, heads) };
    let CorpusDocument { file, line, input, text } = document;
    let line = *line;
    let bytes = text.len();
    let hash = document.hash();
    Ok(Row { file, line, input, bytes, hash, tokens, predicted, loss, perplexity, layers })
}
