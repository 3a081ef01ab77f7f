//! Attribution graphs of one prompt (Ameisen et al. 2025, "Circuit Tracing: Revealing Computational Graphs in Language Models"):
//! which features of transcoders lead from the tokens to the next token's logits, and by how much.
//!
//! Transcoders take the place of the MLPs, with the error that they leave; attention weights and layer norms' scales stay as the
//! prompt made them. Then everything between one feature and the next is linear. Nodes are active features, errors, tokens'
//! embeddings and logits; the edge from s to t is what s adds to t's value: the sum of a node's incoming edges and its constant is
//! its value. Definitions of influence, pruning and scores are those of [circuit-tracer](https://github.com/safety-research/circuit-tracer)
//! 0.5.
//!
//! ```no_run
//! use candle_core::{Device, Tensor};
//! use gpt2_circuits::attribution_graph::{LogitChoice, ReplacedPass};
//! # fn main() -> candle_core::Result<()> {
//! # let model: gpt2_model::Gpt2LMHeadModel = unimplemented!();
//! # let transcoders: Vec<gpt2_circuits::features::Features> = vec![];
//! let ids = Tensor::new(&[[464u32, 3139, 286, 4881]], &Device::Cpu)?;
//! let pass = ReplacedPass::run(&model, &transcoders, &ids, LogitChoice::default())?;
//! let graph = pass.graph(&mut |_, _| Ok(()))?;
//! println!("{:?}", graph.scores());
//! # Ok(())
//! # }
//! ```

mod frozen;
mod influence;
mod pass;

pub use influence::{GraphScores, KeptPart, Pruning};
pub use pass::{AttributionGraph, GraphNode, LogitChoice, ReplacedPass};
