//! The outputs made from the weights, one layer at a time: heat maps and JSON on stdout, and files.

use super::json::{MOST_LINKED, last_hidden, run_json};
use super::page::Looked;
use super::scene::{AttentionScene, CELL, summaries};
use crate::output;
use crate::output::rows::{more, shown};
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::picture::PictureMetadata;
use crate::results::subject::{Subject, next_tokens};
use crate::results::weights_file::Export;
use crate::results::weights_page::LayerValues;
use candle_core::Tensor;
use gpt2_engine::Observer;
use gpt2_engine::words::count;
use gpt2_model::ModelOutput;
use gpt2_model::hooks::Recorder;
use gpt2_view::{
    AttentionJson, FirstLook, HeadGrid, HeadRow, LayerJson, LikelyJson, MIN_WIDTH, RunJson, display_width,
    fit, head_picture, heatmap, visible_text, wrap,
};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};

/// Every output that needs the weights themselves.
pub(super) struct Views {
    /// Heat maps for stdout, printed after the files are written.
    pub(super) maps: Option<String>,
    pub(super) json: Option<Vec<LayerJson>>,
    /// The summary that the terminal shows if the user names no head; JSON has it for every head.
    pub(super) first: Option<FirstLook>,
    /// The plain run of a comparison, for JSON.
    plain: Option<RunJson>,
    export: Option<Export>,
    picture: Option<HeadsPicture>,
    pub(super) page: Option<Looked>,
    /// The layers that have come.
    layers: u64,
}

/// The weights (T, T) of one head, to be drawn in full, or several heads as a grid.
enum HeadsPicture {
    Head(Tensor),
    Grid(HeadGrid),
}

impl Views {
    pub(super) fn new(scene: &AttentionScene) -> anyhow::Result<Self> {
        let args = scene.args;
        let page = args.html.is_some() || args.open || args.fragment.is_some();
        let mut page = page.then(|| Looked::new(scene)).transpose()?;
        Ok(Self {
            maps: (scene.is_chosen() && !args.study.json && args.fragment.is_none())
                .then(|| format!("{}\n\n", scene.subject.made_by.first_line())),
            json: (scene.is_chosen() && args.study.json).then(Vec::new),
            first: ((args.study.json || !scene.is_chosen()) && args.fragment.is_none())
                .then(|| FirstLook::new(scene.subject.ids, scene.subject.shown, scene.subject.silenced()))
                .transpose()?,
            export: args
                .export
                .as_deref()
                .map(|path| Export::new(&scene.subject, path, args.provenance))
                .transpose()?,
            picture: args.picture.is_wanted().then(|| HeadsPicture::Grid(HeadGrid::default())),
            plain: page.as_mut().and_then(|page| page.json.take()),
            page,
            layers: 0,
        })
    }

    /// Whether to look for links between tokens.
    fn looks(&self, scene: &AttentionScene) -> bool {
        self.first.is_some() && scene.subject.ids.len() <= MOST_LINKED
    }

    pub(super) fn want_weights(&self, scene: &AttentionScene) -> bool {
        let files = self.export.is_some() || self.picture.is_some() || self.page.is_some();
        self.maps.is_some() || self.json.is_some() || self.looks(scene) || files
    }

    /// Takes one layer's weights of all heads, (1, H, T, T).
    pub(super) fn layer(
        &mut self,
        scene: &AttentionScene,
        layer: usize,
        weights: &Tensor,
        values: &LayerValues,
    ) -> anyhow::Result<()> {
        let heads = scene.subject.heads;
        let weights = scene.subject.of_chosen(weights)?; // (heads, T, T)
        if let Some(maps) = &mut self.maps {
            *maps += &heatmaps(scene, layer, &weights)?;
        }
        if let Some(json) = &mut self.json {
            json.push(LayerJson::new(layer, heads, &weights, true)?);
        }
        let looks = self.looks(scene);
        if let Some(first) = self.first.as_mut().filter(|_| looks) {
            first.layer(layer, heads, &weights)?;
        }
        if let Some(export) = &mut self.export {
            export.layer(&scene.subject, layer, &weights)?;
        }
        match &mut self.picture {
            Some(picture @ HeadsPicture::Grid(_)) if heads.len() == 1 && scene.subject.layers.len() == 1 => {
                *picture = HeadsPicture::Head(weights.get(0)?);
            }
            Some(HeadsPicture::Grid(grid)) => grid.add(layer, heads, &weights)?,
            Some(HeadsPicture::Head(_)) | None => {}
        }
        if let Some(Looked { page, run, .. }) = &mut self.page {
            page.layer(&scene.subject, *run, layer, &weights, values)?;
        }
        self.layers += 1;
        // Many texts have a bar of their own.
        if scene.args.prompt.texts.is_none() {
            TERMINAL.step("layers", self.layers, Some(scene.subject.layers.len() as u64))?;
        }
        Ok(())
    }

