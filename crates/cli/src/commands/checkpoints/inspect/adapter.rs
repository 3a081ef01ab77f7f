//! The changes that an adapter makes to a model's weights, and their sizes.

use crate::model::args::{ModelArgs, files as model_files};
use crate::output;
use crate::output::terminal::TERMINAL;
use candle_core::{DType, Device, Tensor};
use gpt2_engine::NamedAdapter;
use gpt2_loader::{AdapterAudit, AdapterCheckpoint, AdapterConfig, AdapterFiles, Checkpoint};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::lora::Update;
use gpt2_model::parameters::Values;
use gpt2_view::{Align, Table, visible_text};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report<'a> {
    adapter: &'a str,
    config: &'a AdapterConfig,
    parameters: u64,
    bytes: u64,
    /// The model that it was compared with.
    model: Option<&'a str>,
    /// Whether it fits that model.
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<bool>,
    layers: Vec<Row>,
    /// Parameters that it holds whole.
    replaced: Vec<String>,
    /// Numbers that are NaN or infinite.
    findings: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    layer: String,
    rank: usize,
    scaling: f64,
    /// The Frobenius norm of what is added to the weight.
    norm: f64,
    /// The norm as a share of the weight's own norm.
    #[serde(skip_serializing_if = "Option::is_none")]
    relative_norm: Option<f64>,
}

