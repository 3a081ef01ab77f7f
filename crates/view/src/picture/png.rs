//! A scene as PNG: pixels, and text chunks that record how it was made. `Software` is this program and `Comment` the
//! facts as JSON, if there are any.
//!
//! Edges are smooth: a pixel that a shape covers in part has a mix of both colors.

use super::letters::{Letters, visual};
use super::scene::{Cells, Mark, PlacedText, Scene, WHITE};
use crate::palette::Rgb;
use crate::provenance::{Provenance, SOFTWARE};
use ab_glyph::OutlineCurve;
use ab_glyph_rasterizer::{Point, Rasterizer, point};
use candle_core::{Error, Result};
use png::{BitDepth, ColorType, Encoder, PixelDimensions, Unit};
use serde_json::Value;
use std::f32::consts::TAU;

/// The number of lines that stand for a circle.
const CORNERS: usize = 32;

pub(super) fn write(scene: &Scene, provenance: &Provenance) -> Result<Vec<u8>> {
    let mut texts = vec![("Software", SOFTWARE.to_owned())];
    if provenance.facts != Value::Null {
        texts.push(("Comment", provenance.facts.to_string()));
    }
    encode(&draw(scene), texts, scene.dots_per_inch)
}

/// Pixels as the bytes of a PNG with these texts, and with its size in print if that is given.
pub(super) fn encode(
    pixels: &Pixels,
    texts: Vec<(&str, String)>,
    dots_per_inch: Option<f32>,
) -> Result<Vec<u8>> {
    let size = |n: usize| u32::try_from(n).map_err(Error::wrap);
    let mut file = vec![];
    let mut encoder = Encoder::new(&mut file, size(pixels.width)?, size(pixels.height)?);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_pixel_dims(dots_per_inch.map(|dots| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // some thousands
        let per_meter = (dots / 0.0254).round() as u32;
        PixelDimensions { xppu: per_meter, yppu: per_meter, unit: Unit::Meter }
    }));
    for (keyword, text) in texts {
        add_text(&mut encoder, keyword, text)?;
    }
    let mut writer = encoder.write_header().map_err(Error::wrap)?;
    writer.write_image_data(&pixels.data).map_err(Error::wrap)?;
    writer.finish().map_err(Error::wrap)?;
    Ok(file)
}

/// Adds text as a `tEXt` chunk, which more programs read, if it can hold all the characters; otherwise as `iTXt`.
fn add_text(encoder: &mut Encoder<&mut Vec<u8>>, keyword: &str, text: String) -> Result<()> {
    // PNG discourages the control characters of Latin-1, and JSON does not escape 0x7f to 0x9f.
    let latin = text.chars().all(|c| matches!(c, ' '..='~' | '\u{a0}'..='\u{ff}'));
    let keyword = keyword.to_owned();
    if latin { encoder.add_text_chunk(keyword, text) } else { encoder.add_itxt_chunk(keyword, text) }
        .map_err(Error::wrap)
}

/// RGB, (height, width)
pub(super) struct Pixels {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) data: Vec<u8>,
}

/// `scene` on white.
pub(super) fn draw(scene: &Scene) -> Pixels {
    let width = whole(scene.width);
    let height = whole(scene.height);
    let mut pixels = Pixels { width, height, data: vec![255; width * height * 3] };
    for mark in &scene.marks {
        match mark {
            Mark::Box { x, y, width, height, color } => pixels.fill(*x, *y, x + width, y + height, *color),
            Mark::Line { points, width, color } => pixels.shape(*color, &stroke(points, *width)),
            Mark::Disc { center, radius, color } => pixels.shape(*color, &[circle(*center, *radius)]),
            Mark::Ring { center, radius, width, color } => {
                let mut edge = circle(*center, *radius);
                edge.extend(edge.first().copied());
                let edge: Vec<(f32, f32)> = edge.iter().map(|p| (p.x, p.y)).collect();
                pixels.shape(*color, &stroke(&edge, *width));
            }
            Mark::Cells(cells) => pixels.cells(cells),
            Mark::Text(text) => pixels.shape(text.style.color, &outlines(text, &scene.letters)),
        }
    }
    pixels
}

