//! The font of a PDF: only the letters that the page uses, and what they mean.
//!
//! Each character has a code of its own, also those that the font lacks and that all show the same box, so that each
//! can be found and copied. Hebrew and Arabic are stored as they are shown, from left to right, and most programs copy
//! them in that order.

use super::stream::compressed;
use crate::picture::letters::{Letters, visual};
use candle_core::{Error, Result};
use pdf_writer::types::{CidFontType, FontFlags, FontStretch, SystemInfo, UnicodeCmap};
use pdf_writer::{Filter, Finish, Name, Pdf, Rect, Ref, Str};
use std::collections::HashMap;
use subsetter::GlyphRemapper;

/// Six letters that stand for this subset, as PDF asks for.
const NAME: Name<'static> = Name(b"GPTTWO+DejaVuSansCondensed");
const SYSTEM: SystemInfo<'static> =
    SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };
/// Units of an em in PDF.
const EM: f32 = 1000.0;

/// The characters that were used, by their code less 1: some programs take 0 for no character.
#[derive(Default)]
pub(super) struct Font {
    characters: Vec<char>,
    codes: HashMap<char, u16>,
}

impl Font {
    /// `text` as codes of two bytes, from left to right.
    pub(super) fn codes(&mut self, text: &str) -> Vec<u8> {
        visual(text).into_iter().flat_map(|c| self.code(c).to_be_bytes()).collect()
    }

    fn code(&mut self, c: char) -> u16 {
        if let Some(code) = self.codes.get(&c) {
            return *code;
        }
        // No picture has room for so many characters; what follows would show as the last of them.
        let Ok(code) = u16::try_from(self.characters.len() + 1) else { return u16::MAX };
        self.characters.push(c);
        self.codes.insert(c, code);
        code
    }

    /// Writes the font as `id`.
    pub(super) fn write(
        self,
        pdf: &mut Pdf,
        letters: &Letters,
        id: Ref,
        next: &mut impl FnMut() -> Ref,
    ) -> Result<()> {
        let (cid_font, descriptor, file, to_glyph, to_unicode) = (next(), next(), next(), next(), next());
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
            .base_font(NAME)
            .encoding_predefined(Name(b"Identity-H"))
            .descendant_font(cid_font)
            .to_unicode(to_unicode);
        let mut font = pdf.cid_font(cid_font);
        font.subtype(CidFontType::Type2).base_font(NAME).system_info(SYSTEM).font_descriptor(descriptor);
        font.default_width(0.0).cid_to_gid_map_stream(to_glyph).widths().consecutive(1, widths);
        font.finish();
        let (ascent, descent) = (letters.ascent() * EM, -letters.descent() * EM);
        pdf.font_descriptor(descriptor)
            .name(NAME)
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
