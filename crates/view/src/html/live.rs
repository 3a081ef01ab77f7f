//! The frame of a page whose data comes while it is open.

use super::frame::{SHOW, STYLE, hash, write_end, write_frame};
use crate::text::has_shape;
use candle_core::Result;
use std::io::Write;

/// A page that shows the data of [`PageWriter::data`](super::PageWriter::data), and other data later: each time, its script calls
/// `showPage(blocks, signal, choices, addition)`. `blocks(kind)` gives a list of `{ textContent }`; `signal` ends the listeners of a
/// page whose place another takes; `choices` are those of the page before, as its `choiceText()` gave them; `addition()` is what the
/// script adds to the address. The result has `ready`, a promise, and what the script may ask of the page.
///
/// The page may run a worker and WebAssembly, both from its own data, and fetches nothing. All fields but the data are trusted:
/// they are not escaped.
#[derive(Debug, Clone, Copy)]
pub struct LivePage<'a> {
    /// Markup above the page.
    pub bar: &'a str,
    /// Added to the page's own style.
    pub style: &'a str,
    /// Runs after `showPage` is defined.
    pub script: &'a str,
    /// The name of the policy by which the script may start its worker.
    pub trusted_types: &'a str,
    /// Data by kind, in elements that do not run.
    pub data: &'a [(&'a str, &'a str)],
}

impl LivePage<'_> {
    /// Writes the whole file.
    ///
    /// # Errors
    /// When data has `<`, which could end its element, a control character or one without a visible shape, or `out` cannot be
    /// written to.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let script = format!("{SHOW}{}", self.script);
        let style = format!("{STYLE}{}", self.style);
        let policy = format!(
            "script-src 'sha256-{}' 'wasm-unsafe-eval'; worker-src blob:; style-src 'sha256-{}'; trusted-types {}",
            hash(&script),
            hash(&style),
            self.trusted_types
        );
        write_frame(out, &policy, &style, self.bar)?;
        for (kind, text) in self.data {
            if let Some(bad) =
                text.chars().find(|&c| c == '<' || c.is_ascii_control() || !c.is_ascii() && !has_shape(c))
            {
                candle_core::bail!("page: data of the kind {kind:?} holds {bad:?}; write it in base64")
            }
            writeln!(out, "<script type=\"text/plain\" class=\"{kind}\">{text}</script>")?;
        }
        write_end(out, &script)
    }
}