impl Cells {
    /// The cells alone, each with as many pixels as it has in a PNG: many viewers smooth images that they enlarge.
    pub(super) fn pixels(&self) -> Pixels {
        let columns = self.columns.max(1);
        let rows = self.rows().max(1);
        let scale = |length: f32, count: usize| whole(length / count as f32).max(1);
        let wide = scale(self.width, columns);
        let tall = scale(self.height, rows);
        let width = columns * wide;
        let height = rows * tall;
        let mut data = Vec::with_capacity(width * height * 3);
        for row in self.colors.chunks_exact(columns) {
            let colors = row.iter().map(|color| color.unwrap_or(WHITE));
            let line: Vec<u8> = colors.flat_map(|(r, g, b)| [r, g, b].repeat(wide)).collect();
            data.extend(line.repeat(tall));
        }
        Pixels { width, height, data }
    }
}

/// The nearest pixel's edge.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a scene has at most 2^14 pixels a side
pub(super) fn whole(place: f32) -> usize {
    place.round().max(0.0) as usize
}

impl Pixels {
    fn set(&mut self, x: usize, y: usize, (r, g, b): Rgb) {
        if let Some(pixel) = self.data.get_mut((y * self.width + x) * 3..).and_then(|rest| rest.get_mut(..3))
            && x < self.width
        {
            pixel.copy_from_slice(&[r, g, b]);
        }
    }

    fn fill(&mut self, left: f32, top: f32, right: f32, bottom: f32, color: Rgb) {
        for y in whole(top)..whole(bottom).min(self.height) {
            for x in whole(left)..whole(right).min(self.width) {
                self.set(x, y, color);
            }
        }
    }

    fn cells(&mut self, cells: &Cells) {
        let left = whole(cells.x);
        let top = whole(cells.y);
        let width = whole(cells.width);
        let height = whole(cells.height);
        let rows = cells.rows();
        // What a pixel stands for: a cell, or more than one where there are more cells than pixels.
        let covered = |at: usize, pixels: usize, cells: usize| {
            let first = at * cells / pixels;
            first..((at + 1) * cells / pixels).max(first + 1)
        };
        for y in 0..height {
            for x in 0..width {
                let columns = covered(x, width, cells.columns);
                let colors = covered(y, height, rows)
                    .filter_map(|row| cells.colors.get(row * cells.columns..)?.get(columns.clone()))
                    .flatten();
                if let Some(color) = mean(colors) {
                    self.set(left + x, top + y, color);
                }
            }
        }
    }

    /// Fills closed outlines that turn the same way; where one turns the other way, it is a hole.
    fn shape(&mut self, color: Rgb, outlines: &[Vec<Point>]) {
        let points = || outlines.iter().flatten();
        let bound = |of: fn(&Point) -> f32, pick: fn(f32, f32) -> f32| points().map(of).reduce(pick);
        let (Some(left), Some(right), Some(top), Some(bottom)) = (
            bound(|p| p.x, f32::min),
            bound(|p| p.x, f32::max),
            bound(|p| p.y, f32::min),
            bound(|p| p.y, f32::max),
        ) else {
            return;
        };
        // The rasterizer takes no point outside of its own picture.
        let left = left.floor() - 1.0;
        let top = top.floor() - 1.0;
        let width = whole(right - left + 2.0);
        let height = whole(bottom - top + 2.0);
        let mut coverage = Rasterizer::new(width, height);
        let local = |p: &Point| point(p.x - left, p.y - top);
        for outline in outlines {
            for (from, to) in outline.iter().zip(outline.iter().cycle().skip(1)) {
                coverage.draw_line(local(from), local(to));
            }
        }
        coverage.for_each_pixel_2d(|x, y, alpha| {
            let x = x as f32 + left;
            let y = y as f32 + top;
            if alpha > 0.0 && x >= 0.0 && y >= 0.0 {
                self.mix(whole(x), whole(y), color, alpha.min(1.0));
            }
        });
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between two colors' parts
    fn mix(&mut self, x: usize, y: usize, (r, g, b): Rgb, alpha: f32) {
        if x < self.width
            && let Some(pixel) = self.data.get_mut((y * self.width + x) * 3..)
        {
            for (old, new) in pixel.iter_mut().zip([r, g, b]) {
                let (from, to) = (f32::from(*old), f32::from(new));
                *old = (from + (to - from) * alpha).round() as u8;
            }
        }
    }
}

/// The mean of colors, in which nothing is white; `None` if all are nothing.
fn mean<'a>(colors: impl Iterator<Item = &'a Option<Rgb>>) -> Option<Rgb> {
    let mut sums = [0usize; 3];
    let mut count = 0;
    let mut any = false;
    for color in colors {
        let (r, g, b) = color.unwrap_or(WHITE);
        sums.iter_mut().zip([r, g, b]).for_each(|(sum, part)| *sum += usize::from(part));
        (count, any) = (count + 1, any || color.is_some());
    }
    #[allow(clippy::cast_possible_truncation)] // the mean of bytes is one
    let [r, g, b] = sums.map(|sum| ((sum + count / 2) / count.max(1)) as u8);
    any.then_some((r, g, b))
}

