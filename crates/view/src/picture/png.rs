//! A scene as PNG. Text chunks record how it was made: `Software` is this program and `Comment` the facts as JSON, if
//! there are any.

use super::raster::{self, Pixels};
use super::scene::Scene;
use super::signature::SOFTWARE;
use crate::provenance::Provenance;
use candle_core::{Error, Result};
use png::{BitDepth, ColorType, Encoder};
use serde_json::Value;

pub(super) fn write(scene: &Scene, provenance: &Provenance) -> Result<Vec<u8>> {
    let mut texts = vec![("Software", SOFTWARE.to_owned())];
    if provenance.facts != Value::Null {
        texts.push(("Comment", provenance.facts.to_string()));
    }
    encode(&raster::draw(scene), texts)
}

/// Pixels as the bytes of a PNG with these texts.
pub(super) fn encode(pixels: &Pixels, texts: Vec<(&str, String)>) -> Result<Vec<u8>> {
    let size = |n: usize| u32::try_from(n).map_err(Error::wrap);
    let mut file = vec![];
    let mut encoder = Encoder::new(&mut file, size(pixels.width)?, size(pixels.height)?);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::palette::Rgb;
    use crate::picture::letters::Letters;
    use serde_json::json;

    pub(crate) fn provenance(caption: &str, facts: Value) -> Provenance {
        Provenance { caption: caption.to_owned(), facts }
    }

    /// A PNG, decoded.
    pub(crate) struct Picture {
        pub(crate) width: usize,
        pub(crate) height: usize,
        /// The color at x, y.
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
