//! The report of `gpt2 discover`, as it is printed.

use crate::output::{self, note};
use gpt2_engine::studies::interpret::discover::{Report, ScoredEdge, SizedCircuit, Without};
use gpt2_engine::words::count;
use gpt2_view::Align::{Left, Right};
use gpt2_view::Table;
use std::io::Write;

/// The most edges and parts to print; JSON has all.
const SHOWN: usize = 15;

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { circuit, pairs, .. } = report;
    writeln!(out, "{}\n", report.provenance.model_line())?;
    writeln!(
        out,
        "{} over {}: {:#} after the clean prompts, {:#} after the corrupted ones\n",
        report.metric.as_deref().unwrap_or("the logit difference"),
        count(*pairs, "pair"),
        report.clean_difference,
        report.corrupt_difference
    )?;
    if report.settings["replace"] != "corrupted" {
        writeln!(
            out,
            "without any edge, it is {:#}: faithfulness goes from there to the clean prompts'\n",
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
