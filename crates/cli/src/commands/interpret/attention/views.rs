//! The outputs made from the weights, one layer at a time: heat maps and JSON on stdout, and files.

use super::scene::{AttentionScene, CELL};
use crate::output;
use crate::output::rows::{more, shown};
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::picture::PictureMetadata;
use crate::results::weights_file::Export;
use candle_core::Tensor;
use gpt2_engine::studies::interpret::attention::{Look, MOST_LINKED, Subject};
use gpt2_engine::words::count;
use gpt2_view::{
    AttentionJson, FirstLook, HeadGrid, LikelyJson, MIN_WIDTH, display_width, fit, head_picture, heatmap,
    visible_text, wrap,
};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};

/// Every output of the command's own that needs the weights themselves.
pub(super) struct Views {
    /// Heat maps for stdout, printed after the files are written.
    pub(super) maps: Option<String>,
    export: Option<Export>,
    picture: Option<HeadsPicture>,
}

/// The weights (T, T) of one head, to be drawn in full, or several heads as a grid.
enum HeadsPicture {
    Head(Tensor),
    Grid(HeadGrid),
}

impl Views {
    pub(super) fn new(scene: &AttentionScene) -> anyhow::Result<Self> {
        let args = scene.args;
        let has_maps = args.is_chosen() && !args.study.json && args.fragment.is_none();
        let export = args.export.as_deref().map(|path| Export::new(&scene.subject, path, args.provenance));
        Ok(Self {
            maps: has_maps.then(|| format!("{}\n\n", scene.subject.made_by.first_line())),
            export: export.transpose()?,
            picture: args.picture.is_wanted().then(|| HeadsPicture::Grid(HeadGrid::default())),
        })
    }

    pub(super) fn want_weights(&self) -> bool {
        self.maps.is_some() || self.export.is_some() || self.picture.is_some()
    }

    /// Takes one layer's weights of the chosen heads, (heads, T, T).
    pub(super) fn layer(
        &mut self,
        scene: &AttentionScene,
        layer: usize,
        weights: &Tensor,
    ) -> anyhow::Result<()> {
        let heads = scene.subject.heads;
        if let Some(maps) = &mut self.maps {
            *maps += &heatmaps(scene, layer, weights)?;
        }
        if let Some(export) = &mut self.export {
            export.layer(&scene.subject, layer, weights)?;
        }
        match &mut self.picture {
            Some(picture @ HeadsPicture::Grid(_)) if heads.len() == 1 && scene.subject.layers.len() == 1 => {
                *picture = HeadsPicture::Head(weights.get(0)?);
            }
            Some(HeadsPicture::Grid(grid)) => grid.add(layer, heads, weights)?,
            Some(HeadsPicture::Head(_)) | None => {}
        }
        Ok(())
    }

    /// The tensors of a safetensors file, if there is to be one.
    pub(super) fn tensors(
        &mut self,
        scene: &AttentionScene,
        look: &Look,
    ) -> anyhow::Result<Vec<(String, Tensor)>> {
        let Some(export) = self.export.take() else { return Ok(vec![]) };
        look.tensors(&scene.subject, &export.layers)
    }

    /// Writes the files under temporary names; returns the page if it is to be opened or printed.
    pub(super) fn finish(
        &mut self,
        scene: &AttentionScene,
        look: &mut Look,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let args = scene.args;
        if let (Some(path), Some(export)) = (&args.export, self.export.take()) {
            export.finish(&scene.subject, Some(look), path, outputs)?;
        }
        if let Some(picture) = self.picture.take() {
            let Subject { opened, shown: tokens, layers, heads, made_by, .. } = &scene.subject;
            // A grid has no labels of tokens, so it says which text they are of.
            let what = match picture {
                HeadsPicture::Head(_) => named(scene, layers[0], heads[0]),
                HeadsPicture::Grid(_) => {
                    format!("{}:\n{}", count(tokens.len(), "token"), fit(&text(scene), TITLE))
                }
            };
            let title = format!("{}: {what}", opened.title());
            let about = PictureMetadata { title, made_by, settings: Value::Null };
            args.picture.draw(outputs, &about, |frame| match &picture {
                HeadsPicture::Head(weights) => head_picture(frame, weights, tokens, tokens),
                HeadsPicture::Grid(grid) => grid.finish(frame),
            })?;
        }
        let page = look.page(&scene.subject, &TERMINAL)?;
        if let (Some(path), Some(page)) = (&args.html, &page) {
            outputs.stage_bytes(path, page)?;
        }
        Ok(page.filter(|_| args.open || args.fragment.is_some()))
    }
}

