//! `gpt2 score`: how well a model predicts each document of a corpus, on one process or on many.

mod lines;
mod scores;
mod section;

use crate::input::corpus::DocumentArgs;
use crate::interventions::args::InterventionArgs;
use crate::model::args::ModelArgs;
use crate::output::progress::bar;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::process::parallel::{self, ParallelArgs, TIMEOUT};
use crate::process::signals::{self, Stop};
use anyhow::{Context, bail};
use candle_fused::Isa;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::Spelling;
use gpt2_engine::interventions::Prepared;
use gpt2_engine::texts::STDIN;
use gpt2_engine::texts::{By, Corpus, CorpusDocument, shared};
use gpt2_engine::words::count;
use gpt2_files::atomic;
use gpt2_loader::Tokenizer;
use gpt2_parallel::{Fact, Group};
use gpt2_view::{Align, Table};
use lines::{DocumentTotals, ScoreLines, fields, has_rows, holds_scores, part_of};
use scores::{Row, WindowScores, layers};
use section::{Reading, ScoredDocument, scored};
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug, clap::Args)]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
#[command(after_help = "\
OUT holds a line of JSON for each document, in the order of the corpus: the other fields of a line of JSON (input), tokens, predicted (how many of them were
predicted), loss (nats a token) and perplexity. The first line says how they were made. A document longer than the
context is read in windows that overlap, so that each token is predicted once and has half a context before it; a perplexity of
other windows differs, such as that of gpt2 compare. The same corpus gives the same bytes on any number
of processes. Interventions act on each document as on a prompt of its own.

Examples:
  gpt2 score notes.txt   # the perplexity of one text
  gpt2 score texts/ --jsonl scores.jsonl --model gpt2   # of each .txt file in a folder
  gpt2 score lines.txt --by line --jsonl lines.jsonl --summaries   # of each line
  gpt2 score stories.jsonl --field story   # of each line's field \"story\"
  gpt2 score texts/ --ablate 0.3   # without a head
  mpirun -n 4 gpt2 score texts/ --jsonl shared.jsonl   # on four processes
  gpt2 score texts/ --jsonl scores.jsonl --resume   # go on after Ctrl-C")]
pub(crate) struct ScoreArgs {
    /// A text, JSON lines (.jsonl), a folder of .txt files (with its subfolders), or - for standard input (score keeps the
    /// newline at the end of a file; forward drops it)
    #[arg(value_name = "FILE|FOLDER|-")]
    pub(crate) corpus: PathBuf,
    #[command(flatten)]
    pub(crate) documents: DocumentArgs,
    /// Write a line for each document to this file
    #[arg(long, value_name = "OUT")]
    pub(crate) jsonl: Option<PathBuf>,
    /// Add the summary of every head's attention over each document
    #[arg(long, requires = "jsonl")]
    pub(crate) summaries: bool,
    /// Put the model's first token (<|endoftext|> in GPT-2) before each document. Then its first token is predicted
    /// too
    #[arg(long)]
    pub(crate) bos: bool,
    /// How far a window moves on in a document that is longer than the context. The rest of the window is context
    /// [default: half of the model's context]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stride: Option<u32>,
    /// Go on where an earlier run stopped, or start if there was none; one that has finished only prints its totals
    #[arg(long, requires = "jsonl", conflicts_with = "overwrite")]
    pub(crate) resume: bool,
    /// Replace an existing OUT, or start an unfinished one anew
    #[arg(long, requires = "jsonl")]
    pub(crate) overwrite: bool,
    /// Print the total as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) interventions: InterventionArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// The first line of OUT.
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

/// Tells how a stopped run goes on.
const RESUME: &str = "run the same command with --resume to continue";

/// The most documents that a table lists.
const ROWS: usize = 20;

/// The totals, for the terminal.
#[derive(Serialize)]
struct ScoreTotals {
    provenance: RunProvenance,
    /// The tokens of a window, and the tokens by which it moves on.
    window: usize,
    stride: usize,
    bos: bool,
    documents: usize,
    /// The number of documents without a token.
    empty: usize,
    /// The number of files in the corpus's folder whose names end otherwise than those of documents.
    other_files: usize,
    /// The extension of documents' file names.
    #[serde(skip)]
    extension: &'static str,
    /// The first documents, one more than a table shows.
    #[serde(skip)]
    first: Vec<(String, DocumentTotals)>,
    tokens: usize,
    predicted: usize,
    #[serde(skip)]
    surprise: f64,
    /// Nats a token.
    loss: Option<f64>,
    perplexity: Option<f64>,
}

impl ScoreTotals {
    fn new(provenance: RunProvenance, reading: &Reading, corpus: Option<&Corpus>) -> Self {
        let &Reading { context: window, stride, bos, .. } = reading;
        Self {
            provenance,
            window,
            stride,
            bos: bos.is_some(),
            documents: 0,
            empty: 0,
            other_files: corpus.map_or(0, |corpus| corpus.other_files),
            extension: corpus.map_or("", Corpus::extension),
            first: vec![],
            tokens: 0,
            predicted: 0,
            surprise: 0.0,
            loss: None,
            perplexity: None,
        }
    }

