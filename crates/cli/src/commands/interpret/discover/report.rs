//! The report of `gpt2 discover`, and how it is printed.

use crate::input::pairs::Mean;
use crate::output::{self, note};
use gpt2_circuits::discovery::Edge;
use gpt2_engine::RunProvenance;
use gpt2_engine::words::count;
use gpt2_view::Align::{Left, Right};
use gpt2_view::Table;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::io::Write;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) provenance: RunProvenance,
    pub(super) settings: serde_json::Value,
    pub(super) pairs: usize,
    /// The logit difference after the clean prompts, and after the corrupted ones.
    pub(super) clean_difference: Mean,
    pub(super) corrupt_difference: Mean,
    /// The logit difference in a model without any edge. With `--replace corrupted`, it is that of the corrupted prompts.
    pub(super) without_edges: Mean,
    pub(super) all_edges: usize,
    pub(super) curve: Vec<SizedCircuit>,
    /// The area under the curve of faithfulness over the share of edges, from no edge on, chosen by the size of their scores: much
    /// as CPR of the MIB benchmark, which chooses by the scores themselves.
    pub(super) area: f64,
    /// The area between that curve and 1: much as its CMD.
    pub(super) distance: f64,
    pub(super) circuit: MeasuredCircuit,
}

/// A circuit of one size.
#[derive(Serialize)]
pub(super) struct SizedCircuit {
    pub(super) edges: usize,
    pub(super) share: f64,
    /// The number of these edges that lie on a path from the embeddings to the logits.
    pub(super) connected: usize,
    pub(super) faithfulness: f64,
    /// The mean faithfulness of circuits of `connected` random edges.
    pub(super) random: Option<Mean>,
}

#[derive(Serialize)]
pub(super) struct MeasuredCircuit {
    pub(super) faithfulness: f64,
    /// The faithfulness of all other edges: the lower, the more complete the circuit.
    pub(super) rest: f64,
    /// The mean faithfulness of circuits of as many random edges.
    pub(super) random: Option<Mean>,
    /// The faithfulness of the circuit without each of its heads and MLPs: where it does not fall, the part is not needed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) without: Vec<Without>,
    /// Sorted by the size of their scores, largest first.
    pub(super) edges: Vec<ScoredEdge>,
    /// The logit difference of each pair.
    pub(super) each: Vec<EachPair>,
}

#[derive(Serialize)]
pub(super) struct Without {
    pub(super) part: String,
    pub(super) faithfulness: f64,
}

#[derive(Serialize)]
pub(super) struct ScoredEdge {
    #[serde(flatten, serialize_with = "ends")]
    pub(super) edge: Edge,
    pub(super) score: f64,
}

/// `from` and `to`.
fn ends<S: Serializer>(edge: &Edge, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(2))?;
    map.serialize_entry("from", &edge.from.to_string())?;
    map.serialize_entry("to", &edge.to.to_string())?;
    map.end()
}

#[derive(Serialize)]
pub(super) struct EachPair {
    pub(super) clean: f64,
    pub(super) corrupt: f64,
    pub(super) circuit: f64,
}

/// The area under the curve, from no edge, by trapezoids.
pub(super) fn area(curve: &[SizedCircuit]) -> f64 {
    trapezoids(curve, |faithfulness| faithfulness)
}

/// The area between the curve and 1.
pub(super) fn distance(curve: &[SizedCircuit]) -> f64 {
    trapezoids(curve, |faithfulness| (1.0 - faithfulness).abs())
}

fn trapezoids(curve: &[SizedCircuit], of: impl Fn(f64) -> f64) -> f64 {
    let points =
        [(0.0, of(0.0))].into_iter().chain(curve.iter().map(|point| (point.share, of(point.faithfulness))));
    let points: Vec<_> = points.collect();
    points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0).sum()
}

/// The most edges and parts to print; JSON has all.
const SHOWN: usize = 15;

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { circuit, pairs, .. } = report;
    writeln!(out, "{}\n", report.provenance.model_line())?;
    writeln!(
        out,
        "the logit difference over {}: {} after the clean prompts, {} after the corrupted ones\n",
        count(*pairs, "pair"),
        report.clean_difference,
        report.corrupt_difference
    )?;
    if report.settings["replace"] != "corrupted" {
        writeln!(
            out,
            "without any edge, it is {}: faithfulness goes from there to the clean prompts'\n",
            report.without_edges
        )?;
    }
    writeln!(out, "how much of the difference the best edges keep, if they are all that the model has:\n")?;
    let mut table = Table::new(&[
        ("edges", Right),
        ("of all", Right),
        ("connected", Right),
        ("faithfulness", Right),
        ("random", Left),
    ]);
    for SizedCircuit { edges, share, connected, faithfulness, random } in &report.curve {
        table.row(vec![
            edges.to_string(),
            format!("{:.1} %", 100.0 * share),
            connected.to_string(),
            format!("{faithfulness:+.3}"),
            random.map_or_else(String::new, |random| random.to_string()),
        ]);
    }
    writeln!(out, "{}", table.render())?;
    writeln!(out, "area under the curve {:.3}, between it and 1 {:.3}\n", report.area, report.distance)?;
    let random = circuit.random.map_or_else(String::new, |random| format!(", as many random ones {random}"));
    writeln!(
        out,
        "the circuit: {} of {} keep {:+.3}{random}, all others {:+.3}\n",
        count(circuit.edges.len(), "edge"),
        report.all_edges,
        circuit.faithfulness,
        circuit.rest
    )?;
    let mut table = Table::new(&[("from", Right), ("to", Left), ("score", Right)]);
    for ScoredEdge { edge, score } in circuit.edges.iter().take(SHOWN) {
        table.row(vec![edge.from.to_string(), edge.to.to_string(), format!("{score:+.4}")]);
    }
    write!(out, "{}", table.render())?;
    let mut without: Vec<&Without> = circuit.without.iter().collect();
    without.sort_by(|a, b| b.faithfulness.total_cmp(&a.faithfulness));
    if !without.is_empty() {
        writeln!(out, "\nwhat it keeps without one of its heads or MLPs, the least needed first:\n")?;
        let mut table = Table::new(&[("without", Right), ("faithfulness", Right)]);
        for Without { part, faithfulness } in without.iter().take(SHOWN) {
            table.row(vec![part.clone(), format!("{faithfulness:+.3}")]);
        }
        write!(out, "{}", table.render())?;
    }
    for (all, what) in [(circuit.edges.len(), "edges"), (circuit.without.len(), "heads and MLPs")] {
        if all > SHOWN {
            note(&format!("{SHOWN} of {all} {what}; --json has all"));
        }
    }
    Ok(())
}