/// A rectangle around each line, and a round join where two meet.
fn stroke(points: &[(f32, f32)], width: f32) -> Vec<Vec<Point>> {
    let half = width / 2.0;
    let mut shapes: Vec<Vec<Point>> = points
        .windows(2)
        .filter(|pair| pair[0] != pair[1])
        .map(|pair| {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let length = (x1 - x0).hypot(y1 - y0);
            let across = half * (y0 - y1) / length;
            let along = half * (x1 - x0) / length;
            vec![
                point(x0 + across, y0 + along),
                point(x0 - across, y0 - along),
                point(x1 - across, y1 - along),
                point(x1 + across, y1 + along),
            ]
        })
        .collect();
    if width > 1.0 && points.len() > 2 {
        shapes.extend(points[1..points.len() - 1].iter().map(|&center| circle(center, half)));
    }
    shapes
}

/// Turns the same way as the rectangles of [`stroke`].
fn circle((x, y): (f32, f32), radius: f32) -> Vec<Point> {
    let corner = |n: usize| {
        let (sin, cos) = (TAU * n as f32 / CORNERS as f32).sin_cos();
        point(x + radius * cos, y + radius * sin)
    };
    (0..CORNERS).map(corner).collect()
}

/// The outlines of a line of text as closed polygons. The baseline lies on the edge of a pixel, so that the feet of
/// letters are sharp.
fn outlines(text: &PlacedText, letters: &Letters) -> Vec<Vec<Point>> {
    let scale = text.style.size / letters.units_per_em();
    let size = text.style.size;
    let (x, y) = text.start();
    let (x, y) = if text.style.upward { (x.round(), y) } else { (x, y.round()) };
    let mut outlines: Vec<Vec<Point>> = vec![];
    let mut pen = 0.0;
    for c in visual(&text.shown) {
        let letter = letters.letter(c);
        let place = |p: Point| {
            let along = pen + p.x * scale;
            let above = p.y * scale;
            if text.style.upward { point(x - above, y - along) } else { point(x + along, y - above) }
        };
        let curves = letters.outline(letter.glyph).map(|outline| outline.curves).unwrap_or_default();
        let mut end = None;
        for curve in &curves {
            let (first, rest) = flatten(curve);
            if end != Some(first) {
                outlines.push(vec![]);
            }
            end = rest.last().copied();
            if let Some(outline) = outlines.last_mut() {
                outline.extend(rest.into_iter().map(place));
            }
        }
        pen += letter.advance * size;
    }
    outlines
}

