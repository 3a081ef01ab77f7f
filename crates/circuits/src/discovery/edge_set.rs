//! A circuit: some of the edges of a model.

use super::graph::{Edge, Graph, Reader, Writer};
use candle_core::Result;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// The replacement of writers' outputs along edges that a circuit lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replacement {
    /// The writers' outputs in the run over the corrupted text.
    #[default]
    Corrupted,
    /// The mean of these outputs over all pairs and positions, one vector for each writer.
    Mean,
    /// Zeros.
    Zero,
}

/// A set of edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeSet {
    graph: Graph,
    /// By reader, then by writer.
    has: Vec<bool>,
}

impl EdgeSet {
    /// No edge.
    #[must_use]
    pub fn empty(graph: Graph) -> Self {
        Self { graph, has: vec![false; graph.writer_count() * graph.reader_count()] }
    }

    /// All edges.
    #[must_use]
    pub fn all(graph: Graph) -> Self {
        let mut all = Self::empty(graph);
        graph.edges().for_each(|edge| all.set(edge, true));
        all
    }

    /// These edges.
    ///
    /// # Errors
    /// When the model does not have one of them.
    pub fn of(graph: Graph, edges: impl IntoIterator<Item = Edge>) -> Result<Self> {
        let mut set = Self::empty(graph);
        for edge in edges {
            graph.check(edge)?;
            set.set(edge, true);
        }
        Ok(set)
    }

    /// `count` of all edges, drawn at random. The same seed gives the same edges.
    #[must_use]
    pub fn random(graph: Graph, count: usize, seed: u64) -> Self {
        let all: Vec<Edge> = graph.edges().collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut set = Self::empty(graph);
        all.choose_multiple(&mut rng, count).for_each(|&edge| set.set(edge, true));
        set
    }

    /// The model's graph.
    #[must_use]
    pub fn graph(&self) -> Graph {
        self.graph
    }

    /// Whether an edge is in the set.
    #[must_use]
    pub fn contains(&self, edge: Edge) -> bool {
        self.graph.check(edge).is_ok() && self.has[self.index(edge)]
    }

    /// The edges, in the graph's order.
    pub fn iter(&self) -> impl Iterator<Item = Edge> {
        self.graph.edges().filter(|&edge| self.has[self.index(edge)])
    }

    /// The number of edges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.has.iter().filter(|&&has| has).count()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The heads and MLPs that an edge leads from or to.
    #[must_use]
    pub fn parts(&self) -> Vec<Writer> {
        let mut parts: Vec<_> = self
            .iter()
            .flat_map(|edge| [Some(edge.from), edge.to.part()])
            .flatten()
            .filter(|&part| part != Writer::Embed)
            .collect();
        parts.sort_by_key(|&part| self.graph.writer_index(part));
        parts.dedup();
        parts
    }

    /// All other edges.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut rest = Self::all(self.graph);
        self.iter().for_each(|edge| rest.set(edge, false));
        rest
    }

    /// Without the edges from and to a head or an MLP.
    #[must_use]
    pub fn without(&self, part: Writer) -> Self {
        let mut rest = self.clone();
        for edge in self.iter().filter(|edge| edge.from == part || edge.to.part() == Some(part)) {
            rest.set(edge, false);
        }
        rest
    }

    /// The edges that make a difference: those on a way to the logits that begins at the embeddings, or, where something else than
    /// the corrupted run's values stands in, at a part that no edge leads to: it still computes from what stands in, and differs from it.
    #[must_use]
    pub fn connected(&self, replacement: Replacement) -> Self {
        let mut rest = self.clone();
        loop {
            let (mut fed, mut heard) =
                (vec![false; self.graph.writer_count()], vec![false; self.graph.writer_count()]);
            if replacement == Replacement::Corrupted {
                fed[0] = true;
            } else {
                fed.fill(true);
            }
            for edge in rest.iter() {
                heard[self.graph.writer_index(edge.from)] = true;
                if let Some(part) = edge.to.part() {
                    fed[self.graph.writer_index(part)] = true;
                }
            }
            let useful = |edge: &Edge| {
                let is_heard = edge.to.part().is_none_or(|part| heard[self.graph.writer_index(part)]);
                fed[self.graph.writer_index(edge.from)] && is_heard
            };
            let dead: Vec<_> = rest.iter().filter(|edge| !useful(edge)).collect();
            if dead.is_empty() {
                return rest;
            }
            for edge in dead {
                rest.set(edge, false);
            }
        }
    }

    pub(super) fn set(&mut self, edge: Edge, has: bool) {
        let index = self.index(edge);
        self.has[index] = has;
    }

    /// Whether the edge from the writer of this index is in the set.
    pub(super) fn reads(&self, reader: Reader, writer: usize) -> bool {
        self.has[self.graph.reader_index(reader) * self.graph.writer_count() + writer]
    }

    fn index(&self, Edge { from, to }: Edge) -> usize {
        self.graph.reader_index(to) * self.graph.writer_count() + self.graph.writer_index(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpt2_model::Config;

    fn graph() -> Graph {
        Graph::of(&Config { n_layer: 2, n_head: 2, n_embd: 4, ..Config::gpt2() }).expect("a graph")
    }

    fn set(edges: &[&str]) -> EdgeSet {
        EdgeSet::of(graph(), edges.iter().map(|edge| edge.parse().expect(edge))).expect("edges of the graph")
    }

    #[test]
    fn only_ways_from_the_embeddings_to_the_logits_are_connected() {
        let ways = ["embed->0.1.v", "0.1->1.0.q", "1.0->logits", "embed->logits"];
        let dead = ["0.0->1.0.k", "0.mlp->logits", "embed->0.0.v", "embed->1.1.q", "0.1->1.mlp"];
        let connected = set(&[&ways[..], &dead[..1], &dead[2..3]].concat()).connected(Replacement::Corrupted);
        // 0.0 is fed by its values and heard by 1.0's keys.
        assert_eq!(connected, set(&[&ways[..], &dead[..1], &dead[2..3]].concat()));
        assert_eq!(
            set(&[&ways[..], &dead[1..2], &dead[3..]].concat()).connected(Replacement::Corrupted),
            set(&ways)
        );
        assert!(set(&["embed->0.1.v", "0.1->1.0.q"]).connected(Replacement::Corrupted).is_empty());
        // A head that reads nothing still adds something else than its mean, or than zero.
        assert_eq!(
            set(&["0.mlp->logits", "0.1->1.0.q"]).connected(Replacement::Zero),
            set(&["0.mlp->logits"])
        );
    }

    #[test]
    fn a_set_and_its_complement_are_all_edges() {
        let some = set(&["embed->0.1.v", "0.1->1.0.q"]);
        assert_eq!((some.len(), some.len() + some.complement().len()), (2, graph().edge_count()));
        assert_eq!(some.parts().iter().map(ToString::to_string).collect::<Vec<_>>(), ["0.1", "1.0"]);
        assert!(some.without(some.parts()[0]).is_empty());
    }
}
