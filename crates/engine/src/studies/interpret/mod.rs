//! Looks into a model: at heads, streams, features, circuits.

pub mod attention;
pub mod circuits;
pub mod discover;
pub mod features;
pub mod graph;
pub mod heads;
pub mod lens;
pub mod measure;
mod metric_names;
mod over_pairs;
pub mod pairs;
pub mod patch;
