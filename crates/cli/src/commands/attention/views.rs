//! The outputs made from the weights, one layer at a time: heat maps and JSON on stdout, and files.

use super::page::Looked;
use super::scene::{CELL, Scene, summaries};
use crate::output;
use crate::outputs::Outputs;
use crate::progress::bar;
use crate::weights::{Export, LayerValues, predictions};
use candle_core::Tensor;
use gpt2_model::ModelOutput;
use gpt2_view::{
    AttentionJson, FirstLook, HeadGrid, HeadRow, LayerJson, PictureFormat, display_width, fit, head_picture,
    heatmap, visible_text, visible_token,
};
use indicatif::ProgressBar;
use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};
use std::path::Path;

/// The most tokens among which a first look searches for links: the search reads all weights of a layer, and their
/// number grows with the square of the tokens.
pub(super) const MOST_LINKED: usize = 2048;

/// Every output that needs the weights themselves.
pub(super) struct Views {
    /// Heat maps for stdout, printed after the files are written.
    pub(super) maps: Option<String>,
    pub(super) json: Option<Vec<LayerJson>>,
    /// What to show if the user named no head.
    pub(super) first: Option<FirstLook>,
    export: Option<Export>,
    picture: Option<Picture>,
    pub(super) page: Option<Looked>,
    bar: ProgressBar,
}

/// One head in full, or several as a grid.
enum Picture {
    Head(Vec<u8>),
    Grid(HeadGrid),
}

impl Views {
    pub(super) fn new(scene: &Scene) -> anyhow::Result<Self> {
        let args = scene.args;
        let bar = bar(Some(scene.subject.layers.len() as u64), "{bar:30} {pos}/{len} layers, {eta} left");
        let page = args.html.is_some() || args.open || args.fragment.is_some();
        Ok(Self {
            maps: (scene.is_chosen() && !args.study.json && args.fragment.is_none())
                .then(|| format!("{}\n\n", scene.subject.made_by.first_line())),
            json: (scene.is_chosen() && args.study.json).then(Vec::new),
            first: (!scene.is_chosen() && !args.study.json && args.fragment.is_none())
                .then(|| FirstLook::new(scene.subject.ids, scene.subject.tokens))
                .transpose()?,
            export: args
                .export
                .as_deref()
                .map(|path| Export::new(&scene.subject, path, args.provenance))
                .transpose()?,
            picture: args.picture.is_some().then(|| Picture::Grid(HeadGrid::default())),
            page: page.then(|| Looked::new(scene)).transpose()?,
            bar,
        })
    }

    /// Whether to look for links between tokens.
    fn looks(&self, scene: &Scene) -> bool {
        self.first.is_some() && scene.subject.ids.len() <= MOST_LINKED
    }

    pub(super) fn want_weights(&self, scene: &Scene) -> bool {
        let files = self.export.is_some() || self.picture.is_some() || self.page.is_some();
        self.maps.is_some() || self.json.is_some() || self.looks(scene) || files
    }

    /// Takes one layer's weights of all heads, (1, H, T, T).
    pub(super) fn layer(
        &mut self,
        scene: &Scene,
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
            Some(picture @ Picture::Grid(_)) if heads.len() == 1 && scene.subject.layers.len() == 1 => {
                let tokens = scene.subject.tokens;
                let title = format!("{}: layer {layer}, head {}", scene.subject.session.name, heads[0]);
                let made_by = scene.subject.made_by.for_files()?;
                let format =
                    PictureFormat::from_path(scene.args.picture.as_deref().unwrap_or(Path::new("")))?;
                *picture =
                    Picture::Head(head_picture(format, &title, &weights.get(0)?, tokens, tokens, &made_by)?);
            }
            Some(Picture::Grid(grid)) => grid.add(layer, heads, &weights)?,
            Some(Picture::Head(_)) | None => {}
        }
        if let Some(Looked { page, run, .. }) = &mut self.page {
            page.layer(&scene.subject, *run, layer, &weights, values)?;
        }
        self.bar.inc(1);
        Ok(())
    }

    /// Writes the files under temporary names; returns the page if it is to be opened or printed.
    pub(super) fn finish(
        &mut self,
        scene: &Scene,
        output: &ModelOutput,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let args = scene.args;
        self.bar.finish_and_clear();
        if let (Some(path), Some(export)) = (&args.export, self.export.take()) {
            export.finish(&scene.subject, &output.attention_outputs, path, outputs)?;
        }
        if let (Some(path), Some(picture)) = (&args.picture, self.picture.take()) {
            let bytes = match picture {
                Picture::Head(bytes) => bytes,
                Picture::Grid(grid) => {
                    let title =
                        format!("{}: {} tokens", scene.subject.session.name, scene.subject.tokens.len());
                    grid.finish(PictureFormat::from_path(path)?, &title, &scene.subject.made_by.for_files()?)?
                }
            };
            outputs.stage_bytes(path, &bytes)?;
        }
        let page = self.page.take().map(|page| page.finish(scene, output)).transpose()?;
        if let (Some(path), Some(page)) = (&args.html, &page) {
            outputs.stage_bytes(path, page)?;
        }
        Ok(page.filter(|_| args.open || args.fragment.is_some()))
    }
}

