//! The edges that a task needs, and how faithful the circuit is that they make.

mod circuit_file;
mod edge_scores;
mod options;
mod picture;
mod report;
mod search;
mod study;

pub use circuit_file::circuit_file;
pub use edge_scores::{EdgeScoreOptions, EdgeScoreReport, GradientRuns};
pub use options::{CHOICES, EdgeChoice, INTEGRALS, Integral, Options, REPLACEMENTS};
pub use picture::circuit_picture;
pub use report::{EachPair, MeasuredCircuit, Report, ScoredEdge, SizedCircuit, Without};
