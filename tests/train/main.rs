//! Training on small models whose best loss is known.

#[path = "../common/mod.rs"]
mod common;
mod training;
