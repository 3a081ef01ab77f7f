//! `gpt2 inspect`: a checkpoint's config and tensors, and whether they match; or what an adapter changes.

mod adapter;
mod points;

use crate::model::args::ModelArgs;
use crate::model::args::{named, note_default};
use crate::output::progress::with_bar;
use crate::output::terminal::TERMINAL;
use crate::output::{self, remedy};
use gpt2_loader::{Audit, Checkpoint, Files, Finding, GenerationConfig};
use gpt2_model::Config;
use gpt2_view::{Align, Table, visible_text};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 inspect
  gpt2 inspect path/to/gpt2 --json
  gpt2 inspect gpt2-xl   # on the Hub: reads a few kilobytes of 6 GB
  gpt2 inspect --points   # the names of values inside a run, for --export-point
  gpt2 inspect ./poems   # a LoRA adapter: what it changes, and by how much
  gpt2 inspect --adapter ./poems --model gpt2   # the same beside the weights that it changes")]
pub(crate) struct InspectArgs {
    /// The folder or name of a model, instead of --model, or the folder of an adapter
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) name: Option<String>,
    /// List the points of a run whose values --export-point takes, with their shapes
    #[arg(long)]
    pub(crate) points: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    config: &'a Config,
    /// The content of `generation_config.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation_config: Option<Generation<'a>>,
    parameters: u64,
    memory_bytes: MemoryByDtype,
    audit: Verdict,
    findings: Vec<FindingRow>,
    tensors: Vec<TensorRow>,
}

/// The end tokens of `generation_config.json`, which are used, and the settings that are not.
#[derive(Serialize)]
struct Generation<'a> {
    eos_token_id: &'a [u32],
    unused: &'a serde_json::Map<String, serde_json::Value>,
}

impl<'a> Generation<'a> {
    fn new(found: &'a GenerationConfig) -> Self {
        Self { eos_token_id: &found.ends, unused: &found.unused }
    }

    fn line(&self) -> String {
        let list = |items: Vec<String>| if items.is_empty() { "none".into() } else { items.join(", ") };
        let ends = list(self.eos_token_id.iter().map(u32::to_string).collect());
        let unused = list(self.unused.iter().map(|(name, value)| format!("{name} {value}")).collect());
        format!(
            "generation_config.json: end tokens, used in place of config.json's: {ends}; not used: {unused}"
        )
    }
}

/// The memory of the parameters in each dtype.
#[derive(Serialize)]
struct MemoryByDtype {
    f32: u64,
    f16: u64,
    bf16: u64,
}

#[derive(Serialize)]
struct Verdict {
    clean: bool,
    missing: Vec<String>,
    unexpected: Vec<String>,
    unused: Vec<String>,
    mismatched: Vec<String>,
    duplicates: Vec<String>,
    /// `None` if only the headers were read.
    not_finite: Option<Vec<String>>,
    buffers: Vec<String>,
}

#[derive(Serialize)]
struct FindingRow {
    about: &'static str,
    found: String,
    remedy: String,
}

