//! `gpt2 score`: how well a model predicts each document of a corpus, on one process or on many.

mod corpus;
mod lines;
mod scores;
mod windows;

use crate::args::{ByArg, ScoreArgs};
use crate::inputs::Inputs;
use crate::output::{self, is_quiet, note};
use crate::outputs::Outputs;
use crate::provenance::{Provenance, count};
use crate::session::Session;
use crate::stop::Stop;
use crate::{finite, parallel};
use anyhow::{Context, bail};
use candle_core::Tensor;
use corpus::{Corpus, Document, STDIN};
use gpt2_kernels::Isa;
use gpt2_loader::Tokenizer;
use gpt2_model::analysis::surprises;
use gpt2_parallel::{Fact, Group};
use gpt2_view::FileKind;
use indicatif::{ProgressBar, ProgressStyle};
use lines::{Found, Lines, part_of};
use scores::{Part, Row, layers};
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use windows::{Window, batches, windows};

/// The first line of OUT.
#[derive(Serialize)]
struct Facts {
    provenance: Provenance,
    /// What a document is.
    by: &'static str,
    /// The tokens of a window, and how far each moves on.
    window: usize,
    stride: usize,
    bos: bool,
    summaries: bool,
}

/// The totals, for the terminal.
#[derive(Serialize)]
struct Total {
    documents: usize,
    tokens: usize,
    predicted: usize,
    /// Nats a token.
    loss: Option<f64>,
    perplexity: Option<f64>,
}

/// How to read a document.
struct Reading {
    /// The token before each document.
    bos: Option<u32>,
    context: usize,
    stride: usize,
    summaries: bool,
}

pub(crate) fn run(args: &ScoreArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| score(args, group))
}

