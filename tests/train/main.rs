//! Training small models whose best possible loss is known.

mod bf16;
#[path = "../common/mod.rs"]
mod common;
mod dictionary;
mod groups;
mod muon;
#[path = "../common/other_layer.rs"]
mod other_layer;
mod runs;
#[path = "../common/threads.rs"]
mod threads;
mod training;