    fn add(&mut self, document: &CorpusDocument, row: DocumentTotals) {
        if self.documents <= ROWS {
            self.first.push((document.place(), row));
        }
        self.documents += 1;
        self.empty += usize::from(row.tokens == 0);
        self.tokens += row.tokens;
        self.predicted += row.predicted;
        self.surprise += row.loss * row.predicted as f64;
    }
}

pub(crate) fn run(args: &ScoreArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| score(args, group))
}

fn score(args: &ScoreArgs, group: &Arc<dyn Group>) -> anyhow::Result<ExitCode> {
    let group = &**group;
    // Rank 0 alone reads the corpus and writes; the others get the texts from it.
    let leads = group.rank() == 0;
    let by = By::new(&args.documents.options(), &args.corpus, Spelling::Flags)?;
    let mut corpus =
        leads.then(|| Corpus::open(&args.corpus, by.clone(), Spelling::Flags, &TERMINAL)).transpose()?;
    let (mut inputs, outputs) = match &corpus {
        Some(corpus) => files(args, corpus)?,
        None => (ReadFiles::default(), Outputs::new(false)),
    };
    args.interventions.inputs(&mut inputs);
    let opened = args.model.open_for(inputs, &outputs)?;
    let tokenizer = opened.tokenizer()?;
    let reading = reading(args, &opened)?;
    let provenance = RunProvenance::of_tokens(&opened, reading.context)?.under(&reading.changes.described());
    let mut total = ScoreTotals::new(provenance.clone(), &reading, corpus.as_ref());
    note(&provenance.model_line());
    let first_line = first_line(provenance, &by, &opened, tokenizer, &reading)?;
    agree(group, &first_line)?;
    let lines = args.jsonl.as_ref().filter(|_| leads);
    let mut lines = lines.map(|out| ScoreLines::open(out, &first_line, args.resume)).transpose()?;
    let stop = Stop::listen();
    if lines.is_some() {
        signals::left_by_an_end(RESUME);
    }
    let bar = match corpus.as_ref().map(|corpus| corpus.bytes) {
        Some(None) => bar(None, "{bytes} scored, {elapsed}"),
        known => bar(known.flatten(), "{bar:30} {bytes} of {total_bytes}, {eta} left"),
    };
    let started = Instant::now();
    let mut fresh = 0;
    loop {
        let skipped = |section: &[CorpusDocument], found: Vec<DocumentTotals>| {
            section.iter().zip(found).for_each(|(document, row)| total.add(document, row));
        };
        let section = next_section(group, corpus.as_mut(), lines.as_mut(), skipped)?;
        // At the end, nothing is left to stop.
        if section.is_empty() {
            break;
        }
        let stopped = group.any(stop.is_asked())?;
        let scored = if stopped { None } else { scored(group, &opened, &reading, &section, &stop)? };
        let Some(scored) = scored else {
            bar.finish_and_clear();
            let resume = if args.jsonl.is_some() { format!("; {RESUME}") } else { String::new() };
            note(&format!("stopped after {}{resume}", count(total.documents, "document")));
            return Ok(ExitCode::from(stop.code()));
        };
        let mut text = String::new();
        for (document, ScoredDocument { tokens, parts }) in section.iter().zip(&scored) {
            let row = row(document, *tokens, parts, opened.model.config().n_head)?;
            let tokens = row.tokens;
            let predicted = row.predicted;
            let loss = row.loss.unwrap_or(0.0);
            total.add(document, DocumentTotals { tokens, predicted, loss });
            text += &serde_json::to_string(&row)?;
            text.push('\n');
        }
        if let Some(lines) = &mut lines {
            lines.add(&text)?;
        }
        fresh += section.len();
        bar.set_position(corpus.as_ref().map_or(0, Corpus::read));
    }
    bar.finish_and_clear();
    if total.documents == 0 && leads {
        lines.map(ScoreLines::discard).transpose()?;
        bail!("{}: holds no document", args.corpus.display());
    }
    if let Some(lines) = lines {
        lines.finish()?;
    }
    if leads {
        note(&format!("{:.1} documents/s", fresh as f64 / started.elapsed().as_secs_f64()));
        total.loss = (total.predicted > 0).then(|| total.surprise / total.predicted as f64);
        total.perplexity = total.loss.map(f64::exp);
        output::report(args.json, &total, print)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses an OUT that would do harm.
fn files(args: &ScoreArgs, corpus: &Corpus) -> anyhow::Result<(ReadFiles, Outputs)> {
    let mut inputs = ReadFiles::default();
    for file in &corpus.files {
        match file == Path::new(STDIN) {
            false => inputs.file("the corpus", file),
            true if cfg!(unix) => inputs.file("the corpus", "/dev/stdin"),
            true => {}
        }
    }
    // This decides itself which files may be replaced.
    let mut outputs = Outputs::new(true);
    if let Some(out) = &args.jsonl {
        if out != Path::new("-") {
            atomic::check(out).context("--jsonl")?;
        }
        let part = part_of(out);
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.canonicalize().ok();
        if args.corpus.is_dir()
            && folder.is_some_and(|f| args.corpus.canonicalize().is_ok_and(|c| f.starts_with(c)))
        {
            bail!("--jsonl {}: lies in the folder of the corpus; choose another", out.display());
        }
        // Resuming a finished run prints its totals. One that was started with --overwrite resumes without it, if the
        // file that it replaces holds scores.
        let goes_on = || anyhow::Ok(args.resume && holds_scores(out)?);
        if out.exists() && !args.overwrite && !goes_on()? {
            let remedy = if args.resume {
                " and is not a file of scores; move it away, then resume"
            } else {
                "; choose another name, or give --overwrite"
            };
            bail!("--jsonl {}: exists already{remedy}", out.display());
        }
        if !args.overwrite && !args.resume && has_rows(&part)? {
            bail!(
                "--jsonl {}: an earlier run left {}; continue it with --resume, or start anew with --overwrite",
                out.display(),
                part.display()
            );
        }
        outputs.add("--jsonl", out);
        outputs.add("--jsonl", &part);
    }
    Ok((inputs, outputs))
}

fn reading<'a>(args: &'a ScoreArgs, opened: &'a Opened) -> anyhow::Result<Reading<'a>> {
    let config = opened.model.config();
    let context = config.n_positions;
    let stride = args.stride.map_or((context / 2).max(1), |stride| stride as usize);
    if args.stride.is_some() && stride >= context {
        bail!("--stride {stride}: expected less than the model's context of {context} tokens");
    }
    let none = "--bos: the model's config names no bos_token_id; leave --bos out";
    let bos = if args.bos { Some(config.bos_token_id.context(none)?) } else { None };
    let interventions = args.interventions.options();
    let whole = interventions.need_whole_texts();
    let changes = Prepared::new(interventions, opened, &TERMINAL)?;
    Ok(Reading { changes, whole, bos, context, stride, summaries: args.summaries })
}

fn first_line(
    provenance: RunProvenance,
    by: &By,
    opened: &Opened,
    tokenizer: &Tokenizer,
    reading: &Reading,
) -> anyhow::Result<String> {
    let &Reading { context: window, stride, bos, summaries, .. } = reading;
    // The built-in tokenizer has no file, and is one.
    let mut hash = DefaultHasher::new();
    (opened.model.fingerprint()?, tokenizer.to_json().ok()).hash(&mut hash);
    reading.changes.hash(&mut hash, &TERMINAL)?;
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

/// The next documents that are not scored yet, on every rank; tells `skipped` of those that are.
fn next_section(
    group: &dyn Group,
    corpus: Option<&mut Corpus>,
    lines: Option<&mut ScoreLines>,
    mut skipped: impl FnMut(&[CorpusDocument], Vec<DocumentTotals>),
) -> anyhow::Result<Vec<CorpusDocument>> {
    let mut section = vec![];
    if let Some(corpus) = corpus {
        section = corpus.section()?;
        if let Some(lines) = lines {
            while !section.is_empty()
                && let Some(found) = lines.has(&section)?
            {
                skipped(&section, found);
                section = corpus.section()?;
            }
        }
    }
    shared(group, section)
}

fn row<'a>(
    document: &'a CorpusDocument,
    tokens: usize,
    parts: &[WindowScores],
    heads: usize,
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
    let layers = if parts.iter().any(|part| part.heads.is_empty()) { vec![] } else { layers(parts, heads) };
    let CorpusDocument { file, line, input, text } = document;
    let line = *line;
    let bytes = text.len();
    let hash = document.hash();
    Ok(Row { file, line, input, bytes, hash, tokens, predicted, loss, perplexity, layers })
}

fn print(total: &ScoreTotals) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let ScoreTotals { documents, empty, tokens, predicted, loss, perplexity, window, stride, .. } = total;
    if (2..=ROWS).contains(documents) {
        let mut table = Table::new(&[
            ("document", Align::Left),
            ("tokens", Align::Right),
            ("predicted", Align::Right),
            ("perplexity", Align::Right),
        ]);
        for (place, DocumentTotals { tokens, predicted, loss }) in &total.first {
            let perplexity = if *predicted > 0 { format!("{:.4}", loss.exp()) } else { "-".into() };
            table.row(vec![place.clone(), tokens.to_string(), predicted.to_string(), perplexity]);
        }
        writeln!(out, "{}", table.render())?;
    }
    match (loss, perplexity) {
        (Some(loss), Some(perplexity)) => {
            writeln!(out, "perplexity {perplexity:.4}  ({loss:.4} nats per token)")?;
        }
        _ if empty == documents => writeln!(out, "no token to predict: no document has a token")?,
        _ => writeln!(
            out,
            "no token to predict: every document has one token at most; --bos also predicts that one"
        )?,
    }
    writeln!(
        out,
        "{}, {}, {predicted} predicted, in windows of up to {window} that move on by {stride}",
        count(*documents, "document"),
        count(*tokens, "token")
    )?;
    if *empty > 0 {
        writeln!(out, "{} without a token", count(*empty, "document"))?;
    }
    if total.other_files > 0 {
        let files = count(total.other_files, "file");
        writeln!(out, "{files} left out: the name does not end in .{}", total.extension)?;
    }
    Ok(())
}
