//! Training small models whose best possible loss is known.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/other_layer.rs"]
mod other_layer;
mod training;
