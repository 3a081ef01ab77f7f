//! Attention as a page for a browser: one file that needs no network and no other files.
//!
//! `page.html` is the frame, `style.css` its style, and `js/` its script, in files that share the scope of one function and are
//! joined in the order below. All three go into the page unchanged; tokens, numbers and weights follow as data
//! that the script reads, so no part of a prompt ever becomes markup. A [live page](LivePage) calls that function for each new text.

mod codes;
mod entries;
mod frame;
mod head_notes;
mod header;
mod live;

use crate::focus::{Focus, Places};
use crate::palette::{ANCHORS, Rgb};
use crate::rows::{check, keep_largest};
use crate::summary::{HeadSummary, summarize};
use crate::text::{has_shape, visible_text, visible_token};
use candle_core::{Error, Result, Tensor};
use codes::{COARSE, Codes, FINE, encode};
use frame::{SCRIPT, STYLE, hash, write_end, write_frame};
use head_notes::{HeadNotes, NotedHead};
pub use header::{HeadNumbers, NextToken, PageHeader};
pub use live::LivePage;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;

/// Pages of up to this many weights give each 16 bits, larger ones 8. The data of the former takes 1.4 MB at most.
const FEW: usize = 525_000;
/// The size of all heads' text together, above which heads get fewer levels.
const ROOM: usize = 28_000_000;

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
    /// Whether the frame and the script are written around the data.
    is_whole: bool,
    queries: usize,
    keys: usize,
    /// The number of heads in each run.
    announced: usize,
    /// The layers and heads that each run has so far.
    written: Vec<Vec<(usize, usize)>>,
    /// The names of each run's maps beside its heads, as the page shows them.
    maps: Vec<Vec<String>>,
    /// The room left for the heads that are still to be written.
    room: usize,
    levels: &'static [u16],
    top: Option<usize>,
    /// Whether a token comes after the last query.
    goes_on: bool,
    notes: HeadNotes,
}

#[derive(Serialize)]
struct HeaderJson<'a> {
    title: String,
    caption: String,
    tokens: Vec<String>,
    /// The tokens as they are, for the search: the page never shows these.
    texts: &'a [String],
    queries: usize,
    /// Whether the weights are compressed.
    packed: bool,
    top: Option<usize>,
    runs: Vec<String>,
    prompt: Option<usize>,
    next: Option<String>,
    /// The words for the kinds of heads, and what each looks at.
    kinds: BTreeMap<Focus, &'static str>,
    palette: [Rgb; ANCHORS.len()],
    provenance: &'a Value,
}

#[derive(Serialize)]
struct OfRun<'a, D: Serialize + ?Sized> {
    run: usize,
    data: &'a D,
}

#[derive(Serialize)]
struct LayerEntry<'a> {
    layer: usize,
    heads: Vec<HeadEntry<'a>>,
    run: usize,
}

#[derive(Serialize)]
struct HeadEntry<'a> {
    head: usize,
    levels: u16,
    kind: Focus,
    #[serde(skip_serializing_if = "Option::is_none")]
    silenced: Option<&'static str>,
    summary: &'a HeadSummary,
}

impl<W: Write> PageWriter<W> {
    /// Starts a page. It makes many small writes, so give it a buffered writer.
    ///
    /// # Errors
    /// When there is no query, more queries than tokens, no head, more than two runs, a prompt without a token or
    /// longer than the text, another number of ids than of tokens, or `out` cannot be written to.
    pub fn new(mut out: W, header: &PageHeader) -> Result<Self> {
        let policy = format!(
            "script-src 'sha256-{}'; style-src 'sha256-{}'; trusted-types 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        write_frame(&mut out, &policy, STYLE, "")?;
        Self::begin(out, header, true)
    }

    /// Starts the data of a page that is open already: a line for each block, its kind, a tab, and the block. A [`LivePage`]
    /// shows it. Weights are not compressed, so that they are drawn at once.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn data(out: W, header: &PageHeader) -> Result<Self> {
        Self::begin(out, header, false)
    }

