//! Results of commands and their provenance: exports, pictures, and pages for a browser.

pub(crate) mod browser;
pub(crate) mod exports;
pub(crate) mod live_page;
pub(crate) mod picture;
pub(crate) mod weights_file;
