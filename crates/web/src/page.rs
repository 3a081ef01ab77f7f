//! The live page as one file.

use crate::Look;
use base64::{Engine, prelude::BASE64_STANDARD};
use gpt2_loader::FILE_NAMES;
use gpt2_view::LivePage;
use miniz_oxide::deflate::compress_to_vec_zlib;
use serde_json::json;
use std::io::Write;

const BAR: &str = include_str!("page/bar.html");
const STYLE: &str = include_str!("page/live.css");
const SCRIPT: &str = include_str!("page/live.js");
const WORKER: &str = include_str!("page/worker.js");

/// The most effort that deflate knows.
const LEVEL: u8 = 10;

/// A page with the model in it: one file that fetches nothing.
#[derive(Debug, Clone, Copy)]
pub struct LiveFile<'a> {
    /// The WebAssembly module, with the demo model in it, as `scripts/web.sh` builds it.
    pub module: &'a [u8],
    /// The script that loads it, as wasm-bindgen makes it for `no-modules`.
    pub glue: &'a str,
}

impl LiveFile<'_> {
    /// Writes the page, which opens on the text and the changes of `first`.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub fn write(&self, first: &Look, out: &mut impl Write) -> anyhow::Result<()> {
        let module = BASE64_STANDARD.encode(compress_to_vec_zlib(self.module, LEVEL));
        let worker = BASE64_STANDARD.encode(format!("{}\n{WORKER}", self.glue));
        let first = json!({ "text": first.text, "changes": first.changes, "files": FILE_NAMES });
        let first = BASE64_STANDARD.encode(first.to_string());
        let page = LivePage {
            bar: BAR,
            style: STYLE,
            script: SCRIPT,
            trusted_types: "gpt2-live",
            data: &[("first", &first), ("worker", &worker), ("module", &module)],
        };
        Ok(page.write(out)?)
    }
}
