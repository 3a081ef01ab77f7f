//! Attention as a page for a browser: one file that needs no network and no other files.
//!
//! `page.html` is the frame, `style.css` its style, and `js/` its script, in files that share one scope and are
//! joined in the order below. All three go into the page unchanged; tokens, numbers and weights follow as data
//! that the script reads, so no part of a prompt ever becomes markup.

mod codes;

use crate::palette::ANCHORS;
use crate::provenance::Provenance;
use crate::summary::HeadSummary;
use crate::text::{has_shape, visible_text, visible_token};
use crate::triangle::check;
use base64::{Engine, prelude::BASE64_STANDARD};
use candle_core::{Error, Result, Tensor};
use codes::{COARSE, Codes, FINE, encode};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::Write;

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(
    include_str!("js/data.js"),
    include_str!("js/state.js"),
    include_str!("js/raster.js"),
    include_str!("js/overview.js"),
    include_str!("js/axes.js"),
    include_str!("js/map.js"),
    include_str!("js/lines.js"),
    include_str!("js/token.js"),
    include_str!("js/main.js"),
);

/// Pages of up to this many weights give each 16 bits, larger ones 8. The data of the former takes 1.4 MB at most.
const FEW: usize = 525_000;
/// The size of all heads' text together, above which heads get fewer levels.
const ROOM: usize = 28_000_000;

/// What a page is about: start with [`PageHeader::new`] and change the fields that differ.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PageHeader<'a> {
    /// The title at the top: the model's name.
    pub title: &'a str,
    /// The S tokens that queries can attend to, as they are in the text.
    pub tokens: &'a [String],
    /// T, the number of queries: they are the last tokens.
    pub queries: usize,
    /// How many heads will be written, in all layers together.
    pub heads: usize,
    /// K, if the weights hold only the K largest of each row (see [`keep_largest`](crate::keep_largest)); the page
    /// then shows no number for the others.
    pub top: Option<usize>,
    /// How it was made: the caption goes below the title, the facts into `provenance` in the header's JSON.
    pub provenance: &'a Provenance,
}

impl<'a> PageHeader<'a> {
    /// A page of `heads` heads with all their weights, where each token is a query.
    #[must_use]
    pub fn new(title: &'a str, tokens: &'a [String], heads: usize, provenance: &'a Provenance) -> Self {
        Self { title, tokens, queries: tokens.len(), heads, top: None, provenance }
    }
}

/// The model's prediction after a query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NextToken {
    /// The most probable tokens and their probabilities, most probable first.
    #[serde(serialize_with = "visible")]
    pub likely: Vec<(String, f32)>,
    /// The probability of the token that really follows; `None` after the last.
    pub actual: Option<f32>,
}

fn visible<S: serde::Serializer>(likely: &[(String, f32)], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(likely.iter().map(|(token, p)| (visible_token(token), p)))
}

/// Writes a page one layer at a time, so that memory never has to hold more than one layer's weights.
///
/// A page of up to 525,000 weights shows them within 1.2e-5. A larger page keeps 8 bits per weight and shows a
/// weight `w` within `0.003 · ∛w`, or a little more near 0 (0.0029 at 1, 0.0003 at 0.001). A
/// page beyond some 28 MB keeps fewer bits of the largest heads. The page shows the error bound beside each
/// value.
///
/// An unfinished file holds no script and shows nothing.
#[derive(Debug)]
pub struct PageWriter<W> {
    out: W,
    queries: usize,
    keys: usize,
    /// The number of heads still to write, and the room left for them.
    heads: usize,
    room: usize,
    levels: &'static [u16],
}

#[derive(Serialize)]
struct Header<'a> {
    title: String,
    caption: String,
    tokens: Vec<String>,
    queries: usize,
    top: Option<usize>,
    palette: [(u8, u8, u8); ANCHORS.len()],
    provenance: &'a Value,
}

#[derive(Serialize)]
struct LayerEntry<'a> {
    layer: usize,
    heads: Vec<HeadEntry<'a>>,
}

#[derive(Serialize)]
struct HeadEntry<'a> {
    head: usize,
    levels: u16,
    summary: &'a HeadSummary,
}

