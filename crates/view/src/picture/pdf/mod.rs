//! A scene as a PDF of one page: shapes and text, with the letters that it uses.
//!
//! The file has no date and no random identifier, so two runs write the same bytes.

use super::letters::{Letters, visual};
use super::scene::{Cells, Mark, PlacedText, Scene};
use crate::palette::Rgb;
use crate::provenance::{Provenance, SOFTWARE};
use candle_core::{Error, Result};
use miniz_oxide::deflate::compress_to_vec_zlib;
use pdf_writer::types::{
    CidFontType, FontFlags, FontStretch, LineCapStyle, LineJoinStyle, SystemInfo, UnicodeCmap,
};
use pdf_writer::{Content, Filter, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use serde_json::Value;
use std::collections::HashMap;
use subsetter::GlyphRemapper;

/// Points in a pixel, at CSS' 96 pixels an inch.
const POINT: f32 = 0.75;
/// The font's name on the page.
const FONT: Name<'static> = Name(b"F");
/// The distance of a control point from the end of its curve, in radii, when four Bézier curves make a circle.
const BEZIER: f32 = 0.552_285;

/// Six letters that stand for this subset, as PDF asks for.
const FONT_NAME: Name<'static> = Name(b"GPTTWO+DejaVuSansCondensed");
const SYSTEM: SystemInfo<'static> =
    SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };
/// Units of an em in PDF.
const EM: f32 = 1000.0;

/// The strength of the compression, 0 to 10: a higher one hardly makes a picture smaller.
const LEVEL: u8 = 6;

pub(super) fn write(scene: &Scene, provenance: &Provenance) -> Result<Vec<u8>> {
    let mut next = 1;
    let mut id = || {
        next += 1;
        Ref::new(next - 1)
    };
    let mut pdf = Pdf::new();
    let mut info = pdf.document_info(id());
    info.producer(TextStr(SOFTWARE)).title(TextStr(&scene.title));
    if provenance.facts != Value::Null {
        info.subject(TextStr(&provenance.facts.to_string()));
    }
    info.finish();

    let catalog = id();
    let pages = id();
    let page_id = id();
    let content_id = id();
    pdf.catalog(catalog).pages(pages).viewer_preferences().display_doc_title(true);
    pdf.pages(pages).kids([page_id]).count(1);

    let mut drawing = Drawing { content: Content::new(), font: Font::default(), images: vec![] };
    drawing.scene(scene);
    let Drawing { content, font, images } = drawing;
    let images: Vec<(String, Ref, &Cells)> =
        images.into_iter().enumerate().map(|(i, cells)| (format!("I{i}"), id(), cells)).collect();
    let font_id = id();

    let mut page = pdf.page(page_id);
    page.media_box(Rect::new(0.0, 0.0, scene.width * POINT, scene.height * POINT));
    page.parent(pages).contents(content_id);
    let mut resources = page.resources();
    resources.fonts().pair(FONT, font_id);
    let mut named = resources.x_objects();
    for (name, id, _) in &images {
        named.pair(Name(name.as_bytes()), *id);
    }
    named.finish();
    resources.finish();
    page.finish();

    let content = compressed(&content.finish());
    pdf.stream(content_id, &content).filter(Filter::FlateDecode);
    for (_, id, cells) in images {
        image(&mut pdf, id, cells)?;
    }
    font.write(&mut pdf, &scene.letters, font_id, &mut id)?;
    Ok(pdf.finish())
}

/// A page's content, and what it refers to.
struct Drawing<'a> {
    content: Content,
    font: Font,
    images: Vec<&'a Cells>,
}

impl<'a> Drawing<'a> {
    fn scene(&mut self, scene: &'a Scene) {
        // Pixels from the top become points from the bottom.
        self.content.transform([POINT, 0.0, 0.0, -POINT, 0.0, scene.height * POINT]);
        self.content.set_line_join(LineJoinStyle::RoundJoin).set_line_cap(LineCapStyle::ButtCap);
        for mark in &scene.marks {
            match mark {
                Mark::Box { x, y, width, height, color } => {
                    self.fill(*color).rect(*x, *y, *width, *height).fill_nonzero();
                }
                Mark::Line { points, width, color } => {
                    let [first, rest @ ..] = &points[..] else { continue };
                    self.stroke(*color, *width).move_to(first.0, first.1);
                    for (x, y) in rest {
                        self.content.line_to(*x, *y);
                    }
                    self.content.stroke();
                }
                Mark::Disc { center, radius, color } => {
                    self.fill(*color);
                    self.circle(*center, *radius).fill_nonzero();
                }
                Mark::Ring { center, radius, width, color } => {
                    self.stroke(*color, *width);
                    self.circle(*center, *radius).stroke();
                }
                Mark::Cells(cells) => self.cells(cells),
                Mark::Text(text) => self.text(text),
            }
        }
    }

    fn fill(&mut self, color: Rgb) -> &mut Content {
        let [r, g, b] = parts(color);
        self.content.set_fill_rgb(r, g, b)
    }

    fn stroke(&mut self, color: Rgb, width: f32) -> &mut Content {
        let [r, g, b] = parts(color);
        self.content.set_stroke_rgb(r, g, b).set_line_width(width)
    }

    fn circle(&mut self, (x, y): (f32, f32), radius: f32) -> &mut Content {
        let r = radius;
        let c = radius * BEZIER;
        self.content
            .move_to(x + r, y)
            .cubic_to(x + r, y + c, x + c, y + r, x, y + r)
            .cubic_to(x - c, y + r, x - r, y + c, x - r, y)
            .cubic_to(x - r, y - c, x - c, y - r, x, y - r)
            .cubic_to(x + c, y - r, x + r, y - c, x + r, y)
            .close_path()
    }

