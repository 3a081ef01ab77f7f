//! The report of `gpt2 patch` over many pairs.

use super::one::{print_paths, shown, unit};
use crate::output::{self, note};
use crate::results::picture::{HeadMap, head_maps};
use candle_core::{Device, Tensor};
use gpt2_engine::studies::interpret::patch::{HeadMeans, LayerMeans, PairsReport, agreement};
use gpt2_engine::words::count;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Frame, Table};
use std::io::Write;

/// The heads by layer.
pub(super) fn picture(frame: &Frame, report: &PairsReport) -> candle_core::Result<Vec<u8>> {
    let exact: Vec<f64> = report.heads.iter().map(|head| head.exact.mean).collect();
    let layers = report.layers.len();
    let exact = Tensor::from_vec(exact, (layers, report.heads.len() / layers.max(1)), &Device::Cpu)?;
    let unit = unit(report.metric.as_deref());
    head_maps(frame, &[HeadMap { name: "", unit, values: &exact, end: None, from_zero: false }])
}

pub(super) fn print(report: &PairsReport, all: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.model_line())?;
    writeln!(
        out,
        "{} over {}: {:#} after the clean prompts, {:#} after the corrupted ones",
        report.metric.as_deref().unwrap_or("the logit difference"),
        count(report.pairs, "pair"),
        report.clean_difference,
        report.corrupt_difference
    )?;
    writeln!(
        out,
        "below: how much of the difference a part brings back when the corrupted run gets it from the clean one\n"
    )?;
    let mut sorted: Vec<&HeadMeans> = report.heads.iter().collect();
    sorted.sort_by(|a, b| b.exact.mean.abs().total_cmp(&a.exact.mean.abs()));
    let mut table = Table::new(&[("head", Right), ("exact", Left), ("estimated", Left)]);
    for HeadMeans { layer, head, exact, estimated } in sorted.iter().take(shown(sorted.len(), all)) {
        table.row(vec![format!("{layer}.{head}"), exact.to_string(), estimated.to_string()]);
    }
    writeln!(out, "{}", table.render())?;
    if let Some(agreement) = agreement(report.heads.len(), report.correlation) {
        writeln!(out, "{agreement}\n")?;
    }
    writeln!(out, "what the attention and the MLP of each layer bring back (exact):\n")?;
    let mut table = Table::new(&[("layer", Right), ("attention", Left), ("MLP", Left)]);
    for LayerMeans { layer, attention, mlp } in &report.layers {
        table.row(vec![layer.to_string(), attention.to_string(), mlp.to_string()]);
    }
    write!(out, "{}", table.render())?;
    print_paths(&mut out, &report.paths)?;
    let rest = report.heads.len() - shown(report.heads.len(), all);
    if rest > 0 {
        note(&format!("{rest} more heads: --all; --json has all, and each pair"));
    }
    Ok(())
}