impl<W: Write> PageWriter<W> {
    /// Starts a page. It makes many small writes, so give it a buffered writer.
    ///
    /// # Errors
    /// When there is no query, more queries than tokens, no head, or `out` cannot be written to.
    pub fn new(mut out: W, header: &PageHeader) -> Result<Self> {
        let (queries, keys, heads) = (header.queries, header.tokens.len(), header.heads);
        check(queries, keys, "page")?;
        if heads == 0 {
            candle_core::bail!("page: no head to show")
        }
        let head = between("", "{{data}}");
        let head = head.replace("{{script-hash}}", &hash(SCRIPT)).replace("{{style-hash}}", &hash(STYLE));
        out.write_all(head.replace("{{style}}", STYLE).as_bytes())?;
        let tokens = header.tokens.iter().map(|token| visible_token(token)).collect();
        let title = visible_text(header.title);
        let values = heads.saturating_mul(queries * (keys - queries) + queries * (queries + 1) / 2);
        let levels: &[u16] = if values <= FEW { &[FINE] } else { &COARSE };
        let mut page = Self { out, queries, keys, heads, room: ROOM, levels };
        let (caption, provenance) = (header.provenance.shown(), &header.provenance.facts);
        let header =
            Header { title, caption, tokens, queries, top: header.top, palette: ANCHORS, provenance };
        page.json("id=\"header\"", &header)?;
        Ok(page)
    }

    /// Writes heads of one layer. Layers and heads appear in the order of writing; write each once.
    ///
    /// # Shapes
    /// `weights` (H, T, S) on any device and of any float dtype; `heads` the indices of these H heads in
    /// the model, `summaries` theirs, as from [`summarize`](crate::summarize)
    ///
    /// # Errors
    /// When the shapes differ from the header, a weight is neither NaN nor between 0 and 1, or the page
    /// cannot be written to.
    pub fn layer(
        &mut self,
        layer: usize,
        heads: &[usize],
        weights: &Tensor,
        summaries: &[HeadSummary],
    ) -> Result<()> {
        if weights.dims() != [heads.len(), self.queries, self.keys] || summaries.len() != heads.len() {
            candle_core::bail!(
                "page: layer {layer} has weights of shape {:?} and {} summaries for {} heads, {} queries and {} keys",
                weights.dims(),
                summaries.len(),
                heads.len(),
                self.queries,
                self.keys
            )
        }
        let Some(left) = self.heads.checked_sub(heads.len()) else {
            candle_core::bail!("page: layer {layer} has {} heads, {} were left", heads.len(), self.heads)
        };
        // Later heads may use the room that earlier ones left over. Heads differ, so one may take more than its
        // share; if all do, the later ones get less, and the total stays within its room.
        let share = self.room / self.heads.max(1) * 7 / 5;
        let codes: Vec<Codes> = (0..heads.len())
            .into_par_iter()
            .map(|i| encode(&weights.get(i)?, self.levels, share))
            .collect::<Result<_>>()?;
        let entry = |((&head, summary), codes): ((&usize, _), &Codes)| HeadEntry {
            head,
            levels: codes.levels,
            summary,
        };
        let entries = heads.iter().zip(summaries).zip(&codes).map(entry).collect();
        self.json("class=\"layer\"", &LayerEntry { layer, heads: entries })?;
        for Codes { text, .. } in &codes {
            self.room = self.room.saturating_sub(text.len());
            writeln!(self.out, "<script type=\"text/plain\" class=\"weights\">{text}</script>")?;
        }
        self.heads = left;
        Ok(())
    }

    /// Ends the page and returns its writer.
    ///
    /// # Shapes
    /// `predictions` T, one per query, or none if the page should not show any
    ///
    /// # Errors
    /// When the number of predictions or heads is wrong, or the page cannot be written to.
    pub fn finish(mut self, predictions: &[NextToken]) -> Result<W> {
        if self.heads > 0 {
            candle_core::bail!("page: {} of the announced heads are missing", self.heads)
        }
        if !predictions.is_empty() && predictions.len() != self.queries {
            candle_core::bail!("page: {} predictions for {} queries", predictions.len(), self.queries)
        }
        self.json("id=\"predictions\"", &predictions)?;
        self.out.write_all(between("{{data}}", "{{script}}").as_bytes())?;
        self.out.write_all(SCRIPT.as_bytes())?;
        self.out.write_all(between("{{script}}", "").as_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// A script element that holds data. No string can end it, or change the order in which an editor shows it: `<` and
    /// all characters without a visible shape are written as escapes.
    fn json(&mut self, attribute: &str, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(value).map_err(Error::wrap)?;
        let mut text = String::with_capacity(json.len());
        for c in json.chars() {
            if c == '<' || c == '\x7f' || !c.is_ascii() && !has_shape(c) {
                text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            } else {
                text.push(c);
            }
        }
        writeln!(self.out, "<script type=\"application/json\" {attribute}>{text}</script>")?;
        Ok(())
    }
}

/// The part of the frame between two placeholders; an empty one stands for its start or its end.
fn between(from: &str, to: &str) -> &'static str {
    let rest = FRAME.split_once(from).filter(|_| !from.is_empty()).map_or(FRAME, |(_, rest)| rest);
    rest.split_once(to).filter(|_| !to.is_empty()).map_or(rest, |(part, _)| part)
}

/// The hash by which a content security policy names a script or a style.
fn hash(text: &str) -> String {
    BASE64_STANDARD.encode(Sha256::digest(text))
}

#[cfg(test)]
mod tests;
