//! The printing of the changes that an adapter makes to a model's weights.

use crate::output;
use gpt2_engine::studies::checkpoints::inspect::AdapterReport;
use gpt2_view::{Align, Table, visible_text};
use std::io::Write;

/// A number for the table, whatever its size.
fn number(x: f64, decimals: usize) -> String {
    match x.abs() {
        size if !size.is_finite() => "not finite".into(),
        size if size < 1e6 => format!("{x:.decimals$}"),
        _ => format!("{x:.decimals$e}"),
    }
}

pub(super) fn print(report: &AdapterReport) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let audit = report.audit.as_ref();
    let base = report.config.base_model_name_or_path.as_deref().unwrap_or("a model that it does not name");
    writeln!(out, "{}: a LoRA adapter of {}\n", visible_text(&report.adapter), visible_text(base))?;
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
