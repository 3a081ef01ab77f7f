//! The influence of nodes on the logits, which nodes and edges it keeps, and the scores of a graph, as circuit-tracer 0.5 defines them.

use super::pass::{AttributionGraph, GraphNode};
use candle_core::Result;

/// The shares of influence that pruning keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// Of the nodes'.
    pub nodes: f64,
    /// Of the edges'.
    pub edges: f64,
}

impl Default for Pruning {
    fn default() -> Self {
        Self { nodes: 0.8, edges: 0.98 }
    }
}

/// The part of a graph that pruning keeps.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeptPart {
    /// Whether each node is kept; tokens and logits always are.
    pub nodes: Vec<bool>,
    /// The edges that are kept: target, source and weight, by target.
    pub edges: Vec<(usize, usize, f32)>,
    /// The share of all influence that a node and all stronger ones have together.
    pub cumulative: Vec<f64>,
}

/// The shares of a graph that its features explain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphScores {
    /// The share of tokens' influence in that of tokens and errors: 1 if all paths lead through features.
    pub replacement: f64,
    /// The share of incoming edges that do not come from errors, over nodes weighted by their influence.
    pub completeness: f64,
}

/// Edges by size, each row divided by its sum: for each target, the sources that are not 0.
struct Normalized(Vec<Vec<(usize, f64)>>);

impl Normalized {
    /// Rows of sources and weights.
    fn new(rows: &[Vec<(usize, f32)>]) -> Self {
        let row = |row: &Vec<(usize, f32)>| {
            let sum: f64 = row.iter().map(|(_, weight)| f64::from(weight.abs())).sum();
            row.iter().map(|&(source, weight)| (source, f64::from(weight.abs()) / sum.max(1e-10))).collect()
        };
        Self(rows.iter().map(row).collect())
    }

    /// `w·A + w·A² + ..`, which ends, since edges lead forward.
    fn influence(&self, logits: &[f64]) -> Vec<f64> {
        let mut all = vec![0.0; logits.len()];
        let mut current = logits.to_vec();
        while current.iter().any(|share| *share != 0.0) {
            let mut next = vec![0.0; logits.len()];
            for (row, share) in self.0.iter().zip(&current).filter(|(_, share)| **share != 0.0) {
                for &(source, weight) in row {
                    next[source] += share * weight;
                }
            }
            all.iter_mut().zip(&next).for_each(|(all, next)| *all += next);
            current = next;
        }
        all
    }
}

/// The smallest of the largest scores that together have a share of the sum.
fn threshold(scores: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = scores.collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let all: f64 = sorted.iter().sum();
    let mut sum = 0.0;
    let reached = sorted.iter().find(|score| {
        sum += **score;
        sum / all >= share
    });
    reached.or(sorted.last()).copied().unwrap_or(0.0)
}

impl AttributionGraph {
    /// The edges into each node that are not 0.
    fn rows(&self) -> Result<Vec<Vec<(usize, f32)>>> {
        let rows = self.edges.to_vec2::<f32>()?.into_iter();
        let row = |row: Vec<f32>| row.into_iter().enumerate().filter(|(_, weight)| *weight != 0.0).collect();
        Ok(rows.map(row).collect())
    }

    /// The probabilities of the logits' nodes; 0 for others.
    fn logits(&self) -> Vec<f64> {
        let probability = |node: &GraphNode| match node {
            GraphNode::Logit { probability, .. } => f64::from(*probability),
            _ => 0.0,
        };
        self.nodes.iter().map(probability).collect()
    }

    /// The influence of each node on the logits: the sum over all paths of products of normalized edges.
    ///
    /// # Errors
    /// When the device fails.
    pub fn influence(&self) -> Result<Vec<f64>> {
        Ok(Normalized::new(&self.rows()?).influence(&self.logits()))
    }

    /// The replacement and completeness scores.
    ///
    /// # Errors
    /// When the device fails.
    pub fn scores(&self) -> Result<GraphScores> {
        let normalized = Normalized::new(&self.rows()?);
        let logits = self.logits();
        let influence = normalized.influence(&logits);
        let sum = |wanted: fn(&GraphNode) -> bool| -> f64 {
            self.nodes.iter().zip(&influence).filter(|(node, _)| wanted(node)).map(|(_, share)| share).sum()
        };
        let tokens = sum(|node| matches!(node, GraphNode::Token { .. }));
        let errors = sum(|node| matches!(node, GraphNode::Error { .. }));
        let is_error = |source: &usize| matches!(self.nodes[*source], GraphNode::Error { .. });
        let mut explained = 0.0;
        let mut all = 0.0;
        for ((row, share), logit) in normalized.0.iter().zip(&influence).zip(&logits) {
            let from_errors: f64 =
                row.iter().filter(|(source, _)| is_error(source)).map(|(_, weight)| weight).sum();
            explained += (1.0 - from_errors) * (share + logit);
            all += share + logit;
        }
        Ok(GraphScores { replacement: tokens / (tokens + errors), completeness: explained / all })
    }