fn score(args: &ScoreArgs, group: &Arc<dyn Group>) -> anyhow::Result<ExitCode> {
    let group = &**group;
    // Rank 0 alone reads the corpus and writes; the others get the texts from it.
    let leads = group.rank() == 0;
    let mut corpus = leads.then(|| Corpus::open(&args.corpus, args.by)).transpose()?;
    let (inputs, outputs) = if leads { files(args)? } else { (Inputs::default(), Outputs::new(false)) };
    let session = args.model.session_for(inputs, &outputs)?;
    let tokenizer = session.tokenizer()?;
    let reading = reading(args, &session)?;
    let first_line = first_line(args, &session, &reading)?;
    agree(group, &session, &first_line)?;
    let lines = args.jsonl.as_ref().filter(|_| leads);
    let mut lines = lines.map(|out| Lines::open(out, &first_line, args.resume)).transpose()?;
    let (stop, bar) = (Stop::listen()?, bar(corpus.as_ref())?);
    let (started, mut fresh) = (Instant::now(), 0);
    let (mut documents, mut total) = (0, Found::default());
    loop {
        let section = next_section(group, corpus.as_mut(), lines.as_mut(), |section, found| {
            documents += section.len();
            bar.inc(section.iter().map(|document| document.text.len() as u64).sum());
            total = sum(total, found);
        })?;
        let stopped = group.any(stop.is_asked())?;
        if section.is_empty() || stopped {
            bar.finish_and_clear();
            if stopped && !section.is_empty() {
                let resume = if args.jsonl.is_some() {
                    "; run the same command with --resume to continue"
                } else {
                    ""
                };
                note(&format!("stopped after {}{resume}", count(documents, "document")));
                return Ok(ExitCode::from(130));
            }
            break;
        }
        let scored = scored(group, &session, tokenizer, &reading, &section)?;
        let mut text = String::new();
        for (document, (tokens, parts)) in section.iter().zip(&scored) {
            let row = row(document, *tokens, parts, session.model.config().n_head)?;
            total =
                sum(total, Found { tokens: row.tokens, predicted: row.predicted, surprise: surprise(parts) });
            text += &serde_json::to_string(&row)?;
            text.push('\n');
        }
        if let Some(lines) = &mut lines {
            lines.add(&text)?;
        }
        documents += section.len();
        fresh += section.len();
        bar.inc(section.iter().map(|document| document.text.len() as u64).sum());
    }
    if documents == 0 && leads {
        bail!("{}: holds no document", args.corpus.display());
    }
    if let Some(lines) = lines {
        lines.finish()?;
    }
    if leads {
        note(&format!("{:.1} documents/s", fresh as f64 / started.elapsed().as_secs_f64()));
        let loss = (total.predicted > 0).then(|| total.surprise / total.predicted as f64);
        let Found { tokens, predicted, .. } = total;
        let total = Total { documents, tokens, predicted, loss, perplexity: loss.map(f64::exp) };
        output::report(args.json, &total, print)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses an OUT that would do harm.
fn files(args: &ScoreArgs) -> anyhow::Result<(Inputs, Outputs)> {
    let mut inputs = Inputs::default();
    if args.corpus != Path::new(STDIN) && !args.corpus.is_dir() {
        inputs.file("the corpus", &args.corpus);
    }
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(out) = &args.jsonl {
        let part = part_of(out);
        let folder = out.parent().unwrap_or(Path::new("")).canonicalize().ok();
        if args.corpus.is_dir()
            && folder.is_some_and(|f| args.corpus.canonicalize().is_ok_and(|c| f.starts_with(c)))
        {
            bail!("--jsonl {}: lies in the folder of the corpus; choose another", out.display());
        }
        if out.exists() && !args.overwrite {
            bail!("--jsonl {}: exists already; choose another name, or give --overwrite", out.display());
        }
        if part.exists() && !args.overwrite && !args.resume {
            bail!(
                "--jsonl {}: an earlier run left {}; continue it with --resume, or start anew with --overwrite",
                out.display(),
                part.display()
            );
        }
        outputs.add("--jsonl", out, FileKind::JsonLines);
        outputs.add("--jsonl", &part, FileKind::JsonLines);
    }
    Ok((inputs, outputs))
}

fn reading(args: &ScoreArgs, session: &Session) -> anyhow::Result<Reading> {
    let config = session.model.config();
    let context = config.n_positions;
    let stride = args.stride.map_or((context / 2).max(1), |stride| stride as usize);
    if args.stride.is_some() && stride >= context {
        bail!("--stride {stride}: expected less than the model's context of {context} tokens");
    }
    let none = "--bos: the model's config names no bos_token_id; leave --bos out";
    let bos = if args.bos { Some(config.bos_token_id.context(none)?) } else { None };
    Ok(Reading { bos, context, stride, summaries: args.summaries })
}

fn first_line(args: &ScoreArgs, session: &Session, reading: &Reading) -> anyhow::Result<String> {
    let provenance = Provenance::of_tokens(session, reading.context)?;
    let &Reading { context: window, stride, bos, summaries } = reading;
    let by = if args.by == ByArg::Line { "line" } else { "document" };
    Ok(serde_json::to_string(&Facts { provenance, by, window, stride, bos: bos.is_some(), summaries })?)
}

/// Refuses ranks whose lines would differ.
fn agree(group: &dyn Group, session: &Session, first_line: &str) -> anyhow::Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let same = "start every rank with the same command and the same model";
    let fact = |what: &str, value: String, remedy| Fact { what: what.into(), value, remedy };
    let isa = Isa::current().as_str().to_owned();
    group.agree(&[
        fact("instruction set", isa, "set GPT2_ISA to one that every machine has"),
        fact("model or setting", first_line.to_owned(), same),
        fact("set of weights (by its fingerprint)", session.model.fingerprint()?.to_string(), same),
    ])?;
    Ok(())
}

/// The next documents that are not scored yet, on every rank; tells `skipped` of those that are.
fn next_section(
    group: &dyn Group,
    corpus: Option<&mut Corpus>,
    lines: Option<&mut Lines>,
    mut skipped: impl FnMut(&[Document], Found),
) -> anyhow::Result<Vec<Document>> {
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
    if group.size() == 1 {
        return Ok(section);
    }
    let texts = group.broadcast_bytes(serde_json::to_vec(&section)?)?;
    Ok(serde_json::from_slice(&texts)?)
}

/// The tokens of each document, and its scores, on every rank.
fn scored(
    group: &dyn Group,
    session: &Session,
    tokenizer: &Tokenizer,
    reading: &Reading,
    section: &[Document],
) -> anyhow::Result<Vec<(usize, Vec<Part>)>> {
    let config = session.model.config();
    let mut ids: Vec<Vec<u32>> = vec![];
    for document in section {
        let place = || match document.line {
            Some(line) => format!("{}, line {line}", document.file),
            None => document.file.clone(),
        };
        let encoded = tokenizer.encode(&document.text).with_context(place)?;
        if let Some(id) = encoded.iter().find(|id| **id as usize >= config.vocab_size) {
            bail!("{}: the tokenizer gives id {id}, the model has {} tokens", place(), config.vocab_size);
        }
        ids.push(reading.bos.into_iter().chain(encoded).collect());
    }
    let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
    let windows = windows(&lengths, reading.context, reading.stride);
    let batches = batches(&windows);
    let mut mine = vec![];
    for batch in batches.iter().skip(group.rank()).step_by(group.size()) {
        for part in parts(session, reading, &windows, &ids, batch)? {
            mine.extend(part.to_bytes());
        }
    }
    // Each rank's parts, in the order of its batches.
    let all = group.gather_bytes(&mine)?;
    let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let heads = if reading.summaries { config.n_layer * config.n_head } else { 0 };
    let mut of_windows: Vec<Option<Part>> = vec![None; windows.len()];
    for (number, batch) in batches.iter().enumerate() {
        for &window in batch {
            of_windows[window] = Part::take(&mut rests[number % group.size()], heads);
        }
    }
    let bos = usize::from(reading.bos.is_some());
    let mut documents: Vec<(usize, Vec<Part>)> =
        lengths.iter().map(|length| (length - bos, vec![])).collect();
    for (window, part) in windows.iter().zip(of_windows) {
        documents[window.document].1.push(part.context("a rank sent fewer scores than it has windows")?);
    }
    Ok(documents)
}

/// The scores of a batch.
fn parts(
    session: &Session,
    reading: &Reading,
    windows: &[Window],
    ids: &[Vec<u32>],
    batch: &[usize],
) -> anyhow::Result<Vec<Part>> {
    let texts: Vec<&[u32]> =
        batch.iter().map(|&i| &ids[windows[i].document][windows[i].tokens.clone()]).collect();
    let surprises = surprises(&session.model, &texts, reading.summaries)?;
    let mut parts = vec![];
    for (row, &window) in batch.iter().enumerate() {
        let part = Part::new(&windows[window], row, &surprises)?;
        if !part.surprise.is_finite() {
            let ids = Tensor::new(texts[row], &session.device)?.unsqueeze(0)?;
            bail!("{}", finite::explain(&session.model, &ids, None));
        }
        parts.push(part);
    }
    Ok(parts)
}

/// The line of a document.
fn row<'a>(document: &'a Document, tokens: usize, parts: &[Part], heads: usize) -> anyhow::Result<Row<'a>> {
    let predicted = parts.iter().map(|part| part.predicted).sum();
    let loss = (predicted > 0).then(|| surprise(parts) / predicted as f64);
    let perplexity = loss.map(f64::exp);
    if perplexity.is_some_and(f64::is_infinite) {
        bail!(
            "{}: its perplexity is beyond every number: the text is too improbable for the model",
            document.file
        );
    }
    let layers = if parts.iter().any(|part| part.heads.is_empty()) { vec![] } else { layers(parts, heads) };
    let Document { file, line, text } = document;
    Ok(Row { file, line: *line, bytes: text.len(), tokens, predicted, loss, perplexity, layers })
}

