//! `gpt2 inspect`: a checkpoint's config and tensors, and whether they match; or what an adapter changes.

mod adapter;
mod points;

use crate::model::args::{ModelArgs, note_default};
use crate::output;
use crate::output::terminal::TERMINAL;
use gpt2_engine::studies::checkpoints::inspect::{self, FindingRow, ModelReport, Report};
use gpt2_view::{Align, Table, visible_text};
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

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    TERMINAL.works();
    args.model.refuse_processed("inspect")?;
    let name = args.name.as_deref();
    let options = args.model.options();
    if args.points || options.adapters.is_empty() {
        note_default(name.or(options.model.as_deref()));
    }
    if args.points {
        points::show(&inspect::points(name, &options, &TERMINAL)?, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = inspect::inspect(name, &options, &TERMINAL)?;
    output::report(args.json, &report, |report| match report {
        Report::Model(model) => print(model),
        Report::Adapter(adapter) => adapter::print(adapter),
    })?;
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &ModelReport) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let ModelReport { model, parameters, memory_bytes, audit, audit_text, .. } = report;
    writeln!(out, "{}\n", visible_text(model))?;
    let mut config = Table::new(&[("config", Align::Left), ("", Align::Left)]);
    if let serde_json::Value::Object(fields) = serde_json::to_value(&report.config)? {
        for (name, value) in fields {
            config.row(vec![name, value.to_string()]);
        }
    }
    writeln!(out, "{}", config.render())?;
    if let Some(generation) = &report.generation_config {
        writeln!(out, "{}\n", visible_text(&generation.line()))?;
    }

    let mut tensors = Table::new(&[("tensor", Align::Left), ("shape", Align::Left), ("dtype", Align::Left)]);
    for t in &report.tensors {
        tensors.row(vec![t.name.clone(), format!("{:?}", t.shape), t.dtype.clone()]);
    }
    writeln!(out, "{}", tensors.render())?;

    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    writeln!(
        out,
        "{parameters} parameters: {} in f32, {} in f16 or bf16; {} mask buffers, not counted",
        megabytes(memory_bytes.f32),
        megabytes(memory_bytes.f16),
        audit.buffers.len()
    )?;
    let mut findings = Table::new(&[("", Align::Left); 3]);
    for FindingRow { about, found, remedy } in &report.findings {
        findings.row(vec![(*about).into(), found.clone(), remedy.clone()]);
    }
    writeln!(out, "{}", findings.render())?;
    writeln!(out, "audit: {}", audit_text.lines().map(visible_text).collect::<Vec<_>>().join("\n"))?;
    match audit.not_finite.as_deref() {
        None => writeln!(out, "the weights are not here: whether their numbers are finite is unknown")?,
        Some([]) => writeln!(out, "all numbers are finite")?,
        Some(_) => {}
    }
    Ok(())
}
