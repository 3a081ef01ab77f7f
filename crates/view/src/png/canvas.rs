//! An empty picture to draw on, and its conversion to a file.

use crate::provenance::Provenance;
use candle_core::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::{BitMapBackend, BitMapElement, DrawingArea, FontStyle, IntoDrawingArea, RGBColor};
use plotters::style::register_font;
use serde_json::Value;
use std::error::Error as StdError;
use std::sync::Once;

/// The font family that [`draw`] registers, under a name that no other user of plotters has: DejaVu Sans Condensed,
/// with Latin, Greek, Cyrillic and most symbols.
pub(super) const FONT: &str = "gpt2-view";

/// The program name in a picture's metadata.
const SOFTWARE: &str = concat!("gpt2 ", env!("CARGO_PKG_VERSION"));

pub(super) const INK: RGBColor = RGBColor(31, 35, 40);
pub(super) const FAINT: RGBColor = RGBColor(208, 215, 222);
pub(super) const GREY: RGBColor = RGBColor(101, 109, 118);

pub(super) type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
pub(super) type Outcome = std::result::Result<(), Box<dyn StdError>>;

/// Refuses a picture that no viewer can open; returns the width and the height.
pub(super) fn checked_size(width: i32, height: i32) -> Result<(u32, u32)> {
    const LARGEST: i32 = 1 << 14;
    match (u32::try_from(width), u32::try_from(height)) {
        (Ok(w), Ok(h)) if width <= LARGEST && height <= LARGEST => Ok((w, h)),
        _ => candle_core::bail!(
            "a picture of {width} x {height} pixels is too large: choose fewer tokens or heads"
        ),
    }
}

/// Draws RGB `pixels` (height, width) at `place`, each as a square of `cell`.
pub(super) fn bitmap(
    area: &Area,
    place: (i32, i32),
    (width, height): (usize, usize),
    cell: usize,
    pixels: &[u8],
) -> Outcome {
    let mut large = Vec::with_capacity(pixels.len() * cell * cell);
    for row in pixels.chunks_exact(width * 3) {
        let line: Vec<u8> = row.chunks_exact(3).flat_map(|pixel| pixel.repeat(cell)).collect();
        large.extend(line.repeat(cell));
    }
    let size = (u32::try_from(width * cell)?, u32::try_from(height * cell)?);
    let element = BitMapElement::with_owned_buffer(place, size, large).ok_or("a picture of another size")?;
    Ok(area.draw(&element)?)
}

/// A white picture of `width` by `height` pixels on which `paint` draws, as the bytes of a PNG. Text chunks record how
/// it was made: `Software` is this program and `Comment` the facts as JSON, if there are any.
pub(super) fn draw(
    (width, height): (u32, u32),
    provenance: &Provenance,
    paint: impl FnOnce(&Area) -> Outcome,
) -> Result<Vec<u8>> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // plotters keeps the font for the whole process; if it fails to register, every drawing reports an error.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans_condensed::regular());
    });
    let mut pixels = vec![255; width as usize * height as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        paint(&area).and_then(|()| Ok(area.present()?)).map_err(|e| Error::msg(format!("drawing: {e}")))?;
    }
    let mut file = vec![];
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    add_text(&mut encoder, "Software", SOFTWARE.to_owned())?;
    if provenance.facts != Value::Null {
        add_text(&mut encoder, "Comment", provenance.facts.to_string())?;
    }
    let mut writer = encoder.write_header().map_err(Error::wrap)?;
    writer.write_image_data(&pixels).map_err(Error::wrap)?;
    writer.finish().map_err(Error::wrap)?;
    Ok(file)
}

/// Adds text as a `tEXt` chunk, which more programs read, if it can hold all the characters; otherwise as `iTXt`.
fn add_text(encoder: &mut png::Encoder<&mut Vec<u8>>, keyword: &str, text: String) -> Result<()> {
    // PNG discourages the control characters of Latin-1, and JSON does not escape 0x7f to 0x9f.
    let latin = text.chars().all(|c| matches!(c, ' '..='~' | '\u{a0}'..='\u{ff}'));
    let keyword = keyword.to_owned();
    if latin { encoder.add_text_chunk(keyword, text) } else { encoder.add_itxt_chunk(keyword, text) }
        .map_err(Error::wrap)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::palette::Rgb;
    use serde_json::json;

    pub(crate) fn provenance(caption: &str, facts: Value) -> Provenance {
        Provenance { caption: caption.to_owned(), facts }
    }

    /// A PNG, decoded.
    pub(crate) struct Picture {
        pub(crate) width: usize,
        pub(crate) height: usize,
        /// The colour at x, y.
        pub(crate) pixels: Box<dyn Fn(usize, usize) -> Rgb>,
    }

    pub(crate) fn decode(file: &[u8]) -> Picture {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG");
        let mut data = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut data).expect("its pixels");
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        let width = info.width as usize;
        let pixels = move |x: usize, y: usize| {
            let pixel = &data[(y * width + x) * 3..];
            (pixel[0], pixel[1], pixel[2])
        };
        Picture { width, height: info.height as usize, pixels: Box::new(pixels) }
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

    #[test]
    fn a_picture_says_what_made_it() -> Result<()> {
        let of = |facts: Value| draw((3, 2), &provenance("a line", facts), |_| Ok(()));
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
