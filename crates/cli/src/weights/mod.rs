//! Attention weights as files, for the commands that write them: exports, and the page for a browser.

mod export;
mod page;
mod subject;

pub(crate) use export::{Export, Format, beside};
pub(crate) use page::{LayerValues, NoBrowser, Page, PageOptions, open};
pub(crate) use subject::{Subject, likely_by_layer, next_tokens, predictions};
