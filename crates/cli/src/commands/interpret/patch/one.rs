//! The report of `gpt2 patch` for one pair, and what it shares with that of many.

use crate::output::{self, note};
use crate::results::picture::{HeadMap, head_maps};
use candle_core::{Device, Tensor};
use gpt2_engine::studies::Mean;
use gpt2_engine::studies::interpret::patch::{HeadPatch, LayerPatch, PairReport, PathPatch, agreement};
use gpt2_engine::texts::Answers;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Frame, NumberMap, Table};
use std::io::Write;

/// The most parts of a kind to print; JSON has all.
pub(super) const SHOWN: usize = 10;

/// The names of the right and of the wrong answers.
pub(super) fn answers(report: &PairReport) -> [String; 2] {
    [report.answer.shown(), report.against.as_ref().map_or_else(String::new, Answers::shown)]
}

/// The metric, in words.
pub(super) fn measured(report: &PairReport) -> String {
    let [answer, against] = answers(report);
    report.metric.clone().unwrap_or_else(|| format!("the logit of {answer} less that of {against}"))
}

/// The unit of a picture's numbers.
pub(super) fn unit(metric: Option<&str>) -> &'static str {
    if metric.is_some() { "share of the metric's difference" } else { "share of the logit difference" }
}

/// The heads by layer, or each head by position.
pub(super) fn picture(frame: &Frame, report: &PairReport, tokens: &[String]) -> candle_core::Result<Vec<u8>> {
    let layers = report.layers.len();
    let count = report.heads.len() / layers.max(1);
    let unit = unit(report.metric.as_deref());
    let Some(shares) = &report.heads_by_position else {
        let exact = report.heads.iter().map(|head| head.exact).collect();
        let values = &Tensor::from_vec(exact, (layers, count), &Device::Cpu)?;
        return head_maps(frame, &[HeadMap { name: "", unit, values, end: None, from_zero: false }]);
    };
    let rows: Vec<String> = (0..layers * count).map(|i| format!("{}.{}", i / count, i % count)).collect();
    let shares = shares.iter().flatten().flatten().copied().collect();
    let values = Tensor::from_vec(shares, (layers * count, tokens.len()), &Device::Cpu)?;
    let map = NumberMap { row_axis: "head", column_axis: "token", unit, rows: &rows, ..NumberMap::default() };
    NumberMap { columns: tokens, ..map }.draw(frame, &values)
}

/// Prints the share that the clean run loses along each path.
pub(super) fn print_paths(out: &mut impl Write, paths: &[PathPatch]) -> anyhow::Result<()> {
    let Some(first) = paths.first() else { return Ok(()) };
    let frozen = match first.freeze {
        "nothing" => "nothing frozen between them",
        "heads" => "with other heads as in the clean run",
        _ => "with all else as in the clean run",
    };
    writeln!(out, "\nwhat the clean run loses when readers hear the corrupted senders, {frozen}:\n")?;
    let mut table = Table::new(&[("path", Left), ("lost", Left)]);
    for PathPatch { path, lost, .. } in paths {
        table.row(vec![path.clone(), lost.to_string()]);
    }
    Ok(write!(out, "{}", table.render())?)
}

/// The number of heads to print.
pub(super) fn shown(heads: usize, all: bool) -> usize {
    if all { heads } else { heads.min(SHOWN) }
}

pub(super) fn print(report: &PairReport, all: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    writeln!(
        out,
        "{}: {:#} after the clean prompt, {:#} after the corrupted one",
        measured(report),
        Mean::of(&[report.clean_difference]),
        Mean::of(&[report.corrupt_difference])
    )?;
    writeln!(
        out,
        "below: how much of the difference a part brings back when the corrupted run gets it from the clean one\n"
    )?;
    let mut sorted = report.heads.clone();
    sorted.sort_by(|a, b| b.exact.abs().total_cmp(&a.exact.abs()));
    let mut table = Table::new(&[("head", Right), ("exact", Right), ("estimated", Right)]);
    for HeadPatch { layer, head, exact, estimated } in sorted.iter().take(shown(sorted.len(), all)) {
        table.row(vec![format!("{layer}.{head}"), format!("{exact:+.3}"), format!("{estimated:+.3}")]);
    }
    writeln!(out, "{}", table.render())?;
    if let Some(agreement) = agreement(report.heads.len(), report.correlation) {
        writeln!(out, "{agreement}\n")?;
    }
    writeln!(out, "what the attention and the MLP of each layer bring back (exact):\n")?;
    let mut table = Table::new(&[("layer", Right), ("attention", Right), ("MLP", Right)]);
    for LayerPatch { layer, attention, mlp } in &report.layers {
        table.row(vec![layer.to_string(), format!("{attention:+.3}"), format!("{mlp:+.3}")]);
    }
    writeln!(out, "{}", table.render())?;
    writeln!(out, "the residual stream before each block, at the positions that matter most:\n")?;
    write!(out, "{}", streams(report))?;
    if let Some(shares) = &report.heads_by_position {
        writeln!(out, "\nthe heads that matter most, at the positions that matter most to them:\n")?;
        write!(out, "{}", by_position(report, shares, &sorted))?;
    }
    print_paths(&mut out, &report.paths)?;
    let rest = report.heads.len() - shown(report.heads.len(), all);
    if rest > 0 {
        note(&format!("{rest} more heads: --all; --json has all, also by position"));
    }
    Ok(())
}

/// A row for each of the positions with the largest shares, a column for each layer.
fn streams(report: &PairReport) -> String {
    let titles: Vec<String> = (0..report.streams.len()).map(|layer| layer.to_string()).collect();
    positions(report, &titles, &report.streams.iter().collect::<Vec<_>>())
}

/// A column for each of the first heads, whose `shares` are by layer, head and position.
fn by_position(report: &PairReport, shares: &[Vec<Vec<f64>>], sorted: &[HeadPatch]) -> String {
    let heads = &sorted[..sorted.len().min(SHOWN)];
    let titles: Vec<String> = heads.iter().map(|of| format!("{}.{}", of.layer, of.head)).collect();
    positions(report, &titles, &heads.iter().map(|of| &shares[of.layer][of.head]).collect::<Vec<_>>())
}

/// A row for each of the positions with the largest shares, and a column, with a title, for each list of shares.
fn positions(report: &PairReport, titles: &[String], shares: &[&Vec<f64>]) -> String {
    const POSITIONS: usize = 8;
    let most = |position: usize| shares.iter().map(|of| of[position].abs()).fold(0.0, f64::max);
    let mut positions: Vec<usize> = (0..report.clean.len()).collect();
    positions.sort_by(|a, b| most(*b).total_cmp(&most(*a)));
    positions.truncate(POSITIONS);
    positions.sort_unstable();
    let mut columns = vec![("", Right), ("clean", Left), ("corrupted", Left)];
    columns.extend(titles.iter().map(|title| (title.as_str(), Right)));
    let mut table = Table::new(&columns);
    for position in positions {
        let mut cells = vec![
            position.to_string(),
            report.clean[position].to_string(),
            report.corrupt[position].to_string(),
        ];
        cells.extend(shares.iter().map(|of| format!("{:+.2}", of[position])));
        table.row(cells);
    }
    table.render()
}
