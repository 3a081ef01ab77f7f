//! The report of circuit discovery.

use crate::provenance::RunProvenance;
use crate::studies::study::Mean;
use gpt2_circuits::discovery::Edge;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A circuit, and how faithful circuits of other sizes are.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The options that shaped it.
    pub settings: serde_json::Value,
    /// The number of pairs.
    pub pairs: usize,
    /// The metric; null for the logit difference of the answers, or the log-probability of the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// The metric after the clean texts.
    pub clean_difference: Mean,
    /// The metric after the corrupted texts.
    pub corrupt_difference: Mean,
    /// The metric in a model without any edge. Where the corrupted run's values stand in, it is that of the corrupted texts.
    pub without_edges: Mean,
    /// The number of the model's edges.
    pub all_edges: usize,
    /// Circuits of growing size.
    pub curve: Vec<SizedCircuit>,
    /// The area under the curve of faithfulness over the share of edges, from no edge on, chosen by the size of their scores: much
    /// as CPR of the MIB benchmark, which chooses by the scores themselves.
    pub area: f64,
    /// The area between that curve and 1: much as its CMD.
    pub distance: f64,
    /// The circuit of the asked size or faithfulness.
    pub circuit: MeasuredCircuit,
}

/// A circuit of one size.
#[derive(Debug, Serialize)]
pub struct SizedCircuit {
    /// The number of edges that were chosen.
    pub edges: usize,
    /// Their share of all edges.
    pub share: f64,
    /// The number of these edges that lie on a path from the embeddings to the logits.
    pub connected: usize,
    /// The share of the metric that the circuit keeps: 0 as without any edge, 1 as with all.
    pub faithfulness: f64,
    /// The mean faithfulness of circuits of `connected` random edges.
    pub random: Option<Mean>,
}

/// A circuit, and the circuits beside it.
#[derive(Debug, Serialize)]
pub struct MeasuredCircuit {
    /// The share of the metric that it keeps.
    pub faithfulness: f64,
    /// The faithfulness of all other edges: the lower, the more complete the circuit.
    pub rest: f64,
    /// The mean faithfulness of circuits of as many random edges.
    pub random: Option<Mean>,
    /// The faithfulness of the circuit without each of its heads and MLPs: where it does not fall, the part is not needed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Without>,
    /// Sorted by the size of their scores, largest first.
    pub edges: Vec<ScoredEdge>,
    /// The metric of each pair.
    pub each: Vec<EachPair>,
}

/// A circuit without one of its parts.
#[derive(Debug, Serialize)]
pub struct Without {
    /// The head or the MLP.
    pub part: String,
    /// The faithfulness without it.
    pub faithfulness: f64,
}

/// An edge and its score: as JSON, `from`, `to` and `score`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ScoredEdge {
    /// The edge.
    #[serde(flatten, serialize_with = "ends")]
    pub edge: Edge,
    /// Its score: above 0, it helps the right answers.
    pub score: f64,
}

/// `from` and `to`.
fn ends<S: Serializer>(edge: &Edge, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(2))?;
    map.serialize_entry("from", &edge.from.to_string())?;
    map.serialize_entry("to", &edge.to.to_string())?;
    map.end()
}

/// The metric of one pair.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct EachPair {
    /// After its clean text.
    pub clean: f64,
    /// After its corrupted text.
    pub corrupt: f64,
    /// After its clean text, in the circuit.
    pub circuit: f64,
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
