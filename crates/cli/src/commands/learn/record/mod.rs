//! `gpt2 record`: the values at hook points over a corpus, in a folder of shards, on one process or on many.

mod args;
mod recording;
mod run;
mod texts;

use crate::model::hub;
use crate::output::progress::bar;
use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::process::parallel;
use crate::process::signals::{self, Stop};
use anyhow::bail;
pub(crate) use args::RecordArgs;
use candle_core::DType;
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::Spelling;
use gpt2_engine::texts::STDIN;
use gpt2_engine::texts::{By, Corpus, shared};
use gpt2_engine::words::count;
use gpt2_files::{INDEX, StoreWriter};
use gpt2_parallel::{Fact, Group};
use gpt2_view::visible_text;
use recording::Recording;
use run::RecordRun;
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use texts::{Pending, ShardTexts};

/// Tells how a stopped run goes on.
const RESUME: &str = "the finished shards stay: run the same command with --resume to continue";

/// The settings that every shard depends on.
#[derive(Serialize)]
struct ShardSettings<'a> {
    provenance: RunProvenance,
    /// The unit that counts as a document.
    #[serde(flatten)]
    by: &'a By,
    points: Vec<String>,
    store: &'static str,
    window: usize,
    shard_tokens: u32,
    bos: bool,
    /// The model's config and weights, the tokenizer, and what interventions read from files.
    fingerprint: String,
    isa: &'static str,
}

#[derive(Serialize)]
struct RecordingTotals {
    provenance: RunProvenance,
    folder: PathBuf,
    points: Vec<String>,
    documents: usize,
    /// The number of documents without a token.
    empty: usize,
    tokens: usize,
    shards: usize,
}

pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    parallel::run(&args.parallel, args.model.hub.timeout, |group| record(args, &**group))
}