    fn begin(out: W, header: &PageHeader, is_whole: bool) -> Result<Self> {
        let queries = header.queries;
        let keys = header.tokens.len();
        let announced = header.heads;
        check(queries, keys, "page")?;
        if announced == 0 {
            candle_core::bail!("page: no head to show")
        }
        let runs = header.runs.len().max(1);
        if runs > 2 {
            candle_core::bail!("page: {runs} runs, expected one or two")
        }
        if let Some(prompt) = header.prompt.filter(|prompt| !(1..=keys).contains(prompt)) {
            candle_core::bail!("page: a prompt of {prompt} tokens in a text of {keys}")
        }
        if !header.ids.is_empty() && header.ids.len() != keys {
            candle_core::bail!("page: {} ids for {keys} tokens", header.ids.len())
        }
        let seen = queries * (keys - queries) + queries * (queries + 1) / 2;
        let values = announced.saturating_mul(runs).saturating_mul(seen);
        let levels: &[u16] = if values <= FEW { &[FINE] } else { &COARSE };
        let places = if header.ids.is_empty() {
            let mut known = BTreeMap::new();
            let first_with = |(i, text)| *known.entry(text).or_insert(i);
            Places::new(&(0u32..).zip(header.tokens).map(first_with).collect::<Vec<_>>(), header.tokens)
        } else {
            Places::new(header.ids, header.tokens)
        };
        let mut page = Self {
            out,
            is_whole,
            queries,
            keys,
            announced,
            written: vec![vec![]; runs],
            maps: vec![vec![]; runs],
            room: ROOM,
            levels,
            top: header.top,
            goes_on: header.next.is_some(),
            notes: HeadNotes::new(places, header.silenced.clone(), runs, header.top),
        };
        let header = HeaderJson {
            title: visible_text(header.title),
            caption: header.provenance.shown(),
            tokens: header.tokens.iter().map(|token| visible_token(token)).collect(),
            texts: header.tokens,
            queries,
            packed: is_whole,
            top: header.top,
            runs: header.runs.iter().map(|run| visible_text(run)).collect(),
            prompt: header.prompt,
            next: header.next.map(visible_token),
            kinds: Focus::ALL.map(|kind| (kind, kind.meaning())).into(),
            palette: ANCHORS,
            provenance: &header.provenance.facts,
        };
        page.json("header", &header)?;
        Ok(page)
    }

    /// Writes heads of one layer of the first or only run. Layers and heads appear in the order of writing; write each
    /// once.
    ///
    /// # Shapes
    /// `weights` (H, T, S) on any device and of any float dtype; `heads` the indices of these H heads in
    /// the model
    ///
    /// # Errors
    /// When the shapes differ from the header, a head was there before, a weight is neither NaN nor between 0 and 1,
    /// or the page cannot be written to.
    pub fn layer(&mut self, layer: usize, heads: &[usize], weights: &Tensor) -> Result<()> {
        self.layer_of_run(0, layer, heads, weights)
    }

    /// Writes heads of one layer of run 0 or 1, in any order: both runs must have the same heads in the end.
    ///
    /// # Shapes
    /// Same as [`layer`](Self::layer)
    ///
    /// # Errors
    /// When [`layer`](Self::layer) fails, and when there is no such run.
    pub fn layer_of_run(
        &mut self,
        run: usize,
        layer: usize,
        heads: &[usize],
        weights: &Tensor,
    ) -> Result<()> {
        self.check_run(run)?;
        if weights.dims() != [heads.len(), self.queries, self.keys] {
            candle_core::bail!(
                "page: layer {layer} has weights of shape {:?} for {} heads, {} queries and {} keys",
                weights.dims(),
                heads.len(),
                self.queries,
                self.keys
            )
        }
        let left = self.announced - self.written[run].len();
        if heads.len() > left {
            candle_core::bail!("page: layer {layer} has {} heads, {left} were left", heads.len())
        }
        let share = self.share();
        for &head in heads {
            if self.written[run].contains(&(layer, head)) {
                candle_core::bail!("page: layer {layer}, head {head} was written before")
            }
            self.written[run].push((layer, head));
        }
        let summaries = summarize(weights)?;
        let kept = self.top.map(|k| keep_largest(weights, k)).transpose()?;
        let kept = kept.as_ref().unwrap_or(weights);
        let written: Vec<(NotedHead, Codes)> = (0..heads.len())
            .into_par_iter()
            .map(|i| {
                let noted = self.notes.head(&weights.get(i)?, &summaries[i])?;
                Ok((noted, encode(&kept.get(i)?, self.levels, share, self.is_whole)?))
            })
            .collect::<Result<_>>()?;
        let entry = |((&head, summary), (noted, codes)): ((&usize, _), &(NotedHead, Codes))| HeadEntry {
            head,
            levels: codes.levels,
            kind: noted.focus,
            silenced: self.notes.silenced(run, (layer, head)),
            summary,
        };
        let entries = heads.iter().zip(&summaries).zip(&written).map(entry).collect();
        self.json("layer", &LayerEntry { layer, heads: entries, run })?;
        for (&head, (noted, codes)) in heads.iter().zip(written) {
            self.room = self.room.saturating_sub(codes.text.len());
            self.block("weights", "text/plain", &codes.text)?;
            self.notes.note(run, (layer, head), &noted, codes)?;
        }
        Ok(())
    }