impl From<Finding> for FindingRow {
    fn from(Finding { about, found, advice, .. }: Finding) -> Self {
        Self { about, found, remedy: remedy::advice(advice) }
    }
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    shape: Vec<usize>,
    dtype: String,
    file: String,
}

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_deref();
    if args.points {
        points::run(&Checkpoint::open(&files(args)?)?, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(files) = adapter::named(name, &args.model)? {
        return adapter::run(name, &args.model, args.json, &files);
    }
    let files = files(args)?;
    let checkpoint = Checkpoint::open(&files)?;
    let generation = GenerationConfig::open(&files)?;
    let generation = generation.as_ref().map(Generation::new);
    let mut audit = checkpoint.audit();
    let numbers = with_bar("tensors read", |progress| checkpoint.numbers(progress))?;
    let read = numbers.is_some();
    let numbers = numbers.unwrap_or_default();
    let findings = checkpoint.findings().into_iter().chain(numbers.finding());
    let findings: Vec<FindingRow> = findings.map(FindingRow::from).collect();
    audit.not_finite = numbers.not_finite;
    if args.json {
        output::json(&report(&checkpoint, generation, &audit, findings, read))?;
    } else {
        print(&checkpoint, generation.as_ref(), &audit, findings, read)?;
    }
    Ok(if audit.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The files of a folder; for a model on the Hub, only the headers, unless everything is cached.
fn files(args: &InspectArgs) -> anyhow::Result<Files> {
    let name = args.name.as_deref().or(args.model.model.as_deref());
    note_default(name);
    named(name, &args.model.hub).files_by(&TERMINAL, |hub, id, revision| {
        let headers = hub.headers(&id, revision)?;
        if headers.bytes_read > 0 {
            output::note(&format!("read only the weights' headers, {} bytes", headers.bytes_read));
        }
        Ok(headers.files)
    })
}

fn report<'a>(
    checkpoint: &'a Checkpoint,
    generation_config: Option<Generation<'a>>,
    audit: &Audit,
    findings: Vec<FindingRow>,
    read: bool,
) -> Report<'a> {
    let names = |list: &[gpt2_loader::TensorInfo]| list.iter().map(|t| t.name.clone()).collect();
    Report {
        model: checkpoint.name(),
        config: checkpoint.config(),
        generation_config,
        parameters: audit.parameter_count,
        memory_bytes: memory(audit),
        audit: Verdict {
            clean: audit.is_clean(),
            missing: audit.missing.iter().map(|p| p.name.clone()).collect(),
            unexpected: names(&audit.unexpected),
            unused: names(&audit.unused),
            mismatched: audit.mismatched.iter().map(|m| m.found.name.clone()).collect(),
            duplicates: names(&audit.duplicates),
            not_finite: read.then(|| audit.not_finite.iter().map(|(name, _)| name.clone()).collect()),
            buffers: names(&audit.buffers),
        },
        findings,
        tensors: checkpoint
            .tensors()
            .map(|(_, t)| TensorRow {
                name: t.name.clone(),
                shape: t.shape.clone(),
                dtype: t.dtype.to_string(),
                file: t.file_name(),
            })
            .collect(),
    }
}

fn memory(audit: &Audit) -> MemoryByDtype {
    let n = audit.parameter_count;
    MemoryByDtype { f32: 4 * n, f16: 2 * n, bf16: 2 * n }
}

fn print(
    checkpoint: &Checkpoint,
    generation: Option<&Generation>,
    audit: &Audit,
    rows: Vec<FindingRow>,
    read: bool,
) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", visible_text(checkpoint.name()))?;
    let mut config = Table::new(&[("config", Align::Left), ("", Align::Left)]);
    if let serde_json::Value::Object(fields) = serde_json::to_value(checkpoint.config())? {
        for (name, value) in fields {
            config.row(vec![name, value.to_string()]);
        }
    }
    writeln!(out, "{}", config.render())?;
    if let Some(generation) = generation {
        writeln!(out, "{}\n", visible_text(&generation.line()))?;
    }

    let mut tensors = Table::new(&[("tensor", Align::Left), ("shape", Align::Left), ("dtype", Align::Left)]);
    for (_, t) in checkpoint.tensors() {
        tensors.row(vec![t.name.clone(), format!("{:?}", t.shape), t.dtype.to_string()]);
    }
    writeln!(out, "{}", tensors.render())?;

    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let memory = memory(audit);
    writeln!(
        out,
        "{} parameters: {} in f32, {} in f16 or bf16; {} mask buffers, not counted",
        audit.parameter_count,
        megabytes(memory.f32),
        megabytes(memory.f16),
        audit.buffers.len()
    )?;
    let mut findings = Table::new(&[("", Align::Left); 3]);
    for FindingRow { about, found, remedy } in rows {
        findings.row(vec![about.into(), found, remedy]);
    }
    writeln!(out, "{}", findings.render())?;
    writeln!(out, "audit: {}", audit.to_string().lines().map(visible_text).collect::<Vec<_>>().join("\n"))?;
    if !read {
        writeln!(out, "the weights are not here: whether their numbers are finite is unknown")?;
    } else if audit.not_finite.is_empty() {
        writeln!(out, "all numbers are finite")?;
    }
    Ok(())
}
