//! A scene as SVG: text as text, small heat maps as rectangles and large ones as images.
//!
//! No program needs the font: every text says how wide it is, and another font is stretched to that.

use super::letters::FAMILY;
use super::png;
use super::scene::{Anchor, Cells, Mark, PlacedText, Scene, WHITE};
use crate::palette::Rgb;
use crate::provenance::{Provenance, SOFTWARE};
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
                let x = Short(*x);
                let y = Short(*y);
                let r = Short(*radius);
                let fill = Hex(*color);
                writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" fill=\"{fill}\"/>")
            }
            Mark::Ring { center: (x, y), radius, width, color } => {
                let x = Short(*x);
                let y = Short(*y);
                let r = Short(*radius);
                let w = Short(*width);
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
    let width = Short(scene.width);
    let height = Short(scene.height);
    write!(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" ")?;
    write!(out, "viewBox=\"0 0 {width} {height}\" ")?;
    // No kerning and no ligatures, as in the other formats.
    write!(out, "font-family=\"'{FAMILY}','DejaVu Sans',sans-serif\" font-stretch=\"condensed\" ")?;
    write!(
        out,
        "style=\"font-kerning:none;font-variant-ligatures:none;white-space:pre\" xml:space=\"preserve\""
    )?;
    let software = json!(SOFTWARE);
    let facts = json_for_xml(&provenance.facts.to_string());
    writeln!(out, ">\n<metadata>{{\"software\":{software},\"facts\":{}}}</metadata>", Escaped(&facts))?;
    writeln!(out, "<title>{}</title>", Escaped(&scene.title))?;
    rectangle(out, [0.0, 0.0, scene.width, scene.height], WHITE)
}

fn rectangle(out: &mut String, place: [f32; 4], color: Rgb) -> fmt::Result {
    let [x, y, width, height] = place.map(Short);
    let fill = Hex(color);
    writeln!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>")
}

