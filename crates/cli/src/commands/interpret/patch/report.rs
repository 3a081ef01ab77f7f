//! The report of `gpt2 patch`, and how it is printed.

use crate::input::pairs::Mean;
use crate::output::{self, note};
use anyhow::bail;
use gpt2_engine::Label;
use gpt2_engine::RunProvenance;
use gpt2_view::Align::{Left, Right};
use gpt2_view::{Table, visible_token};
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) provenance: RunProvenance,
    pub(super) clean: Vec<Label>,
    pub(super) corrupt: Vec<Label>,
    pub(super) answer: String,
    pub(super) against: String,
    /// The answer's logit minus the other token's.
    pub(super) clean_difference: f64,
    pub(super) corrupt_difference: f64,
    /// Each head at all positions.
    pub(super) heads: Vec<HeadPatch>,
    /// Pearson's correlation between the estimates and the exact numbers of the heads.
    pub(super) correlation: Option<f64>,
    /// The shares that each layer's attention and MLP bring back, at all positions.
    pub(super) layers: Vec<LayerPatch>,
    /// The residual stream before each block, at each position: a row for each layer.
    pub(super) streams: Vec<Vec<f64>>,
    /// The shares that each layer's attention and MLP bring back, at each position.
    pub(super) attention: Option<Vec<Vec<f64>>>,
    pub(super) mlps: Option<Vec<Vec<f64>>>,
    /// Each head at each position, by layer, head and position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) heads_by_position: Option<Vec<Vec<Vec<f64>>>>,
    /// The estimates of each head at each position.
    pub(super) heads_by_position_estimated: Vec<Vec<Vec<f64>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) paths: Vec<PathPatch>,
}

#[derive(Clone, Serialize)]
pub(super) struct HeadPatch {
    pub(super) layer: usize,
    pub(super) head: usize,
    /// The share of the difference that the head brings back: 0 as in the corrupted run, 1 as in the clean one.
    pub(super) exact: f64,
    /// The estimate of `exact` by attribution patching.
    pub(super) estimated: f64,
}

#[derive(Serialize)]
pub(super) struct LayerPatch {
    pub(super) layer: usize,
    pub(super) attention: f64,
    pub(super) mlp: f64,
}

/// The share of the difference that the clean run loses along paths.
#[derive(Serialize)]
pub(super) struct PathPatch {
    /// The value of `--path`.
    pub(super) path: String,
    pub(super) freeze: &'static str,
    pub(super) lost: Mean,
}

/// The most parts of a kind to print; JSON has all.
pub(super) const SHOWN: usize = 10;

/// Below this correlation, the estimates say little of the exact numbers.
const AGREEING: f64 = 0.5;

/// Pearson's correlation of exact and estimated numbers; `None` if either does not vary.
pub(super) fn correlation<T>(heads: &[T], both: impl Fn(&T) -> (f64, f64)) -> Option<f64> {
    let n = heads.len() as f64;
    let (exact, estimated): (Vec<f64>, Vec<f64>) = heads.iter().map(both).unzip();
    let off = |values: Vec<f64>| -> Vec<f64> {
        let mean = values.iter().sum::<f64>() / n;
        values.into_iter().map(|x| x - mean).collect()
    };
    let exact = off(exact);
    let estimated = off(estimated);
    let sum = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let spread = (sum(&exact, &exact) * sum(&estimated, &estimated)).sqrt();
    (spread > 0.0).then(|| sum(&exact, &estimated) / spread)
}

/// A sentence on the correlation of all heads' estimates with the exact numbers, a warning if it is low; `None` for a
/// single head.
pub(super) fn agreement(heads: usize, correlation: Option<f64>) -> Option<String> {
    let found = match correlation {
        Some(correlation) => format!("correlate with the exact numbers by {correlation:.2}"),
        None if heads > 1 => "do not vary together with the exact numbers".to_owned(),
        None => return None,
    };
    let agree = format!("the estimates of all {heads} heads, from one backward pass, {found}");
    if correlation.is_some_and(|correlation| correlation >= AGREEING) {
        return Some(agree);
    }
    Some(format!("warning: {agree}: do not rely on them"))
}

/// Tells a reader of JSON when the estimates mislead; the terminal's reader sees it among the results.
pub(super) fn warn(json: bool, agreement: Option<&str>) {
    agreement.filter(|text| json && text.starts_with("warning")).iter().for_each(|text| note(text));
}

/// Refuses prompts with the same logit difference, and notes where the clean one makes the wrong answer likelier.
/// `clean` is its logit difference, `difference` how much larger that is than the corrupted prompt's; `right` and
/// `wrong` name the answers.
pub(super) fn check_difference(clean: f64, difference: f64, [right, wrong]: [&str; 2]) -> anyhow::Result<()> {
    if difference.abs() < 1e-6 {
        bail!(
            "the logit difference is {clean:.4} after either prompt, so there is nothing to bring back: choose prompts and answers \
             that tell the two apart"
        );
    }
    if clean < 0.0 {
        note(&format!(
            "the clean prompt makes {right} less likely than {wrong}: swap the prompts or the answers, if the model should get the \
             clean one right"
        ));
    }
    Ok(())
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

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    let answer = visible_token(&report.answer);
    let against = visible_token(&report.against);
    writeln!(
        out,
        "the logit of {answer} less that of {against}: {:+.3} after the clean prompt, {:+.3} after the corrupted one",
        report.clean_difference, report.corrupt_difference
    )?;
    writeln!(
        out,
        "below: how much of the difference a part brings back when the corrupted run gets it from the clean one\n"
    )?;
    let mut sorted = report.heads.clone();
    sorted.sort_by(|a, b| b.exact.abs().total_cmp(&a.exact.abs()));
    let mut table = Table::new(&[("head", Right), ("exact", Right), ("estimated", Right)]);
    for HeadPatch { layer, head, exact, estimated } in sorted.iter().take(SHOWN) {
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
    let rest = report.heads.len().saturating_sub(SHOWN);
    if rest > 0 {
        note(&format!("{SHOWN} of {} heads; --json has all, also by position", report.heads.len()));
    }
    Ok(())
}

/// A row for each of the positions with the largest shares, a column for each layer.
fn streams(report: &Report) -> String {
    let titles: Vec<String> = (0..report.streams.len()).map(|layer| layer.to_string()).collect();
    positions(report, &titles, &report.streams.iter().collect::<Vec<_>>())
}

/// A column for each of the first heads, whose `shares` are by layer, head and position.
fn by_position(report: &Report, shares: &[Vec<Vec<f64>>], sorted: &[HeadPatch]) -> String {
    let heads = &sorted[..sorted.len().min(SHOWN)];
    let titles: Vec<String> = heads.iter().map(|of| format!("{}.{}", of.layer, of.head)).collect();
    positions(report, &titles, &heads.iter().map(|of| &shares[of.layer][of.head]).collect::<Vec<_>>())
}

/// A row for each of the positions with the largest shares, and a column, with a title, for each list of shares.
fn positions(report: &Report, titles: &[String], shares: &[&Vec<f64>]) -> String {
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