/// The adapter to inspect, if the arguments name one.
pub(super) fn named(name: Option<&str>, args: &ModelArgs) -> anyhow::Result<Option<AdapterFiles>> {
    match (name, args.adapters.list.as_slice()) {
        (_, [one]) if (one.weight - 1.0).abs() > 0.0 => {
            anyhow::bail!("--adapter: inspect shows an adapter as it is; leave ={} out", one.weight)
        }
        (_, [one]) => Ok(Some(args.options().adapter(&one.source, &TERMINAL)?)),
        (_, [_, second, ..]) => {
            anyhow::bail!("--adapter: inspect shows one at a time, and {} is the second", second.source)
        }
        (Some(name), []) => match NamedAdapter::find(name) {
            Ok(NamedAdapter::Folder(dir)) if AdapterFiles::is_in(&dir) => {
                Ok(Some(AdapterFiles::directory(&dir)?))
            }
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

pub(super) fn run(
    name: Option<&str>,
    args: &ModelArgs,
    json: bool,
    files: &AdapterFiles,
) -> anyhow::Result<ExitCode> {
    let adapter = AdapterCheckpoint::open(files)?;
    // A model to compare it with, only if it was asked for.
    let positional = name.filter(|_| !args.adapters.list.is_empty());
    let base = match args.model.as_deref().or(positional) {
        Some(name) => Some(Checkpoint::open(&model_files(Some(name), &args.hub)?)?),
        None => None,
    };
    let not_finite = adapter.not_finite()?;
    let mut audit = base.as_ref().map(|base| adapter.audit(base.config())).transpose()?;
    if let Some(audit) = &mut audit {
        audit.not_finite.clone_from(&not_finite);
    }
    let fits = audit.as_ref().map(AdapterAudit::is_clean);
    let model = match &base {
        Some(base) if fits == Some(true) => Some(base.load_model(DType::F32, &Device::Cpu)?),
        _ => None,
    };
    let updates = adapter.updates()?;
    let weights = model.as_ref().map(Gpt2LMHeadModel::named_parameters).unwrap_or_default();
    let weights: BTreeMap<_, _> = weights.into_iter().collect();
    let layers = updates.iter().map(|(layer, update)| row(layer, update, &weights));
    let layers: Vec<Row> = layers.collect::<anyhow::Result<_>>()?;
    let factors = |name: &str| name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
    let replaced = adapter.tensors().map(|info| info.name.clone()).filter(|name| !factors(name)).collect();
    let report = Report {
        adapter: adapter.name(),
        config: adapter.config(),
        parameters: adapter.tensors().map(|t| t.shape.iter().map(|&n| n as u64).product::<u64>()).sum(),
        bytes: std::fs::metadata(&files.weights)?.len(),
        model: base.as_ref().map(Checkpoint::name),
        fits,
        findings: findings(&not_finite, &layers),
        layers,
        replaced,
    };
    output::report(json, &report, |report| print(report, audit.as_ref()))?;
    let is_sound = fits != Some(false) && report.findings.is_empty();
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Findings about numbers that are not finite: those of the adapter itself, or else of its updates and the model's weights.
fn findings(not_finite: &[(String, usize)], layers: &[Row]) -> Vec<String> {
    if !not_finite.is_empty() {
        let count =
            |(name, count): &(String, usize)| format!("{name}: {count} of its numbers are NaN or infinite");
        return not_finite.iter().map(count).collect();
    }
    let overflows = |row: &&Row| row.norm.is_nan() || row.norm > f64::from(f32::MAX);
    let overflows =
        layers.iter().filter(overflows).map(|row| format!("{}: its change overflows f32", row.layer));
    let damaged = layers.iter().filter(|row| row.relative_norm.is_some_and(f64::is_nan));
    let damaged = damaged.map(|row| format!("{}: the model's weight holds NaN or infinity", row.layer));
    overflows.chain(damaged).collect()
}

fn row(layer: &str, update: &Update, weights: &BTreeMap<String, Values>) -> anyhow::Result<Row> {
    let norm = update.norm()?;
    let weight = weights.get(&format!("{layer}.weight")).map(Values::tensor).transpose()?;
    let relative = |weight: &Tensor| -> anyhow::Result<f64> {
        Ok(norm / weight.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?.sqrt())
    };
    let relative_norm = weight.as_ref().map(relative).transpose()?;
    Ok(Row { layer: layer.to_string(), rank: update.rank(), scaling: update.scaling(), norm, relative_norm })
}

/// A number for the table, whatever its size.
fn number(x: f64, decimals: usize) -> String {
    match x.abs() {
        size if !size.is_finite() => "not finite".into(),
        size if size < 1e6 => format!("{x:.decimals$}"),
        _ => format!("{x:.decimals$e}"),
    }
}

fn print(report: &Report, audit: Option<&AdapterAudit>) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let base = report.config.base_model_name_or_path.as_deref().unwrap_or("a model that it does not name");
    writeln!(out, "{}: a LoRA adapter of {}\n", visible_text(report.adapter), visible_text(base))?;
    let mut table = Table::new(&[
        ("layer", Align::Left),
        ("rank", Align::Right),
        ("scaling", Align::Right),
        ("norm of the change", Align::Right),
        ("of the weight's", Align::Right),
    ]);
    for row in &report.layers {
        let relative = row.relative_norm.map_or_else(String::new, |part| number(100.0 * part, 2) + " %");
        table.row(vec![
            row.layer.clone(),
            row.rank.to_string(),
            number(row.scaling, 3),
            number(row.norm, 4),
            relative,
        ]);
    }
    writeln!(out, "{}", table.render())?;
    for name in &report.replaced {
        writeln!(out, "holds {} whole", visible_text(name))?;
    }
    writeln!(out, "{} parameters, {:.1} kB", report.parameters, report.bytes as f64 / 1e3)?;
    // The audit lists the adapter's own.
    let listed = audit.is_some_and(|audit| !audit.not_finite.is_empty());
    for finding in report.findings.iter().filter(|_| !listed) {
        writeln!(out, "not finite: {}", visible_text(finding))?;
    }
    match audit {
        Some(audit) => {
            let text: Vec<_> = audit.to_string().lines().map(visible_text).collect();
            writeln!(out, "audit: {}", text.join("\n"))?;
        }
        None => writeln!(out, "give --adapter and --model to compare it with a model's weights")?,
    }
    Ok(())
}