fn line(out: &mut String, points: &[(f32, f32)], width: f32, color: Rgb) -> fmt::Result {
    out.push_str("<polyline points=\"");
    for (i, (x, y)) in points.iter().enumerate() {
        write!(out, "{}{},{}", if i == 0 { "" } else { " " }, Short(*x), Short(*y))?;
    }
    let stroke = Hex(color);
    let width = Short(width);
    writeln!(out, "\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"/>")
}

/// Neighbors of one color in a row share a rectangle.
fn rectangles(out: &mut String, cells: &Cells) -> fmt::Result {
    let rows = cells.rows();
    let columns = cells.columns;
    let width = cells.width / columns as f32;
    let height = cells.height / rows as f32;
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
    Ok(BASE64_STANDARD.encode(png::encode(&cells.pixels(), vec![], None)?))
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

fn label(out: &mut String, text: &PlacedText, has_all: bool) -> fmt::Result {
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
mod tests {
    //! Reads the files back with a small reader of XML, which refuses what is not well formed.

    use super::*;
    use crate::picture::letters::Letters;
    use crate::picture::png::tests::{decode, provenance};
    use crate::picture::png::whole;
    use crate::picture::{Frame, HeadGrid, NumberMap, PictureFormat, head_picture, loss_curve};
    use crate::text::tests::NASTY;
    use candle_core::{Device, Tensor};
    use serde_json::Value;
    use std::collections::HashMap;

    /// An element without its children.
    struct SvgElement {
        name: String,
        attributes: HashMap<String, String>,
        /// Up to its first child.
        text: String,
    }

    impl SvgElement {
        fn number(&self, attribute: &str) -> f32 {
            self.attributes[attribute].parse().expect("a number")
        }
    }

    fn unescaped(text: &str) -> String {
        let mut out = String::new();
        let mut parts = text.split('&');
        out += parts.next().unwrap_or_default();
        for part in parts {
            let (name, rest) = part.split_once(';').expect("an entity");
            out.push(match name {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                _ => char::from_u32(name.strip_prefix('#').expect("a number").parse().unwrap()).unwrap(),
            });
            out += rest;
        }
        out
    }

    /// The elements in order. Every one is closed, and no character is one that XML forbids.
    fn parse(file: &[u8]) -> Vec<SvgElement> {
        let file = std::str::from_utf8(file).expect("UTF-8");
        let forbidden = |c: char| matches!(c, '\0'..='\x08' | '\x0b'..='\x1f' | '\u{fffe}' | '\u{ffff}');
        assert!(!file.contains(forbidden), "a character that XML forbids");
        let mut elements = vec![];
        let mut open = vec![];
        let mut rest = file.strip_prefix('<').expect("an element");
        loop {
            let (tag, after) = rest.split_once('>').expect("the end of a tag");
            let (text, next) = after.split_once('<').unwrap_or((after, ""));
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
            } else {
                let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
                let (name, mut list) = tag.split_once(' ').unwrap_or((tag, ""));
                let mut attributes = HashMap::new();
                while let Some((key, value)) = list.split_once("=\"") {
                    let (value, more) = value.split_once('"').expect("the end of an attribute");
                    assert!(!value.contains('<'));
                    assert!(
                        attributes.insert(key.trim().to_owned(), unescaped(value)).is_none(),
                        "twice {key}"
                    );
                    list = more;
                }
                assert!(list.trim().is_empty(), "{list}");
                elements.push(SvgElement { name: name.to_owned(), attributes, text: unescaped(text) });
                if !closed {
                    open.push(name.to_owned());
                }
            }
            if open.is_empty() {
                assert!(next.is_empty(), "one root");
                return elements;
            }
            rest = next;
        }
    }

    fn named<'a>(elements: &'a [SvgElement], name: &'a str) -> impl Iterator<Item = &'a SvgElement> {
        elements.iter().filter(move |element| element.name == name)
    }

    #[test]
    fn texts_are_those_of_the_scene_and_as_wide() -> Result<()> {
        let mut scene = Scene::new(Letters::new()?, (400.0, 600.0), "<title> & \"more\"")?;
        let raw = ["<script>alert(1)</script>", "a & b", "]]>", "\0\x1b\u{ffff}\t"];
        for (i, text) in NASTY.iter().chain(&raw).enumerate() {
            let style = super::super::scene::TextStyle::new(14.0, (1, 2, 3));
            let anchor = [Anchor::Start, Anchor::Middle, Anchor::End][i % 3];
            let style = if i % 2 == 0 { style.upward() } else { style };
            scene.text(*text, (200.0, i as f32 * 16.0), style.anchor(anchor));
        }
        let file = write(&scene, &Provenance::default())?;
        let elements = parse(&file);
        assert_eq!(named(&elements, "title").next().expect("a title").text, scene.title);
        assert_eq!(named(&elements, "script").count(), 0);
        let texts: Vec<&PlacedText> = scene
            .marks
            .iter()
            .filter_map(|mark| if let Mark::Text(text) = mark { Some(text) } else { None })
            .filter(|text| !text.shown.is_empty())
            .collect();
        assert_eq!(named(&elements, "text").count(), texts.len());
        for (found, text) in named(&elements, "text").zip(texts) {
            let shown: String = text
                .shown
                .chars()
                .map(|c| if matches!(c, '\0' | '\x07' | '\x1b' | '\u{ffff}') { '\u{fffd}' } else { c })
                .collect();
            assert_eq!(found.text, shown);
            assert!((found.number("textLength") - text.width).abs() < 0.01, "{shown}");
            assert_eq!((found.number("x"), found.number("y")), text.place);
            assert_eq!(found.attributes["font-size"], "14");
            let anchor = found.attributes.get("text-anchor").map_or("start", String::as_str);
            assert_eq!(anchor, format!("{:?}", text.style.anchor).to_lowercase());
            assert_eq!(found.attributes.contains_key("transform"), text.style.upward);
        }
        assert_eq!(file, write(&scene, &Provenance::default())?, "two runs write the same");
        Ok(())
    }

    #[test]
    fn metadata_are_the_facts_and_hide_nothing() -> Result<()> {
        for facts in [json!({ "prompt": NASTY.concat(), "html": "</metadata><script>&amp;" }), Value::Null] {
            let file = write(&Scene::new(Letters::new()?, (3.0, 2.0), "")?, &provenance("", facts.clone()))?;
            let elements = parse(&file);
            let metadata = &elements[1];
            assert_eq!(metadata.name, "metadata");
            assert!(metadata.text.chars().all(|c| c.is_ascii() || has_shape(c)), "{}", metadata.text);
            let found: Value = serde_json::from_str(&metadata.text).expect("JSON");
            assert_eq!(found, json!({ "software": SOFTWARE, "facts": facts }));
        }
        Ok(())
    }

    #[test]
    fn cells_are_rectangles_or_a_sharp_image_with_the_same_colors() -> Result<()> {
        for columns in [3usize, 80] {
            let color = |i: usize| (!i.is_multiple_of(7)).then(|| (u8::try_from(i % 5 * 50).unwrap(), 7, 9));
            let colors: Vec<Option<Rgb>> = (0..columns * columns).map(color).collect();
            let mut scene = Scene::new(Letters::new()?, (500.0, 500.0), "")?;
            let width = columns as f32 * 5.0;
            scene.cells(Cells { x: 10.0, y: 20.0, width, height: width, columns, colors: colors.clone() });
            let elements = parse(&write(&scene, &Provenance::default())?);
            let image = named(&elements, "image").next();
            assert_eq!(image.is_some(), columns * columns > RECTANGLES);
            let image = image.map(|image| {
                assert_eq!((image.number("x"), image.number("width")), (10.0, width));
                assert_eq!(image.attributes["image-rendering"], "pixelated");
                let data = image.attributes["href"].strip_prefix("data:image/png;base64,").expect("a PNG");
                decode(&BASE64_STANDARD.decode(data).expect("base64"))
            });
            let at = |x: f32, y: f32| {
                if let Some(image) = &image {
                    let scale = image.width as f32 / width;
                    return Some((image.pixels)(whole((x - 10.0) * scale), whole((y - 20.0) * scale)));
                }
                let inside = |rect: &&SvgElement| {
                    let [left, top] = ["x", "y"].map(|a| rect.number(a));
                    x > left && x < left + rect.number("width") && y > top && y < top + rect.number("height")
                };
                let fill = &named(&elements, "rect").filter(inside).last()?.attributes["fill"];
                let part = |i: usize| u8::from_str_radix(&fill[i..i + 2], 16).unwrap();
                Some((part(1), part(3), part(5)))
            };
            for (i, color) in colors.into_iter().enumerate() {
                let column = (i % columns) as f32;
                let row = (i / columns) as f32;
                assert_eq!(
                    at(12.5 + column * 5.0, 22.5 + row * 5.0),
                    color.or(Some(WHITE)),
                    "{i} of {columns}"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn every_view_is_well_formed() -> Result<()> {
        let tokens: Vec<String> = NASTY.iter().map(|token| (*token).to_owned()).collect();
        let n = tokens.len();
        let weights = Tensor::full(0.25f32, (n, n), &Device::Cpu)?;
        let made_by = provenance(&NASTY.concat(), json!(NASTY));
        let title = "<&>\0";
        let frame = Frame::new(PictureFormat::Svg, title, &made_by);
        let mut grid = HeadGrid::default();
        grid.add(0, &[0], &weights.unsqueeze(0)?)?;
        let map = NumberMap {
            name: title,
            rows: &tokens,
            columns: &tokens,
            row_axis: title,
            column_axis: title,
            unit: title,
            ..NumberMap::default()
        };
        for (file, said) in [
            (head_picture(&frame, &weights, &tokens, &tokens)?, "keys: what is attended to"),
            (grid.finish(&frame)?, "layer 0"),
            (map.draw(&frame, &weights)?, ".250"),
            (loss_curve(&frame, &[(1, 2.0), (2, 1.0)], &[(2, 3.0)])?, "optimizer steps"),
        ] {
            let elements = parse(&file);
            assert!(named(&elements, "text").any(|text| text.text == said), "{said}");
            assert!(named(&elements, "text").any(|text| text.text == "<&>␀"), "the title");
        }
        Ok(())
    }
}
