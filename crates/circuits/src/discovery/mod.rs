//! Circuit discovery: scores of edges for a task, the circuit that the best edges make, and how faithful it is.
//!
//! The residual stream of each position is the sum of its writers' outputs: the embeddings, the heads and the MLPs. Its
//! readers are the queries, keys and values of each head, the MLPs and the logits. An [`Edge`] leads from a writer to a
//! later reader; GPT-2 small has 32,491 of them (Conmy et al. 2023, "Towards Automated Circuit Discovery"; Hanna et al.
//! 2024, "Have Faith in Faithfulness", arXiv 2403.17806).
//!
//! | function | question |
//! |---|---|
//! | [`Study::edge_scores`] | how much each edge matters to a task, to first order |
//! | [`EdgeScores::ranked`], [`EdgeScores::greedy`] | which circuit of a given size the scores choose |
//! | [`Study::measure`] | what the model predicts if it has the edges of a circuit alone |
//! | [`CircuitRun`] | hooks for any run with a circuit's edges alone |
//! | [`Study::path_patching`] | what a sender tells a receiver along the paths between them |

mod circuit_run;
mod edge_set;
mod graph;
mod hook_checks;
mod pairs;
mod paths;
mod reader_weights;
mod scores;
mod scoring;
mod study;
mod writer_outputs;

pub use circuit_run::{CircuitRun, Rest};
pub use edge_set::{EdgeSet, Replacement};
pub use graph::{Edge, Graph, Reader, Writer};
pub use hook_checks::check_carried;
pub use pairs::Pair;
pub use paths::{Freeze, Paths};
pub use scores::{EdgeGradients, EdgeScores, EdgeScoring};
pub use study::{Progress, Study};
