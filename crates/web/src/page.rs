//! The live page as one file.

use crate::{DEMO, INTERFACE, PageRequest};
use anyhow::{Context, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use gpt2_loader::{Bytes, FILE_NAMES, Files, Source};
use gpt2_view::LivePage;
use serde_json::json;
use std::io::Write;

const BAR: &str = include_str!("page/bar.html");
const STYLE: &str = include_str!("page/live.css");
const SCRIPT: &str = concat!(
    include_str!("page/drawing.js"),
    include_str!("page/answers.js"),
    include_str!("page/own_model.js"),
    include_str!("page/settings.js"),
    include_str!("page/changes.js"),
    include_str!("page/way.js"),
    include_str!("page/moving.js"),
    include_str!("page/lessons.js"),
    include_str!("page/address.js"),
    include_str!("page/start.js"),
);
/// The lessons and what the page says of the way of a token, by language.
const TEXTS: [(&str, &str); 2] =
    [("en", include_str!("page/texts/en.json")), ("de", include_str!("page/texts/de.json"))];
const WORKER: &str = include_str!("page/worker.js");

/// The most bytes of a file of the model: its text is 4/3 the size, and must fit Chromium's longest string of 2^29 letters.
const LARGEST: usize = 400_000_000;

/// A page with the model in it: one file that fetches nothing.
#[derive(Debug, Clone, Copy)]
pub struct LiveFile<'a> {
    /// The WebAssembly module, packed by zlib, in base64: that of the package `gpt2-page-module`, which `scripts/web.sh` builds.
    pub module: &'a str,
    /// The script that loads it, as wasm-bindgen makes it for `no-modules`.
    pub loader: &'a str,
    /// The model that the page opens on; the demo model if there is none.
    pub model: Option<&'a Files>,
}

impl LiveFile<'_> {
    /// Refuses a model that a page cannot hold.
    ///
    /// # Errors
    /// When its weights are in several files, or a file is too large.
    pub fn check(&self) -> anyhow::Result<()> {
        self.model.map_or(Ok(()), |model| contents(model).map(drop))
    }

    /// Writes the page, which opens on `first`: on its text, changes and ways to draw. A run with changes is compared with the
    /// plain one.
    ///
    /// # Errors
    /// Fails as [`LiveFile::check`] does, and when `out` cannot be written to.
    pub fn write(&self, first: &PageRequest, out: &mut impl Write) -> anyhow::Result<()> {
        let worker = BASE64_STANDARD.encode(format!("{}\n{WORKER}", self.loader));
        let demo = Source::Embedded(DEMO).open()?;
        let model = self.model.unwrap_or(&demo);
        let files = parts(model)?;
        let names: Vec<_> = files.iter().map(|file| &file.name).collect();
        let model = json!({ "name": model.name, "files": names, "is_demo": self.model.is_none() });
        let PageRequest { text, ids, prompt, changes, draw, compare: _, along: _ } = first;
        let first = json!({
            "interface": INTERFACE, "text": text, "ids": ids, "prompt": prompt, "changes": changes, "draw": draw,
            "files": FILE_NAMES, "model": model,
        });
        let first = BASE64_STANDARD.encode(first.to_string());
        let texts: Vec<String> = TEXTS.iter().map(|(code, text)| format!("\"{code}\":{text}")).collect();
        let texts = BASE64_STANDARD.encode(format!("{{{}}}", texts.join(",")));
        let mut data =
            vec![("first", &*first), ("texts", &texts), ("worker", &worker), ("module", self.module)];
        data.extend(files.iter().map(|file| (&*file.kind, &*file.content)));
        let page =
            LivePage { bar: BAR, style: STYLE, script: SCRIPT, trusted_types: "gpt2-live", data: &data };
        Ok(page.write(out)?)
    }
}

/// A file of the model, in base64.
struct ModelFile {
    name: String,
    /// The kind of its block in the page.
    kind: String,
    content: String,
}

/// The files of a model that a page can hold, by their names.
fn contents(model: &Files) -> anyhow::Result<Vec<(String, &Bytes)>> {
    const REMEDY: &str = "gpt2 quantize makes one GGUF file of it, several times smaller";
    let contents = model
        .contents()
        .with_context(|| format!("{}: its weights are in several files; {REMEDY}", model.name))?;
    if let Some((name, bytes)) = contents.iter().find(|(_, bytes)| bytes.len() > LARGEST) {
        bail!(
            "{name} has {} MB, and a page holds files of up to {} MB; {REMEDY}",
            bytes.len() / 1_000_000,
            LARGEST / 1_000_000
        );
    }
    Ok(contents)
}

/// The files of the model as blocks of the page.
fn parts(model: &Files) -> anyhow::Result<Vec<ModelFile>> {
    let part = |(i, (name, bytes)): (usize, (String, &Bytes))| ModelFile {
        name,
        kind: format!("file-{i}"),
        content: BASE64_STANDARD.encode(&bytes[..]),
    };
    Ok(contents(model)?.into_iter().enumerate().map(part).collect())
}
