//! Attention weights as files, for the commands that write them: exports, and the page for a browser.

mod export;
mod extras;
mod open;
mod page;
mod predictions;
mod subject;

pub(crate) use export::{Export, Format, beside};
pub(crate) use extras::{LayerValues, likely_by_layer};
pub(crate) use open::open;
pub(crate) use page::{Page, PageOptions};
pub(crate) use predictions::predictions;
pub(crate) use subject::Subject;