pub(super) fn print_json(scene: &Scene, layers: Vec<LayerJson>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(output::stdout());
    let provenance = scene.subject.made_by.for_files()?.facts;
    AttentionJson { provenance, tokens: scene.subject.tokens.to_vec(), layers }.write(&mut out)?;
    out.flush()?;
    Ok(())
}

/// `weights` (heads, T, T)
fn heatmaps(scene: &Scene, layer: usize, weights: &Tensor) -> anyhow::Result<String> {
    let (style, tokens) = (output::style(scene.args.color).with_max_cell(CELL), scene.subject.tokens);
    let mut out = String::new();
    for (i, head) in scene.subject.heads.iter().enumerate() {
        let map = heatmap(&weights.get(i)?, tokens, tokens, &style)?;
        writeln!(out, "layer {layer}, head {head}: each row shows what a token attends to")?;
        writeln!(out, "{map}")?;
    }
    Ok(out)
}

/// The most lines of the terminal that the text takes.
const LINES: usize = 3;

/// Prints the text, what the model expects next, and what the first look has found.
pub(super) fn print_first(scene: &Scene, first: &FirstLook, found: &ModelOutput) -> anyhow::Result<()> {
    let style = output::style(scene.args.color);
    let rows: Vec<HeadRow> = summaries(scene, &found.summaries)?
        .iter()
        .flat_map(|layer| layer.heads.iter().map(|head| (layer.layer, head)))
        .map(|(layer, head)| {
            let focus = head.summary.focus(first.looks(layer, head.head));
            HeadRow { layer, head: head.head, summary: head.summary, focus }
        })
        .collect();
    let mut out = output::stdout();
    writeln!(out, "{}\n", scene.subject.made_by.first_line())?;
    let text = visible_text(&scene.text.map_or_else(|| scene.subject.tokens.concat(), str::to_owned));
    for line in lines(&fit(&text, LINES * style.width), style.width) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}\n", expects(scene, found, style.width)?)?;
    if scene.subject.ids.len() > MOST_LINKED {
        writeln!(out, "no links between tokens: searched for up to {MOST_LINKED} tokens only\n")?;
    }
    write!(out, "{}", first.render(&rows, &style)?)?;
    writeln!(out, "\nnext, every head in the browser: --open\none head here: --layer L --head H")?;
    Ok(())
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
fn expects(scene: &Scene, found: &ModelOutput, width: usize) -> anyhow::Result<String> {
    let t = scene.subject.ids.len();
    let last = found.last_hidden_state.squeeze(0)?.narrow(0, t - 1, 1)?; // (1, C)
    let mut line = "expects next:".to_owned();
    for (token, probability) in
        predictions(&scene.subject, &last, None)?.into_iter().flat_map(|next| next.likely)
    {
        let percent = 100.0 * probability;
        let percent = if percent < 1.0 { "<1".to_owned() } else { format!("{percent:.0}") };
        let more = format!(" {} {percent} % ", visible_token(&token));
        if display_width(&line) + display_width(&more) > width {
            break;
        }
        line += &more;
    }
    Ok(line.trim_end().to_owned())
}
