//! Attention tensors and token strings, as tables and heat maps for a terminal, and as files.
//!
//! This crate knows tensors, token strings and numbers. It knows no model, reads no environment variables and prints
//! nothing: a view for a terminal is a `String` in which every line ends with a newline, and a picture is the bytes of
//! a file.
//!
//! | letter | meaning | | letter | meaning |
//! |---|---|---|---|---|
//! | H | heads | | T | query length |
//! | | | | S | key length, `S >= T` |
//!
//! With T queries and S keys, query i sits at position `S - T + i` and sees the keys up to there.
//!
//! # Code map
//!
//! | file | content |
//! |---|---|
//! | `summary` | [`summarize`]: a head's weights as a few numbers |
//! | `focus` | [`Focus`]: the kind of a head, by where it looks |
//! | `first_look` | [`FirstLook`]: the head, the links and the kinds that a person sees first |
//! | `silenced` | [`Silenced`]: heads whose output a run does not use |
//! | `heatmap` | [`heatmap`]: the weights of one head, with a row and a column for each token |
//! | `table` | [`Table`]: columns aligned by display width; [`overview`]: one row per head |
//! | `text` | [`visible_token`] and the like: token strings without control codes for the terminal |
//! | `terminal` | [`Style`], and the escape sequences that color a cell |
//! | `palette` | the colors of weights |
//! | `rows` | weights as rows of numbers without the hidden keys; [`keep_largest`]: the largest weights of each row |
//! | `html` | [`PageWriter`]: every head in one page for a browser, which needs no network; [`page_fragment`]; [`LivePage`]: a page whose data comes while it is open |
//! | `picture` | as PNG, SVG or PDF ([`PictureFormat`]): in a [`Frame`] with a title and a width: one head ([`head_picture`]), all ([`HeadGrid`]), rollout ([`rollout_picture`]), matrices of signed numbers ([`NumberMap`], [`number_maps`]), a training run ([`loss_curve`]) |
//! | `features` | [`feature_pages`]: a folder of pages for the features of a dictionary; [`graph_page`]: the page of an attribution graph; [`neuronpedia_files`]: features as Neuronpedia takes them |
//! | `provenance` | [`Provenance`]: how a file was made, recorded in every file; [`without_folders`]: a name for others to see |
//! | `export` | [`AttentionJson`], [`write_json_lines`], and [`write_square_json`] for BertViz and CircuitsVis |
//! | crate `gpt2-files` | [`write_safetensors`], [`write_any_safetensors`] |
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use gpt2_view::{Style, heatmap};
//!
//! let weights = Tensor::new(&[[1f32, 0.], [0.75, 0.25]], &Device::Cpu)?; // (T, S)
//! let tokens = ["Hello".to_owned(), " world".to_owned()];
//! let map = heatmap(&weights, &tokens, &tokens, &Style::default())?;
//! assert_eq!(
//!     map,
//!     "              0      1\n          Hello ·world\n0 Hello     1.0\n1 ·world    .75    .25\n"
//! );
//! # Ok::<(), candle_core::Error>(())
//! ```

mod export;
mod features;
mod first_look;
mod focus;
mod heatmap;
mod html;
mod palette;
mod picture;
mod provenance;
mod rows;
mod silenced;
mod summary;
mod table;
mod terminal;
mod text;

pub use candle_core;
pub use export::{
    AttentionJson, HeadJson, LayerJson, LikelyJson, RunJson, write_json_lines, write_provenance_line,
    write_square_json,
};
pub use features::{NeuronpediaId, feature_pages, graph_page, neuronpedia_files};
pub use first_look::{FirstLook, Link};
pub use focus::{FOCUS_THRESHOLD, Focus, Looks, Share};
pub use gpt2_files::{write_any_safetensors, write_safetensors};
pub use heatmap::heatmap;
pub use html::{HeadNumbers, LivePage, NextToken, PageHeader, PageWriter, page_fragment};
pub use picture::{
    Frame, GraphLink, GraphNode, GraphPicture, HeadGrid, NumberMap, PictureFormat, PictureWidth,
    head_picture, loss_curve, number_maps, rollout_picture,
};
pub use provenance::{Provenance, without_folders};
pub use rows::keep_largest;
pub use silenced::Silenced;
pub use summary::{HeadSummary, QueryNumbers, summarize};
pub use table::{HeadRow, Table, overview};
pub use terminal::{Color, MIN_WIDTH, Style};
pub use text::{
    Align, display_width, fit, pad, shell_word, visible_lines, visible_text, visible_token, wrap,
};

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
