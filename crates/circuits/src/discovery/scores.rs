//! Scores of edges for a task: edge attribution patching.

use super::edge_set::EdgeSet;
use super::graph::{Edge, Graph, Reader, Writer};
use candle_core::{Device, Result, Tensor};
use gpt2_model::hooks::Head;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The runs in which the gradients are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EdgeGradients {
    /// In the clean run (EAP: Syed et al. 2023, "Attribution Patching Outperforms Automated Circuit Discovery"): to first order,
    /// how much the metric loses when the edge carries the corrupted run's value.
    Clean,
    /// In the corrupted run: how much the metric gains when the edge carries the clean run's value.
    Corrupt,
    /// The mean over `steps` runs whose token embeddings lead from the corrupted text's to the clean one's, at `k / steps` for k =
    /// 1 to `steps` (EAP-IG: Hanna et al. 2024, "Have Faith in Faithfulness", arXiv 2403.17806; their code takes k from 0 on). Both texts have the same
    /// positions, so that only their tokens' embeddings differ.
    Integrated {
        /// At least 1; 5 in the paper.
        steps: usize,
    },
    /// The mean over `steps` runs over the clean text for each of the embeddings, the heads of a layer and an MLP, in which what
    /// these add leads from the corrupted run's to the clean one's, at `k / steps` for k = 1 to `steps`; (1 + 2L)·`steps` runs in all
    /// (EAP-IG on activations, as in the paper's code; the idea is that of Marks et al. 2024, "Sparse Feature Circuits", arXiv
    /// 2403.19647).
    IntegratedActivations {
        /// At least 1.
        steps: usize,
    },
}

/// The method of scoring edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeScoring {
    /// The runs in which the gradients are taken.
    pub gradients: EdgeGradients,
    /// Whether to apply the QK fix of `AtP*` (Kramár et al. 2024, "`AtP*`: An efficient and scalable method for
    /// localizing LLM behaviour to components", arXiv 2403.00745). Attention is then computed again for each edge into
    /// queries and keys, and the score is the gradient at the attention weights times their change. Without it,
    /// attention that one key has to itself can hide an edge.
    pub qk_fix: bool,
}

impl From<EdgeGradients> for EdgeScoring {
    /// Without the QK fix.
    fn from(gradients: EdgeGradients) -> Self {
        Self { gradients, qk_fix: false }
    }
}

/// A score for each edge: the mean over all pairs of the change of what the writer adds, clean less corrupted, times the gradient
/// at what the reader reads, or what [`EdgeScoring`] says instead. Above 0, the edge helps the right answer.
#[derive(Debug, Clone)]
pub struct EdgeScores {
    graph: Graph,
    /// By reader, then by writer.
    values: Vec<f64>,
}

impl EdgeScores {
    /// `values` (readers, writers), by rows
    pub(super) fn new(graph: Graph, values: Vec<f64>) -> Self {
        Self { graph, values }
    }

    /// The model's graph.
    #[must_use]
    pub fn graph(&self) -> Graph {
        self.graph
    }

    /// The score of an edge; `None` if the model has no such edge.
    #[must_use]
    pub fn of(&self, edge: Edge) -> Option<f64> {
        self.graph.check(edge).ok().map(|()| self.score(edge))
    }

    /// The score of an edge of the graph.
    fn score(&self, Edge { from, to }: Edge) -> f64 {
        self.values[self.graph.reader_index(to) * self.graph.writer_count() + self.graph.writer_index(from)]
    }

    /// The scores of edges between heads: those of queries, keys and values, each by the sender's layer and head, then the
    /// receiver's. An edge that does not lead to a later layer is 0.
    ///
    /// # Errors
    /// When memory is short.
    pub fn between_heads(&self) -> Result<Tensor> {
        let layers = self.graph.layers();
        let heads = self.graph.heads();
        let all = || (0..layers).flat_map(move |layer| (0..heads).map(move |head| Head { layer, head }));
        let parts: [fn(Head) -> Reader; 3] = [Reader::Query, Reader::Key, Reader::Value];
        let of = |part: fn(Head) -> Reader, from: Head, to: Head| {
            self.of(Edge { from: Writer::Head(from), to: part(to) }).unwrap_or(0.0)
        };
        let values = parts
            .iter()
            .flat_map(|&part| all().flat_map(move |from| all().map(move |to| of(part, from, to))));
        Tensor::from_vec(values.collect(), (3, layers, heads, layers, heads), &Device::Cpu)
    }

    /// All edges with their scores, those of the largest size first; in the graph's order where sizes are equal.
    #[must_use]
    pub fn sorted(&self) -> Vec<(Edge, f64)> {
        let mut all: Vec<_> = self.graph.edges().map(|edge| (edge, self.score(edge))).collect();
        all.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        all
    }

    /// The `count` edges with the largest scores, by size.
    #[must_use]
    pub fn ranked(&self, count: usize) -> EdgeSet {
        let mut set = EdgeSet::empty(self.graph);
        self.sorted().into_iter().take(count).for_each(|(edge, _)| set.set(edge, true));
        set
    }

    /// `count` edges, chosen from the logits on: each time the edge with the largest score, by size, that leads into a part that is
    /// in the circuit already (Hanna et al. 2024).
    #[must_use]
    pub fn greedy(&self, count: usize) -> EdgeSet {
        let mut set = EdgeSet::empty(self.graph);
        let mut open = BinaryHeap::new();
        let mut known = vec![false; self.graph.writer_count()];
        let into = |open: &mut BinaryHeap<CandidateEdge>, reader: Reader| {
            for from in self.graph.writers().take(self.graph.writers_before(reader)) {
                let edge = Edge { from, to: reader };
                open.push(CandidateEdge { size: self.score(edge).abs(), edge });
            }
        };
        into(&mut open, Reader::Logits);
        for _ in 0..count {
            let Some(CandidateEdge { edge, .. }) = open.pop() else { break };
            set.set(edge, true);
            if std::mem::replace(&mut known[self.graph.writer_index(edge.from)], true) {
                continue;
            }
            match edge.from {
                Writer::Embed => {}
                Writer::Head(head) => {
                    for reader in [Reader::Query(head), Reader::Key(head), Reader::Value(head)] {
                        into(&mut open, reader);
                    }
                }
                Writer::Mlp(layer) => into(&mut open, Reader::Mlp(layer)),
            }
        }
        set
    }
}

/// An edge that the circuit may take next.
struct CandidateEdge {
    size: f64,
    edge: Edge,
}

impl Ord for CandidateEdge {
    /// By size; among equals, the later edge is less.
    fn cmp(&self, other: &Self) -> Ordering {
        self.size.total_cmp(&other.size).then_with(|| other.edge.cmp(&self.edge))
    }
}

impl PartialOrd for CandidateEdge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for CandidateEdge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for CandidateEdge {}