/// The result for stdout.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum StdoutView {
    Json(AttentionJson),
    Text(String),
}

impl StdoutView {
    pub(super) fn new(scene: &AttentionScene, views: Views, look: Look) -> anyhow::Result<Self> {
        if let Some(maps) = views.maps {
            let word = tokens_word(scene, &maps);
            return Ok(Self::Text(maps + &word));
        }
        if let Some(first) = look.first.as_ref().filter(|_| !scene.args.study.json) {
            return Ok(Self::Text(first_look(scene, &look, first)?));
        }
        Ok(Self::Json(look.report(&scene.subject)?))
    }

    pub(super) fn print(&self) -> anyhow::Result<()> {
        let mut out = BufWriter::new(output::stdout());
        match self {
            Self::Json(json) => json.write(&mut out)?,
            Self::Text(text) => out.write_all(text.as_bytes())?,
        }
        Ok(out.flush()?)
    }
}

/// The line that explains the token labels in `shown`; empty where they are ids.
fn tokens_word(scene: &AttentionScene, shown: &str) -> String {
    if scene.subject.opened.tokenizer().is_err() {
        return String::new();
    }
    let space = if shown.contains('·') { "· is a space; " } else { "" };
    let width = output::style(scene.args.color).width.max(MIN_WIDTH);
    wrap(&format!("{space}tokens are words and pieces of words"), width) + "\n"
}

/// A head's name, and how an intervention silences it, if one does.
fn named(scene: &AttentionScene, layer: usize, head: usize) -> String {
    let silenced = scene.subject.silenced().how(layer, head);
    format!("layer {layer}, head {head}{}", silenced.map(|how| format!(" ({how})")).unwrap_or_default())
}

/// `weights` (heads, T, T)
fn heatmaps(scene: &AttentionScene, layer: usize, weights: &Tensor) -> anyhow::Result<String> {
    let style = output::style(scene.args.color).with_max_cell(CELL);
    let tokens = scene.subject.shown;
    let mut out = String::new();
    for (i, head) in scene.subject.heads.iter().enumerate() {
        let map = heatmap(&weights.get(i)?, tokens, tokens, &style)?;
        writeln!(out, "{}: each row shows what a token attends to", named(scene, layer, *head))?;
        writeln!(out, "{map}")?;
    }
    Ok(out)
}

/// The most columns of the text in a picture's title.
const TITLE: usize = 120;

/// The text in one line.
fn text(scene: &AttentionScene) -> String {
    visible_text(&scene.text.map_or_else(|| scene.subject.shown.concat(), str::to_owned))
}

/// The most lines of the terminal that the text takes.
const LINES: usize = 3;

/// The text, what the model expects next, and what the first look has found.
fn first_look(scene: &AttentionScene, look: &Look, first: &FirstLook) -> anyhow::Result<String> {
    let style = output::style(scene.args.color);
    let rows = look.rows(&scene.subject)?;
    let mut out = String::new();
    writeln!(out, "{}\n", scene.subject.made_by.first_line())?;
    for line in lines(&fit(&text(scene), LINES * style.width), style.width) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}\n", expects(scene, look, style.width)?)?;
    if scene.subject.ids.len() > MOST_LINKED {
        writeln!(out, "no links between tokens: searched for up to {MOST_LINKED} tokens only\n")?;
    }
    let all = scene.args.all;
    let more = more(rows.len(), all).unwrap_or_default();
    write!(out, "{}", first.render_first(&rows, shown(rows.len(), all), &more, &style)?)?;
    let word = tokens_word(scene, &out);
    out += &word;
    writeln!(out, "\nnext, every head in the browser: --open\none head here: --layer L --head H")?;
    Ok(out)
}

/// The lines of a text in a terminal of this width.
fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for c in text.chars() {
        let line = lines.last().map_or("", String::as_str);
        if display_width(line) + display_width(c.encode_utf8(&mut [0; 4])) > width {
            lines.push(String::new());
        }
        lines.last_mut().into_iter().for_each(|line| line.push(c));
    }
    lines
}

/// The most probable next tokens, as many as one line holds.
fn expects(scene: &AttentionScene, look: &Look, width: usize) -> anyhow::Result<String> {
    let mut line = "expects next:".to_owned();
    for LikelyJson { id, probability, .. } in scene.subject.next_tokens(&look.output)? {
        let percent = 100.0 * probability;
        let percent = if percent < 1.0 { "<1".to_owned() } else { format!("{percent:.0}") };
        let more = format!(" {} {percent} % ", scene.subject.opened.label(id));
        if display_width(&line) + display_width(&more) > width {
            break;
        }
        line += &more;
    }
    Ok(line.trim_end().to_owned())
}