    fn cells(&mut self, cells: &'a Cells) {
        let name = format!("I{}", self.images.len());
        self.images.push(cells);
        // An image is one unit wide and high, and its first row is on top.
        self.content
            .save_state()
            .transform([cells.width, 0.0, 0.0, -cells.height, cells.x, cells.y + cells.height])
            .x_object(Name(name.as_bytes()))
            .restore_state();
    }

    fn text(&mut self, text: &PlacedText) {
        if text.shown.is_empty() {
            return;
        }
        let ((x, y), codes) = (text.start(), self.font.codes(&text.shown));
        self.fill(text.style.color).begin_text().set_font(FONT, text.style.size);
        // Letters stand on their heads otherwise, since the page's y points down.
        let matrix =
            if text.style.upward { [0.0, -1.0, -1.0, 0.0, x, y] } else { [1.0, 0.0, 0.0, -1.0, x, y] };
        self.content.set_text_matrix(matrix).show(pdf_writer::Str(&codes)).end_text();
    }
}

fn parts((r, g, b): Rgb) -> [f32; 3] {
    // Three digits tell 256 shades apart.
    [r, g, b].map(|part| (f32::from(part) / 255.0 * 1000.0).round() / 1000.0)
}

fn image(pdf: &mut Pdf, id: Ref, cells: &Cells) -> Result<()> {
    let pixels = cells.pixels();
    let size = |n: usize| i32::try_from(n).map_err(Error::wrap);
    let data = compressed(&pixels.data);
    let mut image = pdf.image_xobject(id, &data);
    image.filter(Filter::FlateDecode);
    image.width(size(pixels.width)?).height(size(pixels.height)?).bits_per_component(8).interpolate(false);
    image.color_space().device_rgb();
    Ok(())
}

/// The font of the page: only the letters that it uses, and what they mean.
///
/// Each character has a code of its own, also those that the font lacks and that all show the same box, so that each
/// can be found and copied. Hebrew and Arabic are stored as they are shown, from left to right, and most programs copy
/// them in that order.
#[derive(Default)]
struct Font {
    /// The characters that were used, by their code less 1: some programs take 0 for no character.
    characters: Vec<char>,
    codes: HashMap<char, u16>,
}

impl Font {
    /// `text` as codes of two bytes, from left to right.
    fn codes(&mut self, text: &str) -> Vec<u8> {
        visual(text).into_iter().flat_map(|c| self.code(c).to_be_bytes()).collect()
    }

    fn code(&mut self, c: char) -> u16 {
        if let Some(code) = self.codes.get(&c) {
            return *code;
        }
        // No picture has room for 65,535 different characters; what follows would show as the last of them.
        let Ok(code) = u16::try_from(self.characters.len() + 1) else { return u16::MAX };
        self.characters.push(c);
        self.codes.insert(c, code);
        code
    }

    /// Writes the font as `id`.
    fn write(self, pdf: &mut Pdf, letters: &Letters, id: Ref, next: &mut impl FnMut() -> Ref) -> Result<()> {
        let cid_font = next();
        let descriptor = next();
        let file = next();
        let to_glyph = next();
        let to_unicode = next();
        let mut glyphs = GlyphRemapper::new();
        let mut map = vec![0; 2];
        let mut unicode = UnicodeCmap::new(Name(b"Custom"), SYSTEM);
        let mut widths = Vec::with_capacity(self.characters.len());
        for (code, c) in (1u16..).zip(&self.characters) {
            let letter = letters.letter(*c);
            map.extend(glyphs.remap(letter.glyph.0).to_be_bytes());
            widths.push((letter.advance * EM).round());
            unicode.pair(code, *c);
        }

        pdf.type0_font(id)
            .base_font(FONT_NAME)
            .encoding_predefined(Name(b"Identity-H"))
            .descendant_font(cid_font)
            .to_unicode(to_unicode);
        let mut font = pdf.cid_font(cid_font);
        font.subtype(CidFontType::Type2).base_font(FONT_NAME).system_info(SYSTEM).font_descriptor(descriptor);
        font.default_width(0.0).cid_to_gid_map_stream(to_glyph).widths().consecutive(1, widths);
        font.finish();
        let ascent = letters.ascent() * EM;
        let descent = -letters.descent() * EM;
        pdf.font_descriptor(descriptor)
            .name(FONT_NAME)
            .family(Str(b"DejaVu Sans"))
            .stretch(FontStretch::Condensed)
            .flags(FontFlags::NON_SYMBOLIC)
            .bbox(Rect::new(-EM, descent, 2.0 * EM, ascent))
            .italic_angle(0.0)
            .ascent(ascent)
            .descent(descent)
            .cap_height(729.0)
            .stem_v(80.0)
            .font_file2(file);
        let subset = subsetter::subset(Letters::file(), 0, &glyphs).map_err(Error::wrap)?;
        let length = i32::try_from(subset.len()).map_err(Error::wrap)?;
        pdf.stream(file, &compressed(&subset)).filter(Filter::FlateDecode).pair(Name(b"Length1"), length);
        pdf.stream(to_glyph, &compressed(&map)).filter(Filter::FlateDecode);
        pdf.cmap(to_unicode, &compressed(&unicode.finish())).filter(Filter::FlateDecode);
        Ok(())
    }
}

/// `data` as [`pdf_writer::Filter::FlateDecode`] expects it.
fn compressed(data: &[u8]) -> Vec<u8> {
    compress_to_vec_zlib(data, LEVEL)
}

#[cfg(test)]
mod tests;
