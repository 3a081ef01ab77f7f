//! Features of dictionaries as files: a folder of pages, the page of an attribution graph, and Neuronpedia's form.
//!
//! Each takes a report of the engine as it is serialized. No text of a corpus becomes markup: the pages' scripts, which begin with
//! `common.js`, put all of it into text nodes.

mod frame;
mod graph;
mod neuronpedia;
mod pages;

pub use graph::graph_page;
pub use neuronpedia::{NeuronpediaId, neuronpedia_files};
pub use pages::feature_pages;
