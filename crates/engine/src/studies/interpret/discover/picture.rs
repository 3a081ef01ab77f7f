//! The circuit as a picture: a row for each layer, a column for each head, MLPs beside them.

use crate::words::count;
use gpt2_circuits::discovery::{Edge, Graph, Reader, Writer};
use gpt2_model::hooks::Head;
use gpt2_view::{Frame, GraphLink, GraphNode, GraphPicture};

const SCORES: &str = "thick: a large score; blue helps the right answer, orange hinders";
const ENDS: &str = "a head reads queries at its left end, keys in the middle, values at its right end";

/// Edges of a model's `graph`, with a score each if they have some, as the bytes of a picture.
///
/// # Errors
/// When the model does not have an edge, edges and scores are not equally many, a score is not finite, or the picture is too large.
pub fn circuit_picture(
    frame: &Frame,
    graph: Graph,
    edges: &[Edge],
    scores: Option<&[f64]>,
) -> candle_core::Result<Vec<u8>> {
    if let Some(scores) = scores
        && scores.len() != edges.len()
    {
        candle_core::bail!("a circuit of {} has {}", count(edges.len(), "edge"), count(scores.len(), "score"))
    }
    edges.iter().try_for_each(|edge| graph.check(*edge))?;
    let mut nodes: Vec<GraphNode> = graph.writers().map(|writer| node(graph, writer)).collect();
    let logits = nodes.len();
    nodes.push(GraphNode {
        label: "logits".to_owned(),
        column: middle(graph),
        row: graph.layers() as f32 + 1.0,
    });
    let index = |writer: Writer| graph.writers().position(|other| other == writer);
    let link = |(i, edge): (usize, &Edge)| {
        let (part, side) = match edge.to {
            Reader::Query(head) => (Some(Writer::Head(head)), -1.0),
            Reader::Key(head) => (Some(Writer::Head(head)), 0.0),
            Reader::Value(head) => (Some(Writer::Head(head)), 1.0),
            Reader::Mlp(layer) => (Some(Writer::Mlp(layer)), 0.0),
            Reader::Logits => (None, 0.0),
        };
        let to = part.map_or(Some(logits), index);
        Some(GraphLink {
            from: index(edge.from)?,
            to: to?,
            side,
            weight: scores.map_or(1.0, |scores| scores[i]),
        })
    };
    let links = edges.iter().enumerate().filter_map(link).collect();
    let key: &[&str] = if scores.is_some() { &[SCORES, ENDS] } else { &[ENDS] };
    GraphPicture { nodes, links, key }.draw(frame)
}

/// Between the first head and the last.
fn middle(graph: Graph) -> f32 {
    (graph.heads() as f32 - 1.0) / 2.0
}

fn node(graph: Graph, writer: Writer) -> GraphNode {
    let (column, row) = match writer {
        Writer::Embed => (middle(graph), 0.0),
        Writer::Head(Head { layer, head }) => (head as f32, layer as f32 + 1.0),
        // Above the heads of its layer, which it reads.
        Writer::Mlp(layer) => (graph.heads() as f32, layer as f32 + 1.4),
    };
    GraphNode { label: writer.to_string(), column, row }
}