fn record(args: &RecordArgs, group: &dyn Group) -> anyhow::Result<ExitCode> {
    // Rank 0 alone reads the corpus; the others get the texts from it.
    let leads = group.rank() == 0;
    let by = By::new(&args.documents.options(), &args.corpus, Spelling::Flags)?;
    let mut corpus =
        leads.then(|| Corpus::open(&args.corpus, by.clone(), Spelling::Flags, &TERMINAL)).transpose()?;
    let inputs = inputs(args, corpus.as_ref());
    inputs.spare_folder(&format!("--out {}", args.out.display()), &args.out)?;
    check_folder(args)?;
    if group.size() > 1 && args.corpus == Path::new(STDIN) {
        bail!("-: standard input keeps the other processes waiting; name a file");
    }
    let opened = args.model.open_for(inputs, &Outputs::new(false))?;
    let recording = Recording::new(args, &opened)?;
    let provenance =
        RunProvenance::of_tokens(&opened, recording.windowing.window)?.under(&recording.changes.described());
    note(&provenance.model_line());
    let facts = facts(args, &by, &opened, &recording, provenance.clone())?;
    agree(group, &facts)?;
    let writer = || StoreWriter::new(&args.out, recording.names.clone(), facts.clone());
    // One rank makes the folder, and all of them see it.
    if leads {
        writer()?;
    }
    group.any(false)?;
    let writer = writer()?;
    let stop = Stop::listen();
    signals::left_by_an_end(RESUME);
    let bar = bar(
        corpus.as_ref().and_then(|corpus| corpus.bytes),
        "{bar:30} {bytes} of {total_bytes}, {eta} left{msg}",
    );
    let mut pending = Pending::new(args.shard_tokens as usize);
    let run =
        RecordRun { group, opened: &opened, recording: &recording, writer: &writer, stop: &stop, bar: &bar };
    // Of each shard; and how many of them this run has computed.
    let (mut tokens, mut fresh, started): (Vec<usize>, _, _) = (vec![], 0, Instant::now());
    let mut ended = false;
    while !ended {
        let section = shared(group, corpus.as_mut().map_or(Ok(vec![]), Corpus::section)?)?;
        ended = section.is_empty();
        pending.add(&recording, &opened, section)?;
        // A shard for each rank at a time, so that none waits for another.
        while let Some(round) = pending.round(group.size(), ended) {
            let Some(computed) = run.round(tokens.len(), &round)? else {
                bar.finish_and_clear();
                note(&format!("stopped; {RESUME}"));
                return Ok(ExitCode::from(stop.code()));
            };
            tokens.extend(round.iter().map(ShardTexts::tokens));
            fresh += computed;
            if fresh > 0 {
                bar.set_message(format!(", {:.0} tokens/s", fresh as f64 / started.elapsed().as_secs_f64()));
            }
            bar.set_position(corpus.as_ref().map_or(0, Corpus::read));
        }
    }
    bar.finish_and_clear();
    if pending.documents == 0 && leads {
        bail!("{}: holds no document", args.corpus.display());
    }
    group.any(false)?; // until all ranks have written theirs
    let total = RecordingTotals {
        provenance,
        folder: args.out.clone(),
        points: recording.names.clone(),
        documents: pending.documents,
        empty: pending.empty,
        tokens: tokens.iter().sum(),
        shards: tokens.len(),
    };
    if leads {
        writer.finish(tokens)?;
        if fresh > 0 {
            note(&format!("{:.0} tokens/s", fresh as f64 / started.elapsed().as_secs_f64()));
        }
        output::report(args.json, &total, print)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that the run reads.
fn inputs(args: &RecordArgs, corpus: Option<&Corpus>) -> ReadFiles {
    let mut inputs = ReadFiles::default();
    let files = corpus.into_iter().flat_map(|corpus| &corpus.files);
    for file in files.filter(|file| **file != Path::new(STDIN)) {
        inputs.file("the corpus", file);
    }
    args.interventions.inputs(&mut inputs);
    hub::inputs(&args.model.hub, &mut inputs);
    args.model.model.iter().for_each(|model| inputs.named(model));
    inputs
}

/// Refuses ranks whose shards would differ.
fn agree(group: &dyn Group, facts: &serde_json::Value) -> anyhow::Result<()> {
    let fact = |(what, value): (&String, &serde_json::Value)| Fact {
        what: what.clone(),
        value: value.to_string(),
        remedy: "start every rank with the same command and the same model",
    };
    group.agree(|| anyhow::Ok(facts.as_object().into_iter().flatten().map(fact).collect()))
}

/// Refuses a folder that holds something, unless a run is to go on there, or one has left it without a shard.
fn check_folder(args: &RecordArgs) -> anyhow::Result<()> {
    let out = args.out.display();
    if args.out == Path::new("-") {
        bail!("--out -: expected the name of a folder; ./- is one");
    }
    if args.out.exists() && !args.out.is_dir() {
        bail!("--out {out}: is a file; name a folder, which may be new");
    }
    let entries = std::fs::read_dir(&args.out).into_iter().flatten().flatten();
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let is_begun = names.iter().all(|name| name == INDEX || name.starts_with(".gpt2-"));
    if is_begun || (args.resume && names.iter().any(|name| name == INDEX)) {
        return Ok(());
    }
    if names.iter().any(|name| name == INDEX) {
        bail!("--out {out}: holds values already; go on with --resume, or name another folder");
    }
    bail!("--out {out}: holds other files; name an empty folder, or a new one")
}

fn facts(
    args: &RecordArgs,
    by: &By,
    opened: &Opened,
    recording: &Recording,
    provenance: RunProvenance,
) -> anyhow::Result<serde_json::Value> {
    let mut hash = DefaultHasher::new();
    (opened.model.fingerprint()?, opened.tokenizer()?.to_json().ok()).hash(&mut hash);
    recording.changes.hash(&mut hash, &TERMINAL)?;
    Ok(serde_json::to_value(ShardSettings {
        provenance,
        by,
        points: recording.names.clone(),
        store: DType::as_str(&recording.store),
        window: recording.windowing.window,
        shard_tokens: args.shard_tokens,
        bos: recording.windowing.bos.is_some(),
        fingerprint: format!("{:016x}", hash.finish()),
        isa: candle_fused::Isa::current().as_str(),
    })?)
}

fn print(total: &RecordingTotals) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let RecordingTotals { folder, points, documents, empty, tokens, shards, .. } = total;
    writeln!(
        out,
        "{}: {} of {}, {}, at {}",
        visible_text(&folder.display().to_string()),
        count(*tokens, "token"),
        count(*documents, "document"),
        count(*shards, "shard"),
        points.join(", ")
    )?;
    if *empty > 0 {
        writeln!(out, "{} without a token", count(*empty, "document"))?;
    }
    Ok(())
}
