//! Training small models whose best possible loss is known.

#[path = "../common/mod.rs"]
mod common;
mod training;