/// Turns a curve into its first point and points along the rest of it.
fn flatten(curve: &OutlineCurve) -> (Point, Vec<Point>) {
    let mix = |a: Point, b: Point, t: f32| point(a.x + (b.x - a.x) * t, a.y + (b.y - a.y) * t);
    let steps = [0.25, 0.5, 0.75, 1.0];
    match *curve {
        OutlineCurve::Line(from, to) => (from, vec![to]),
        OutlineCurve::Quad(a, b, c) => {
            (a, steps.iter().map(|&t| mix(mix(a, b, t), mix(b, c, t), t)).collect())
        }
        OutlineCurve::Cubic(a, b, c, d) => {
            let at = |t: f32| {
                let ab = mix(a, b, t);
                let bc = mix(b, c, t);
                let cd = mix(c, d, t);
                mix(mix(ab, bc, t), mix(bc, cd, t), t)
            };
            (a, steps.iter().map(|&t| at(t)).collect())
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn provenance(caption: &str, facts: Value) -> Provenance {
        Provenance { caption: caption.to_owned(), facts }
    }

    /// A PNG, decoded.
    pub(crate) struct DecodedPng {
        pub(crate) width: usize,
        pub(crate) height: usize,
        /// The color at x, y.
        pub(crate) pixels: Box<dyn Fn(usize, usize) -> Rgb>,
    }

    pub(crate) fn decode(file: &[u8]) -> DecodedPng {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG");
        let mut data = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut data).expect("its pixels");
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        let width = info.width as usize;
        let pixels = move |x: usize, y: usize| {
            let pixel = &data[(y * width + x) * 3..];
            (pixel[0], pixel[1], pixel[2])
        };
        DecodedPng { width, height: info.height as usize, pixels: Box::new(pixels) }
    }

    /// `Software` and `Comment` of a picture, and whether the latter is in Latin-1.
    fn texts(file: &[u8]) -> (String, Option<(String, bool)>) {
        let reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG");
        let info = reader.info();
        let (latin, utf8) = (&info.uncompressed_latin1_text, &info.utf8_text);
        assert!(info.compressed_latin1_text.is_empty() && latin[0].keyword == "Software");
        let of_latin = latin[1..].iter().map(|chunk| (&chunk.keyword, chunk.text.clone(), true));
        let of_utf8 = utf8.iter().map(|chunk| (&chunk.keyword, chunk.get_text().expect("text"), false));
        let mut comments = of_latin.chain(of_utf8).map(|(keyword, text, is_latin)| {
            assert_eq!(keyword, "Comment");
            (text, is_latin)
        });
        let comment = comments.next();
        assert!(comments.next().is_none(), "one comment");
        (latin[0].text.clone(), comment)
    }

    /// Two by two pixels for four by four cells.
    #[test]
    fn a_pixel_of_many_cells_has_the_mean_of_their_colors() -> Result<()> {
        let mut scene = Scene::new(Letters::new()?, (2.0, 2.0), "")?;
        let black = Some((0, 0, 0));
        let gray = Some((100, 100, 100));
        let colors = [
            [black, gray, None, None],
            [gray, black, None, None],
            [black, black, gray, None],
            [black, black, gray, None],
        ];
        scene.cells(Cells { x: 0.0, y: 0.0, width: 2.0, height: 2.0, columns: 4, colors: colors.concat() });
        let found: Vec<u8> = draw(&scene).data.chunks(3).map(|pixel| pixel[0]).collect();
        assert_eq!(found, [50, 255, 0, 178]);
        Ok(())
    }

    #[test]
    fn a_picture_for_print_knows_its_size() -> Result<()> {
        let size = |dots: Option<f32>| -> Result<Option<u32>> {
            let mut scene = Scene::new(Letters::new()?, (3.0, 2.0), "")?;
            scene.dots_per_inch = dots;
            let file = write(&scene, &Provenance::default())?;
            let reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG");
            Ok(reader.info().pixel_dims.map(|size| size.xppu))
        };
        assert_eq!((size(None)?, size(Some(300.0))?), (None, Some(11811)), "300 an inch are 11811 a meter");
        Ok(())
    }

    #[test]
    fn a_picture_says_what_made_it() -> Result<()> {
        let of = |facts: Value| {
            write(&Scene::new(Letters::new()?, (3.0, 2.0), "a title")?, &provenance("a line", facts))
        };
        for (facts, is_latin) in [
            (json!({ "model": "gpt2", "ids": [1, 2], "prompt": "caf\u{e9}\n\0" }), true),
            (json!({ "prompt": "漢字 \u{202e}" }), false),
            (json!({ "prompt": "\u{85}\u{7f}" }), false),
            (json!({}), true),
        ] {
            let (software, comment) = texts(&of(facts.clone())?);
            assert_eq!(software, format!("gpt2 {}", env!("CARGO_PKG_VERSION")));
            let (text, found) = comment.expect("a comment");
            assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), facts);
            assert_eq!(found, is_latin, "{text}");
            assert_eq!(text, facts.to_string(), "compact");
        }
        assert_eq!(texts(&of(Value::Null)?).1, None);
        assert_eq!(of(json!({ "b": 1, "a": 2 }))?, of(json!({ "b": 1, "a": 2 }))?);
        Ok(())
    }
}
