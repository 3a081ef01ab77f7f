//! `gpt2 record`: the values at hook points over a corpus, in a folder of shards, on one process or on many.

mod run;
mod texts;

use crate::changes::Prepared;
use crate::corpus::{By, ByArg, Corpus};
use crate::inputs::Inputs;
use crate::interventions::InterventionArgs;
use crate::output::{self, note};
use crate::outputs::Outputs;
use crate::parallel::{self, ParallelArgs, TIMEOUT};
use crate::points::PointName;
use crate::progress::{Stop, bar};
use crate::provenance::Provenance;
use crate::session::{ModelArgs, Session};
use crate::text_lines::STDIN;
use crate::values::{count, one_of};
use anyhow::{Context, bail};
use candle_core::DType;
use gpt2_files::StoreWriter;
use gpt2_model::hooks::Point;
use gpt2_parallel::{Fact, Group};
use run::Run;
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use texts::{Pending, ShardTexts, next_section};

#[derive(Debug, clap::Args)]
#[command(mut_arg("timeout", |arg| arg.help(TIMEOUT)))]
#[command(after_help = "\
DIR holds store.json and shards (00000.safetensors and so on), each with a tensor (tokens, ..) for every point, and `ids`,
`documents` and `positions` (tokens). A document longer than the context is read in windows one after another, each with nothing before it. The pass
ends at the last point. Shards are there whole or not at all, and the same corpus gives the same bytes on any number of processes, which
must see the same DIR.

Examples:
  gpt2 record notes.txt --points blocks.2.hook_resid_post --out activations
  gpt2 record texts/ --points blocks.1.attn.hook_z,blocks.1.hook_mlp_out --store f16 --out heads --model gpt2
  gpt2 record notes.txt --points blocks.2.hook_resid_post --out activations --resume   # go on after Ctrl-C
  mpirun -n 4 gpt2 record texts/ --points blocks.2.hook_resid_post --out shared   # on four processes")]
pub(crate) struct RecordArgs {
    /// A text, JSON lines (.jsonl), a folder of .txt files (with its subfolders), or - for standard input
    #[arg(value_name = "FILE|FOLDER|-")]
    corpus: PathBuf,
    /// The hook points, by TransformerLens' names; `gpt2 inspect --points` lists them
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    points: Vec<PointName>,
    /// The folder for the shards
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// The precision of the values on disk
    #[arg(long, default_value = "f32", value_name = "DTYPE", value_parser = one_of(STORED))]
    store: DType,
    /// Tokens of a shard at most
    #[arg(long, default_value_t = 32_768, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    shard_tokens: u32,
    /// What a document is: a whole file, each line that is not blank, or a field of each line of JSON [default: json
    /// for a .jsonl file, else document]
    #[arg(long, value_enum)]
    by: Option<ByArg>,
    /// The field of JSON lines that holds the text [default: text]
    #[arg(long, value_name = "NAME")]
    field: Option<String>,
    /// Put the model's first token (<|endoftext|> in GPT-2) before each window
    #[arg(long)]
    bos: bool,
    /// Tokens of a window at most [default: the model's context]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Go on where an earlier run stopped, or start if there was none
    #[arg(long)]
    resume: bool,
    /// Print the totals as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    interventions: InterventionArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
    #[command(flatten)]
    model: ModelArgs,
}

const STORED: &[(&str, DType)] = &[("f32", DType::F32), ("f16", DType::F16)];