    /// Takes the values at the chosen points.
    pub(super) fn points(&mut self, scene: &AttentionScene, recorder: &Recorder) -> anyhow::Result<()> {
        let Some(export) = &mut self.export else { return Ok(()) };
        scene.points.add_to(&mut export.points, recorder, |x| scene.subject.check_finite([x]))
    }

    /// The tensors of a safetensors file, if there is to be one.
    pub(super) fn tensors(
        &mut self,
        scene: &AttentionScene,
        output: &ModelOutput,
    ) -> anyhow::Result<Vec<(String, Tensor)>> {
        let Some(export) = self.export.take() else { return Ok(vec![]) };
        export.tensors(&scene.subject, &output.attention_outputs)
    }

    /// Writes the files under temporary names; returns the page if it is to be opened or printed.
    pub(super) fn finish(
        &mut self,
        scene: &AttentionScene,
        output: &ModelOutput,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let args = scene.args;
        if let (Some(path), Some(export)) = (&args.export, self.export.take()) {
            export.finish(&scene.subject, &output.attention_outputs, path, outputs)?;
        }
        if let Some(picture) = self.picture.take() {
            let Subject { opened, shown: tokens, layers, heads, made_by, .. } = scene.subject;
            // A grid has no labels of tokens, so it says which text they are of.
            let what = match picture {
                HeadsPicture::Head(_) => named(scene, layers[0], heads[0]),
                HeadsPicture::Grid(_) => {
                    format!("{}:\n{}", count(tokens.len(), "token"), fit(&text(scene), TITLE))
                }
            };
            let about = PictureMetadata {
                title: format!("{}: {what}", opened.title()),
                made_by,
                settings: Value::Null,
            };
            args.picture.draw(outputs, &about, |frame| match &picture {
                HeadsPicture::Head(weights) => head_picture(frame, weights, tokens, tokens),
                HeadsPicture::Grid(grid) => grid.finish(frame),
            })?;
        }
        let page = self.page.take().map(|page| page.finish(scene, output)).transpose()?;
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
    pub(super) fn new(scene: &AttentionScene, views: Views, output: &ModelOutput) -> anyhow::Result<Self> {
        let first = match (views.maps, views.first) {
            (Some(maps), _) => {
                let word = tokens_word(scene, &maps);
                return Ok(Self::Text(maps + &word));
            }
            (None, Some(first)) if !scene.args.study.json => {
                return Ok(Self::Text(first_look(scene, &first, output)?));
            }
            (None, first) => first,
        };
        let layers = views.json.map_or_else(|| summaries(scene, &output.summaries), Ok)?;
        let run = run_json(scene, first.as_ref(), layers, output, &scene.subject.silenced())?;
        let provenance = serde_json::to_value(scene.subject.made_by)?;
        let tokens = scene.subject.tokens.to_vec();
        Ok(Self::Json(AttentionJson { provenance, tokens, run, plain: views.plain }))
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
fn first_look(scene: &AttentionScene, first: &FirstLook, found: &ModelOutput) -> anyhow::Result<String> {
    let style = output::style(scene.args.color);
    let silenced = scene.subject.silenced();
    let rows: Vec<HeadRow> = summaries(scene, &found.summaries)?
        .iter()
        .flat_map(|layer| layer.heads.iter().map(|head| (layer.layer, head)))
        .map(|(layer, head)| {
            let focus = head.summary.focus(first.looks(layer, head.head));
            let silenced = silenced.how(layer, head.head);
            HeadRow { layer, head: head.head, summary: head.summary, focus, silenced }
        })
        .collect();
    let mut out = String::new();
    writeln!(out, "{}\n", scene.subject.made_by.first_line())?;
    for line in lines(&fit(&text(scene), LINES * style.width), style.width) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}\n", expects(scene, found, style.width)?)?;
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
fn expects(scene: &AttentionScene, found: &ModelOutput, width: usize) -> anyhow::Result<String> {
    let mut line = "expects next:".to_owned();
    for LikelyJson { id, probability, .. } in next_tokens(&scene.subject, &last_hidden(scene, found)?)? {
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