/// The surprise of a document in nats.
fn surprise(parts: &[Part]) -> f64 {
    parts.iter().map(|part| part.surprise).sum()
}

fn sum(a: Found, b: Found) -> Found {
    Found {
        tokens: a.tokens + b.tokens,
        predicted: a.predicted + b.predicted,
        surprise: a.surprise + b.surprise,
    }
}

fn bar(corpus: Option<&Corpus>) -> anyhow::Result<ProgressBar> {
    let Some(corpus) = corpus.filter(|_| !is_quiet()) else { return Ok(ProgressBar::hidden()) };
    let bar = match corpus.bytes {
        Some(bytes) => ProgressBar::new(bytes)
            .with_style(ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {eta} left")?),
        None => {
            ProgressBar::no_length().with_style(ProgressStyle::with_template("{bytes} scored, {elapsed}")?)
        }
    };
    Ok(bar)
}

fn print(total: &Total) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Total { documents, tokens, predicted, loss, perplexity } = total;
    match (loss, perplexity) {
        (Some(loss), Some(perplexity)) => {
            writeln!(out, "perplexity {perplexity:.4}  ({loss:.4} nats per token)")?;
        }
        _ => writeln!(
            out,
            "no token to predict: every document has one token at most; --bos predicts that, too"
        )?,
    }
    writeln!(out, "{}, {}, {predicted} predicted", count(*documents, "document"), count(*tokens, "token"))?;
    Ok(())
}