    /// Ends the page and returns its writer.
    ///
    /// # Shapes
    /// `predictions` T, one per query of the first run, or none if the page should not show any
    ///
    /// # Errors
    /// When the number of predictions or heads is wrong, the last prediction has the probability of a token that the header
    /// does not name ([`PageHeader::next`]), the runs have other heads or other maps, or the page cannot be written to.
    pub fn finish(mut self, predictions: &[NextToken]) -> Result<W> {
        if self.left() > 0 {
            candle_core::bail!("page: {} of the announced heads are missing", self.left())
        }
        for run in &mut self.written {
            run.sort_unstable();
        }
        if self.written.windows(2).any(|pair| pair[0] != pair[1]) {
            candle_core::bail!("page: the two runs have different heads, so nothing can be compared")
        }
        for run in &mut self.maps {
            run.sort_unstable();
        }
        if self.maps.windows(2).any(|pair| pair[0] != pair[1]) {
            candle_core::bail!("page: the two runs have different maps beside the heads: {:?}", self.maps)
        }
        if !predictions.is_empty() && predictions.len() != self.queries {
            candle_core::bail!("page: {} predictions for {} queries", predictions.len(), self.queries)
        }
        self.check_next(predictions)?;
        self.json("predictions", &OfRun { run: 0, data: predictions })?;
        if self.written.len() > 1 {
            self.json("changes", &self.notes.changes())?;
            self.json("largest", &self.notes.largest())?;
        }
        self.json("opens", &self.notes.opens())?;
        if self.is_whole {
            write_end(&mut self.out, SCRIPT)?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    /// Refuses a probability of a token that the page does not know.
    fn check_next(&self, predictions: &[NextToken]) -> Result<()> {
        if !self.goes_on && predictions.last().is_some_and(|last| last.actual.is_some()) {
            candle_core::bail!(
                "page: the last prediction has the probability of the token that follows, but the header does not name that token (`next`)"
            )
        }
        Ok(())
    }

    fn check_run(&self, run: usize) -> Result<()> {
        if run >= self.written.len() {
            candle_core::bail!("page: run {run}, but the header names {}", self.written.len())
        }
        Ok(())
    }

    /// The text that the next head may take. Later heads may use the room that earlier ones left over. Heads differ, so
    /// one may take more than its share; if all do, the later ones get less, and the total stays within its room.
    fn share(&self) -> usize {
        self.room / self.left().max(1) * 7 / 5
    }

    /// The number of heads that are still to be written, in all runs.
    fn left(&self) -> usize {
        self.written.iter().map(|run| self.announced - run.len()).sum()
    }

    /// A block of data as JSON. No string can end its element, or change the order in which an editor shows it: `<` and
    /// all characters without a visible shape are written as escapes.
    fn json(&mut self, kind: &str, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(value).map_err(Error::wrap)?;
        let mut text = String::with_capacity(json.len());
        for c in json.chars() {
            if c == '<' || c == '\x7f' || !c.is_ascii() && !has_shape(c) {
                text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            } else {
                text.push(c);
            }
        }
        self.block(kind, "application/json", &text)
    }

    /// A block of data that the page's script asks for by its kind.
    fn block(&mut self, kind: &str, mime: &str, text: &str) -> Result<()> {
        if self.is_whole {
            writeln!(self.out, "<script type=\"{mime}\" class=\"{kind}\">{text}</script>")?;
        } else {
            writeln!(self.out, "{kind}\t{text}")?;
        }
        Ok(())
    }
}

/// A page as an element to put into another document, such as a notebook: an `iframe` that holds the whole page and
/// needs no file.
///
/// The frame is `height` CSS pixels high and as wide as its place. It is sandboxed: the page runs its own script and
/// offers files to save, but cannot touch the document around it. A Jupyter kernel shows it as `text/html`.
#[must_use]
pub fn page_fragment(page: &[u8], height: u32) -> String {
    // Inside quotes, only these two characters mean anything.
    let page = String::from_utf8_lossy(page).replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<iframe title=\"Attention\" sandbox=\"allow-scripts allow-downloads\" allow=\"clipboard-write\" \
         style=\"width:100%;height:{height}px;border:0\" srcdoc=\"{page}\"></iframe>\n"
    )
}

#[cfg(test)]
mod tests;
