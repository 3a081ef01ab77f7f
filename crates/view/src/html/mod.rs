//! Attention as a page for a browser: one file that needs no network and nothing beside it.
//!
//! `page.html` is the frame, `style.css` its looks, `js/` its script, in files that share one scope and are
//! joined in the order below. All three are written into the page as they are; tokens, numbers and weights
//! follow as data that the script reads, so nothing of a prompt is ever markup.

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

/// As many weights have 16 bits each; a page with more has 8. Its data takes 1.4 MB at most.
const FEW: usize = 525_000;
/// The text of all heads together, beyond which heads have fewer levels.
const ROOM: usize = 28_000_000;

/// What a page is about: [`PageHeader::new`], and the fields that differ from it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PageHeader<'a> {
    /// Stands at the top: the model's name.
    pub title: &'a str,
    /// The tokens that can be looked at, S of them, as they are in the text.
    pub tokens: &'a [String],
    /// T, the queries: the last of the tokens.
    pub queries: usize,
    /// The heads that will be written, of all layers together.
    pub heads: usize,
    /// Where the weights hold only the K largest of each row (see [`keep_largest`](crate::keep_largest)): K, and the
    /// page shows no number for the others.
    pub top: Option<usize>,
    /// What made it: the caption stands below the title, the facts are `provenance` in the header's JSON.
    pub provenance: &'a Provenance,
}

impl<'a> PageHeader<'a> {
    /// A page of `heads` heads with whole weights, where each token is a query.
    #[must_use]
    pub fn new(title: &'a str, tokens: &'a [String], heads: usize, provenance: &'a Provenance) -> Self {
        Self { title, tokens, queries: tokens.len(), heads, top: None, provenance }
    }
}

/// What the model expects after a query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NextToken {
    /// The most probable tokens and their probabilities, most probable first.
    #[serde(serialize_with = "visible")]
    pub likely: Vec<(String, f32)>,
    /// The probability of the token that does follow; `None` after the last.
    pub actual: Option<f32>,
}

fn visible<S: serde::Serializer>(likely: &[(String, f32)], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(likely.iter().map(|(token, p)| (visible_token(token), p)))
}

/// Writes a page, a layer at a time: no more than one layer's weights need to be there at once.
///
/// A page of up to 525,000 weights shows them within 1.2e-5; beyond, 8 bits a weight are kept, and a
/// weight `w` is shown within `0.003 · ∛w` or a little more near nothing (0.0029 at 1, 0.0003 at 0.001). A
/// page beyond some 28 MB keeps fewer bits of the heads that take most. Beside each value, the page says
/// within how much it is.
///
/// A file that was not finished holds no script and shows nothing.
#[derive(Debug)]
pub struct PageWriter<W> {
    out: W,
    queries: usize,
    keys: usize,
    /// What is still to be written, and the room that is left for it.
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
    /// Starts a page. Many small writes: give it a buffered writer.
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

    /// Writes heads of one layer. Layers and heads appear as they are written, once each.
    ///
    /// # Shapes
    /// `weights` (H, T, S) on any device and of any float dtype; `heads` the indices of these H heads in
    /// the model, `summaries` theirs, as from [`summarize`](crate::summarize)
    ///
    /// # Errors
    /// When the shapes are others than announced, a weight is neither NaN nor between 0 and 1, or the page
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
        // What earlier heads left over is for those that come. Heads differ, so one may take more than its
        // part: where all do, the later ones have less, and the whole stays within its room.
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

    /// Ends the page and gives back what it was written to.
    ///
    /// # Shapes
    /// `predictions` T, one a query, or none where the page is to show none
    ///
    /// # Errors
    /// When there are other numbers of predictions or heads, or the page cannot be written to.
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

    /// A script element that is data. No string can end it, nor reorder what an editor shows of it: `<` and whatever
    /// has no shape of its own are written as escapes.
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

/// The part of the frame between two places; an empty one is its start or its end.
fn between(from: &str, to: &str) -> &'static str {
    let rest = FRAME.split_once(from).filter(|_| !from.is_empty()).map_or(FRAME, |(_, rest)| rest);
    rest.split_once(to).filter(|_| !to.is_empty()).map_or(rest, |(part, _)| part)
}

/// As a content security policy names a script or a style.
fn hash(text: &str) -> String {
    BASE64_STANDARD.encode(Sha256::digest(text))
}

#[cfg(test)]
mod tests;
