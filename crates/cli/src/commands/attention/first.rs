//! `gpt2 attention` without a choice of heads: what to see first.

use super::scene::Scene;
use super::summaries::summaries;
use super::views::MOST_LINKED;
use crate::output;
use crate::weights::predictions;
use gpt2_model::ModelOutput;
use gpt2_view::{FirstLook, HeadRow, display_width, fit, visible_text, visible_token};
use std::io::Write;

/// The most lines of the terminal that the text takes.
const LINES: usize = 3;

/// Prints the text, what the model expects next, and what the first look has found.
pub(super) fn print(scene: &Scene, first: &FirstLook, found: &ModelOutput) -> anyhow::Result<()> {
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
    writeln!(out, "{}\n", scene.made_by.first_line())?;
    let text = visible_text(&scene.prompt.text.clone().unwrap_or_else(|| scene.prompt.tokens.concat()));
    for line in lines(&fit(&text, LINES * style.width), style.width) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}\n", expects(scene, found, style.width)?)?;
    if scene.prompt.ids.len() > MOST_LINKED {
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
    let t = scene.prompt.ids.len();
    let last = found.last_hidden_state.squeeze(0)?.narrow(0, t - 1, 1)?; // (1, C)
    let mut line = "expects next:".to_owned();
    for (token, probability) in
        predictions(&scene.subject(), &last, None)?.into_iter().flat_map(|next| next.likely)
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
