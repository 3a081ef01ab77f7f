//! A circuit in a file, which the intervention `circuit` reads.

use super::report::Report;
use serde_json::json;

/// The bytes of a file with the circuit's edges and what made them.
///
/// # Errors
/// When the report cannot be written as JSON.
pub fn circuit_file(report: &Report) -> anyhow::Result<Vec<u8>> {
    let circuit = json!({
        "edges": report.circuit.edges,
        "faithfulness": report.circuit.faithfulness,
        "settings": report.settings,
        "provenance": report.provenance.shared(),
    });
    let mut bytes = serde_json::to_vec_pretty(&circuit)?;
    bytes.push(b'\n');
    Ok(bytes)
}
