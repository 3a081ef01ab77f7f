//! Pages in a real browser.

#[path = "../common/browser.rs"]
mod browser;
mod choices;
#[path = "../common/mod.rs"]
mod common;
mod comparison;
mod features;
mod hostile;
mod numbers;
mod pages;
mod saving_from_page;

use browser::Browser;
use common::Result;

/// Opens a page, and closes its guide, as somebody did who saw one before.
fn show(html: &[u8], test: impl FnOnce(&Browser) -> Result) -> Result {
    let file = tempfile::Builder::new().suffix(".html").tempfile()?;
    std::fs::write(file.path(), html)?;
    browser::browse(file.path(), |page| {
        page.get("document.getElementById('guide-close')?.click()")?;
        test(page)
    })
}
