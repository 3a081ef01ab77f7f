//! Results of commands and their provenance: exports, pictures, and pages for a browser.

pub(crate) mod exports;
pub(crate) mod live_page;
pub(crate) mod picture;
pub(crate) mod subject;
pub(crate) mod weights_file;
pub(crate) mod weights_page;