/// What every shard depends on.
#[derive(Serialize)]
struct Facts<'a> {
    provenance: Provenance,
    /// What a document is.
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
struct Total {
    provenance: Provenance,
    folder: PathBuf,
    points: Vec<String>,
    documents: usize,
    /// How many of them have no token.
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
    let by = By::new(args.by, args.field.as_deref(), &args.corpus)?;
    let mut corpus = leads.then(|| Corpus::open(&args.corpus, by.clone())).transpose()?;
    let mut inputs = Inputs::default();
    for file in corpus.iter().flat_map(|corpus| &corpus.files).filter(|file| **file != Path::new(STDIN)) {
        inputs.file("the corpus", file);
    }
    args.interventions.inputs(&mut inputs);
    check_folder(args)?;
    inputs.spare_folder(&format!("--out {}", args.out.display()), &args.out)?;
    let session = args.model.session_for(inputs, &Outputs::new(false))?;
    let recording = Recording::new(args, &session)?;
    let provenance = Provenance::of_tokens(&session, recording.window)?.under(&recording.changes.described());
    note(&provenance.model_line());
    let facts = facts(args, &by, &session, &recording, provenance.clone())?;
    let fact = |(what, value): (&String, &serde_json::Value)| Fact {
        what: what.clone(),
        value: value.to_string(),
        remedy: "start every rank with the same command and the same model",
    };
    group.agree(|| anyhow::Ok(facts.as_object().into_iter().flatten().map(fact).collect()))?;
    let writer = || {
        StoreWriter::new(&args.out, recording.names.clone(), facts.clone())
            .context("--out: name another folder, or give the options of the earlier run")
    };
    // One rank makes the folder, and all of them see it.
    if leads {
        writer()?;
    }
    group.any(false)?;
    let writer = writer()?;
    let stop = Stop::listen()?;
    let bar = bar(
        corpus.as_ref().and_then(|corpus| corpus.bytes),
        "{bar:30} {bytes} of {total_bytes}, {eta} left{msg}",
    );
    let mut pending = Pending::new(args.shard_tokens as usize);
    let run =
        Run { group, session: &session, recording: &recording, writer: &writer, stop: &stop, bar: &bar };
    let (mut tokens, started): (Vec<usize>, _) = (vec![], Instant::now());
    let mut ended = false;
    while !ended {
        let section = next_section(group, corpus.as_mut())?;
        ended = section.is_empty();
        pending.add(&recording, &session, section)?;
        // A shard for each rank at a time, so that none waits for another.
        while let Some(round) = pending.round(group.size(), ended) {
            if group.any(stop.is_asked())? || !run.round(tokens.len(), &round)? {
                bar.finish_and_clear();
                note("stopped; the finished shards stay: run the same command with --resume to continue");
                return Ok(ExitCode::from(stop.code()));
            }
            tokens.extend(round.iter().map(ShardTexts::tokens));
            let pace = tokens.iter().sum::<usize>() as f64 / started.elapsed().as_secs_f64();
            bar.set_message(format!(", {pace:.0} tokens/s"));
            bar.set_position(corpus.as_ref().map_or(0, Corpus::read));
        }
    }
    bar.finish_and_clear();
    if pending.documents == 0 && leads {
        bail!("{}: holds no document", args.corpus.display());
    }
    group.any(false)?; // until all ranks have written theirs
    let total = Total {
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
        note(&format!("{:.0} tokens/s", total.tokens as f64 / started.elapsed().as_secs_f64()));
        output::report(args.json, &total, print)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a folder that holds something, unless a run is to go on there.
fn check_folder(args: &RecordArgs) -> anyhow::Result<()> {
    let out = args.out.display();
    if args.out.exists() && !args.out.is_dir() {
        bail!("--out {out}: is a file; name a folder, which may be new");
    }
    let holds = |name: &str| args.out.join(name).exists();
    let is_empty = std::fs::read_dir(&args.out).map_or(true, |mut entries| entries.next().is_none());
    if is_empty || (args.resume && holds("store.json")) {
        return Ok(());
    }
    if holds("store.json") {
        bail!("--out {out}: holds values already; go on with --resume, or name another folder");
    }
    bail!("--out {out}: holds other files; name an empty folder, or a new one")
}

/// What to record of each token.
struct Recording<'a> {
    changes: Prepared<'a>,
    points: Vec<Point>,
    /// As the user gave them, and as they stand in the shards.
    names: Vec<String>,
    bos: Option<u32>,
    window: usize,
    store: DType,
}

impl<'a> Recording<'a> {
    fn new(args: &'a RecordArgs, session: &'a Session) -> anyhow::Result<Self> {
        let config = session.model.config();
        let found = PointName::all("--points", &args.points, config.n_layer)?;
        let (names, points): (Vec<String>, Vec<Point>) = found.into_iter().unzip();
        if let Some((name, _)) =
            names.iter().zip(&points).find(|(_, point)| matches!(point, Point::Scores(_) | Point::Pattern(_)))
        {
            bail!(
                "--points {name}: has a value for each pair of tokens, not for each token; record another point"
            );
        }
        if args.interventions.need_whole_texts() {
            bail!(
                "interventions at positions, or with means over the text, do not fit windows; take fixed means with --mean-of"
            );
        }
        let none = "--bos: the model's config names no bos_token_id; leave --bos out";
        let bos = if args.bos { Some(config.bos_token_id.context(none)?) } else { None };
        let window = args.window.map_or(config.n_positions, |window| window as usize);
        if window > config.n_positions {
            bail!("--window {window}: the model reads n_positions = {} tokens", config.n_positions);
        }
        if bos.is_some() && window < 2 {
            bail!("--window {window}: expected 2 at least, for the first token of --bos and another");
        }
        let changes = Prepared::new(&args.interventions, session)?;
        Ok(Self { changes, points, names, bos, window, store: args.store })
    }
}

fn facts(
    args: &RecordArgs,
    by: &By,
    session: &Session,
    recording: &Recording,
    provenance: Provenance,
) -> anyhow::Result<serde_json::Value> {
    let mut hash = DefaultHasher::new();
    (session.model.fingerprint()?, session.tokenizer()?.to_json().ok()).hash(&mut hash);
    recording.changes.hash(&mut hash)?;
    Ok(serde_json::to_value(Facts {
        provenance,
        by,
        points: recording.names.clone(),
        store: DType::as_str(&recording.store),
        window: recording.window,
        shard_tokens: args.shard_tokens,
        bos: recording.bos.is_some(),
        fingerprint: format!("{:016x}", hash.finish()),
        isa: candle_fused::Isa::current().as_str(),
    })?)
}

fn print(total: &Total) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Total { folder, points, documents, empty, tokens, shards, .. } = total;
    writeln!(
        out,
        "{}: {} of {}, {}, at {}",
        folder.display(),
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
