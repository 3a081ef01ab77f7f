//! A scene as SVG: text as text, small heat maps as rectangles and large ones as images.
//!
//! No program needs the font: every text says how wide it is, and another font is stretched to that.

use super::letters::FAMILY;
use super::png;
use super::scene::{Anchor, Cells, Mark, Scene, Text, WHITE};
use super::signature::{SOFTWARE, SVG_START};
use crate::palette::Rgb;
use crate::provenance::Provenance;
use crate::text::has_shape;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use candle_core::Result;
use serde_json::json;
use std::fmt::{self, Display, Write};

/// The most cells of a picture that become rectangles.
const RECTANGLES: usize = 4096;

pub(super) fn write(scene: &Scene, provenance: &Provenance) -> Result<Vec<u8>> {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = head(&mut out, scene, provenance);
    let cells =
        scene.marks.iter().map(|mark| if let Mark::Cells(cells) = mark { cells.colors.len() } else { 0 });
    let few = cells.sum::<usize>() <= RECTANGLES;
    for mark in &scene.marks {
        let _ = match mark {
            Mark::Box { x, y, width, height, color } => {
                rectangle(&mut out, [*x, *y, *width, *height], *color)
            }
            Mark::Line { points, width, color } => line(&mut out, points, *width, *color),
            Mark::Disc { center: (x, y), radius, color } => {
                let (x, y, r, fill) = (Short(*x), Short(*y), Short(*radius), Hex(*color));
                writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" fill=\"{fill}\"/>")
            }
            Mark::Ring { center: (x, y), radius, width, color } => {
                let (x, y, r, w) = (Short(*x), Short(*y), Short(*radius), Short(*width));
                let stroke = Hex(*color);
                writeln!(
                    out,
                    "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{w}\"/>"
                )
            }
            Mark::Cells(cells) if few => rectangles(&mut out, cells),
            Mark::Cells(cells) => image(&mut out, cells, &encoded(cells)?),
            Mark::Text(text) => label(&mut out, text, scene.letters.has_all(&text.shown)),
        };
    }
    out.push_str("</svg>\n");
    Ok(out.into_bytes())
}

fn head(out: &mut String, scene: &Scene, provenance: &Provenance) -> fmt::Result {
    let (width, height) = (Short(scene.width), Short(scene.height));
    write!(out, "{SVG_START}width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" ")?;
    // No kerning and no ligatures, as in the other formats.
    write!(out, "font-family=\"'{FAMILY}','DejaVu Sans',sans-serif\" font-stretch=\"condensed\" ")?;
    write!(
        out,
        "style=\"font-kerning:none;font-variant-ligatures:none;white-space:pre\" xml:space=\"preserve\""
    )?;
    let made_by = json!({ "software": SOFTWARE, "facts": provenance.facts });
    // The software comes first, by which the file is recognized.
    let facts = json_for_xml(&made_by["facts"].to_string());
    let software = made_by["software"].to_string();
    writeln!(out, ">\n<metadata>{{\"software\":{software},\"facts\":{}}}</metadata>", Escaped(&facts))?;
    writeln!(out, "<title>{}</title>", Escaped(&scene.title))?;
    rectangle(out, [0.0, 0.0, scene.width, scene.height], WHITE)
}

fn rectangle(out: &mut String, place: [f32; 4], color: Rgb) -> fmt::Result {
    let ([x, y, width, height], fill) = (place.map(Short), Hex(color));
    writeln!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>")
}

fn line(out: &mut String, points: &[(f32, f32)], width: f32, color: Rgb) -> fmt::Result {
    out.push_str("<polyline points=\"");
    for (i, (x, y)) in points.iter().enumerate() {
        write!(out, "{}{},{}", if i == 0 { "" } else { " " }, Short(*x), Short(*y))?;
    }
    let (stroke, width) = (Hex(color), Short(width));
    writeln!(out, "\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"/>")
}

/// Neighbors of one color in a row share a rectangle.
fn rectangles(out: &mut String, cells: &Cells) -> fmt::Result {
    let (rows, columns) = (cells.rows(), cells.columns);
    let (width, height) = (cells.width / columns as f32, cells.height / rows as f32);
    // Crisp edges leave no seams between neighbors.
    out.push_str("<g shape-rendering=\"crispEdges\">\n");
    for (row, colors) in cells.colors.chunks_exact(columns).enumerate() {
        let mut from = 0;
        for run in colors.chunk_by(|a, b| a == b) {
            if let Some(color) = run[0] {
                let place = (cells.x + from as f32 * width, cells.y + row as f32 * height);
                rectangle(out, [place.0, place.1, run.len() as f32 * width, height], color)?;
            }
            from += run.len();
        }
    }
    writeln!(out, "</g>")
}

fn encoded(cells: &Cells) -> Result<String> {
    Ok(BASE64_STANDARD.encode(png::encode(&cells.pixels(), vec![])?))
}

fn image(out: &mut String, cells: &Cells, png: &str) -> fmt::Result {
    let [x, y, width, height] = [cells.x, cells.y, cells.width, cells.height].map(Short);
    write!(
        out,
        "<image x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" "
    )?;
    out.push_str("image-rendering=\"pixelated\" ");
    writeln!(out, "href=\"data:image/png;base64,{png}\"/>")
}

fn label(out: &mut String, text: &Text, has_all: bool) -> fmt::Result {
    if text.shown.is_empty() {
        return Ok(());
    }
    let ((x, y), style) = (text.place, text.style);
    let (x, y, size, fill, width) =
        (Short(x), Short(y), Short(style.size), Hex(style.color), Short(text.width));
    write!(out, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{fill}\"")?;
    match style.anchor {
        Anchor::Start => {}
        Anchor::Middle => out.push_str(" text-anchor=\"middle\""),
        Anchor::End => out.push_str(" text-anchor=\"end\""),
    }
    if style.upward {
        write!(out, " transform=\"rotate(-90 {x} {y})\"")?;
    }
    // Letters of another font would make those around them too wide.
    let adjust = if has_all { "spacingAndGlyphs" } else { "spacing" };
    writeln!(out, " textLength=\"{width}\" lengthAdjust=\"{adjust}\">{}</text>", Escaped(&text.shown))
}

/// JSON in which XML could hold each character, and in which none reorders or hides others: outside of its strings,
/// JSON is ASCII, and inside of them, `\u` may stand for any character.
fn json_for_xml(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() && c != '\x7f' || has_shape(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// Text as XML, in which a character that XML has no way to write is a replacement character.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\t' | '\n' | '\r' => write!(f, "&#{};", u32::from(c))?,
                '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => f.write_str("\u{fffd}")?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A length with at most two digits after the point.
struct Short(f32);

impl Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.2}", self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

struct Hex(Rgb);

impl Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (r, g, b) = self.0;
        write!(f, "#{r:02x}{g:02x}{b:02x}")
    }
}

#[cfg(test)]
mod tests;
