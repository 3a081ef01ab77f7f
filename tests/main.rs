//! One integration binary over all crates, one module a subject.

mod analysis;
mod cache;
mod causality;
mod checkpoint;
mod cli;
mod common;
mod dropout;
mod fused;
mod fused_backward;
mod fuzz_corpus;
mod generate;
mod gradients;
mod hooks;
mod hub;
mod padding;
mod parity;
mod seeds;
mod training;
mod view;
mod weights;