    /// The nodes and edges with most influence.
    ///
    /// # Errors
    /// When the device fails.
    pub fn pruned(&self, pruning: Pruning) -> Result<KeptPart> {
        let logits = self.logits();
        let mut rows = self.rows()?;
        let influence = Normalized::new(&rows).influence(&logits);
        let least = threshold(influence.iter().copied(), pruning.nodes);
        let is_end = |node: &GraphNode| matches!(node, GraphNode::Token { .. } | GraphNode::Logit { .. });
        let mut nodes: Vec<bool> =
            self.nodes.iter().zip(&influence).map(|(node, share)| *share >= least || is_end(node)).collect();
        keep_edges(&mut rows, &nodes);
        let normalized = Normalized::new(&rows);
        let influence_left = normalized.influence(&logits);
        let share = |target: usize| influence_left[target] + logits[target];
        let scores = |target: usize| normalized.0[target].iter().map(move |(_, weight)| (target, *weight));
        let scores = (0..rows.len()).flat_map(scores).map(|(target, weight)| weight * share(target));
        let least = threshold(scores, pruning.edges);
        for (target, row) in rows.iter_mut().enumerate() {
            let mut weights = normalized.0[target].iter();
            row.retain(|_| weights.next().is_some_and(|(_, weight)| weight * share(target) >= least));
        }
        // A node without an edge is nothing on the way to a logit, and its removal may leave others so.
        loop {
            let before = nodes.clone();
            let mut feeds = vec![false; nodes.len()];
            rows.iter().flatten().for_each(|&(source, _)| feeds[source] = true);
            for (place, node) in self.nodes.iter().enumerate().filter(|(_, node)| !is_end(node)) {
                nodes[place] &= feeds[place];
                nodes[place] &= !matches!(node, GraphNode::Feature { .. }) || !rows[place].is_empty();
            }
            if nodes == before {
                break;
            }
            keep_edges(&mut rows, &nodes);
        }
        let edges = rows.iter().enumerate();
        let edges =
            edges.flat_map(|(target, row)| row.iter().map(move |&(source, weight)| (target, source, weight)));
        Ok(KeptPart { nodes, edges: edges.collect(), cumulative: cumulative(&influence) })
    }
}

/// Leaves only edges between nodes that are kept.
fn keep_edges(rows: &mut [Vec<(usize, f32)>], nodes: &[bool]) {
    for (row, kept) in rows.iter_mut().zip(nodes) {
        row.retain(|(source, _)| *kept && nodes[*source]);
    }
}

/// The share of the sum that each score and all larger ones have together.
fn cumulative(scores: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let all: f64 = scores.iter().sum();
    let mut found = vec![0.0; scores.len()];
    let mut sum = 0.0;
    for place in order {
        sum += scores[place];
        found[place] = sum / all;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};

    /// Two features, errors and tokens of each of two layers and positions, and two logits.
    fn graph() -> Result<AttributionGraph> {
        let rows: [(usize, &[(usize, f32)]); 6] = [
            (0, &[(8, 3.0)]),
            (1, &[(8, -1.0), (9, 2.0)]),
            (2, &[(0, 0.05), (8, 4.0), (4, -2.0)]),
            (3, &[(0, 2.0), (1, -3.0), (4, 0.5), (5, 1.0), (9, 1.0)]),
            (10, &[(0, 1.0), (1, 0.5), (2, 0.04), (3, 4.0), (5, -1.0), (7, 2.0), (9, 0.25)]),
            (11, &[(1, -2.0), (3, 1.0), (5, 0.5), (7, -3.0), (8, 0.125)]),
        ];
        let mut edges = vec![0f32; 12 * 12];
        for (target, row) in rows {
            for &(source, weight) in row {
                edges[target * 12 + source] = weight;
            }
        }
        let feature = |(layer, position)| GraphNode::Feature { layer, position, feature: 0, activation: 1.0 };
        let places = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let mut nodes: Vec<GraphNode> = places.map(feature).to_vec();
        nodes.extend(places.map(|(layer, position)| GraphNode::Error { layer, position }));
        nodes.extend([0, 1].map(|position| GraphNode::Token { position }));
        nodes
            .extend([(7, 0.6), (3, 0.3)].map(|(token, probability)| GraphNode::Logit { token, probability }));
        let edges = Tensor::from_vec(edges, (12, 12), &Device::Cpu)?;
        Ok(AttributionGraph { nodes, edges, constants: vec![0.0; 12] })
    }

    /// This graph in circuit-tracer 0.5's `compute_node_influence`, `compute_graph_scores` and `prune_graph(graph, 0.8, 0.9)`, in
    /// f64. Probabilities are f32 here.
    #[test]
    fn influence_scores_and_pruning_are_circuit_tracers() -> Result<()> {
        let near =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-7, "{found}, not {expected}");
        let graph = graph()?;
        let influence = [
            0.153_167_433_8,
            0.252_023_955_2,
            0.002_730_375_4,
            0.318_320_561_5,
            0.022_123_974_2,
            0.133_343_636_6,
            0.0,
            0.272_367_827_9,
            0.244_641_003_1,
            0.227_523_558_1,
            0.0,
            0.0,
        ];
        graph.influence()?.into_iter().zip(influence).for_each(|(found, expected)| near(found, expected));
        let scores = graph.scores()?;
        near(scores.replacement, 0.524_627_290_2);
        near(scores.completeness, 0.830_643_547_4);
        let kept = graph.pruned(Pruning { nodes: 0.8, edges: 0.9 })?;
        let nodes: Vec<usize> = (0..12).filter(|&node| kept.nodes[node]).collect();
        assert_eq!(nodes, [1, 3, 7, 8, 9, 10, 11]);
        let edges: Vec<_> = kept.edges.iter().map(|&(target, source, _)| (target, source)).collect();
        assert_eq!(edges, [(1, 8), (1, 9), (3, 1), (3, 9), (10, 3), (10, 7), (11, 1), (11, 7)]);
        let cumulative =
            [0.902_721_763_1, 0.518_196_046_9, 1.0, 0.195_739_931_5, 0.998_321_052_5, 0.984_716_699_8];
        kept.cumulative.into_iter().zip(cumulative).for_each(|(found, expected)| near(found, expected));
        Ok(())
    }
}
