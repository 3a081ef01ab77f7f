//! A circuit as a graph for Graphviz.

use gpt2_circuits::discovery::Reader;
use gpt2_engine::studies::interpret::discover::ScoredEdge;
use std::collections::BTreeSet;
use std::fmt::Write;

/// A graph in Graphviz's language: edges are as thick as their scores are large, and dashed where they are below 0.
pub(super) fn graph(edges: &[ScoredEdge]) -> String {
    let largest = edges.iter().map(|edge| edge.score.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let mut text =
        String::from("digraph circuit {\n  rankdir=BT;\n  node [shape=box, fontname=\"sans-serif\"];\n");
    let parts = |edge: &ScoredEdge| [edge.edge.from.to_string(), part(edge.edge.to).0];
    for part in edges.iter().flat_map(parts).collect::<BTreeSet<String>>() {
        let _ = writeln!(text, "  \"{part}\";");
    }
    for ScoredEdge { edge, score } in edges {
        let (part, reads) = part(edge.to);
        let style = if *score < 0.0 { ", style=dashed" } else { "" };
        let width = 0.3 + 4.0 * score.abs() / largest;
        let _ = writeln!(
            text,
            "  \"{}\" -> \"{part}\" [label=\"{reads}\", penwidth={width:.2}, tooltip=\"{score:+.4}\"{style}];",
            edge.from
        );
    }
    text + "}\n"
}

/// The part of the model that reads, and what of it if it is a head.
fn part(reader: Reader) -> (String, &'static str) {
    match reader {
        Reader::Query(head) => (head.to_string(), "q"),
        Reader::Key(head) => (head.to_string(), "k"),
        Reader::Value(head) => (head.to_string(), "v"),
        Reader::Mlp(_) | Reader::Logits => (reader.to_string(), ""),
    }
}
