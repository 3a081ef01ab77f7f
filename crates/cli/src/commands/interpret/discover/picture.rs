//! The circuit as a picture: a row for each layer, a column for each head, MLPs beside them.

use gpt2_circuits::discovery::{Graph, Reader, Writer};
use gpt2_engine::studies::interpret::discover::ScoredEdge;
use gpt2_model::hooks::Head;
use gpt2_view::{Frame, GraphLink, GraphNode};

const KEY: [&str; 2] = [
    "thick: a large score; blue helps the right answer, orange hinders",
    "a head reads queries at its left end, keys in the middle, values at its right end",
];

/// # Errors
/// When the circuit has an edge that is not the model's, or the picture cannot be drawn.
pub(super) fn draw(frame: &Frame, graph: Graph, edges: &[ScoredEdge]) -> candle_core::Result<Vec<u8>> {
    let mut nodes: Vec<GraphNode> = graph.writers().map(|writer| node(graph, writer)).collect();
    let logits = nodes.len();
    nodes.push(GraphNode {
        label: "logits".to_owned(),
        column: middle(graph),
        row: graph.layers() as f32 + 1.0,
    });
    let index = |writer: Writer| graph.writers().position(|other| other == writer);
    let link = |edge: &ScoredEdge| {
        let from = edge.edge.from;
        let to = edge.edge.to;
        let (part, side) = match to {
            Reader::Query(head) => (Some(Writer::Head(head)), -1.0),
            Reader::Key(head) => (Some(Writer::Head(head)), 0.0),
            Reader::Value(head) => (Some(Writer::Head(head)), 1.0),
            Reader::Mlp(layer) => (Some(Writer::Mlp(layer)), 0.0),
            Reader::Logits => (None, 0.0),
        };
        let to = part.map_or(Some(logits), index);
        Some(GraphLink { from: index(from)?, to: to?, side, weight: edge.score })
    };
    let links = edges.iter().filter_map(link).collect();
    gpt2_view::GraphPicture { nodes, links, key: &KEY }.draw(frame)
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
