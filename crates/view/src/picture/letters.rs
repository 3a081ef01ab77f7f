//! The letters of pictures, DejaVu Sans Condensed: Latin, Greek, Cyrillic and most symbols.

use ab_glyph::{Font, FontRef, GlyphId, Outline};
use candle_core::{Error, Result};
use unicode_width::UnicodeWidthChar;

/// The family's name for programs that have it installed.
pub(super) const FAMILY: &str = "DejaVu Sans Condensed";

/// Measures text and gives the outlines of its letters. There is no kerning, so that every format and every
/// viewer places letters alike.
#[derive(Debug)]
pub(super) struct Letters {
    font: FontRef<'static>,
    units_per_em: f32,
}

/// A character as it is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Letter {
    pub(super) glyph: GlyphId,
    /// The distance to the next letter, in ems.
    pub(super) advance: f32,
}

impl Letters {
    pub(super) fn new() -> Result<Self> {
        let font = FontRef::try_from_slice(Self::file()).map_err(Error::wrap)?;
        let units_per_em = font.units_per_em().unwrap_or(1000.0);
        Ok(Self { font, units_per_em })
    }

    /// The font as TrueType.
    pub(super) fn file() -> &'static [u8] {
        dejavu::sans_condensed::regular()
    }

    /// A character that the font lacks is a box, twice for one of two columns such as CJK, and nothing for a mark.
    pub(super) fn letter(&self, c: char) -> Letter {
        let glyph = self.font.glyph_id(c);
        let columns = c.width().unwrap_or(1);
        if glyph.0 != 0 {
            let advance = if columns == 0 { 0.0 } else { self.advance(glyph) };
            return Letter { glyph, advance };
        }
        let glyph = if columns == 0 { self.font.glyph_id(' ') } else { glyph };
        Letter { glyph, advance: self.advance(glyph) * columns as f32 }
    }

    fn advance(&self, glyph: GlyphId) -> f32 {
        self.font.h_advance_unscaled(glyph) / self.units_per_em
    }

    /// Whether the font has every character of `text`.
    pub(super) fn has_all(&self, text: &str) -> bool {
        text.chars().all(|c| self.font.glyph_id(c).0 != 0)
    }

    /// From the baseline up to the top of the highest letters, for text of size 1.
    pub(super) fn ascent(&self) -> f32 {
        self.font.ascent_unscaled() / self.units_per_em
    }

    /// From the baseline down to the end of the lowest letters, above 0.
    pub(super) fn descent(&self) -> f32 {
        -self.font.descent_unscaled() / self.units_per_em
    }

    /// The shape of a glyph, in units; [`Self::units_per_em`] of them are one em.
    pub(super) fn outline(&self, glyph: GlyphId) -> Option<Outline> {
        self.font.outline(glyph)
    }

    pub(super) fn units_per_em(&self) -> f32 {
        self.units_per_em
    }

    /// The width of `text`.
    pub(super) fn width(&self, text: &str, size: f32) -> f32 {
        text.chars().map(|c| self.letter(c).advance).sum::<f32>() * size
    }

    /// The number of bytes of `text` that fit into `room`, without halving a letter and its marks.
    fn fitting(&self, text: &str, size: f32, room: f32) -> usize {
        let (mut width, mut end) = (0.0, 0);
        for (at, c) in text.char_indices() {
            width += self.letter(c).advance * size;
            if width > room {
                break;
            }
            end = at + c.len_utf8();
        }
        end
    }

    /// `text` cut to at most `room`, with `…` at the end if something is missing; empty if not even that fits.
    pub(super) fn cut(&self, text: &str, size: f32, room: f32) -> String {
        if self.width(text, size) <= room {
            return text.to_owned();
        }
        let rest = room - self.width("…", size);
        if rest < 0.0 { String::new() } else { format!("{}…", &text[..self.fitting(text, size, rest)]) }
    }

    /// All of `text` in lines of at most `room`, broken at spaces, and inside of a word that is longer than a line.
    pub(super) fn wrap(&self, text: &str, size: f32, room: f32) -> Vec<String> {
        let mut lines = vec![];
        let mut rest = text.trim();
        while !rest.is_empty() {
            // A letter with its marks, at least.
            let mut letters = rest.char_indices().filter(|(_, c)| c.width() != Some(0)).map(|(at, _)| at);
            let first = letters.find(|at| *at > 0).unwrap_or(rest.len());
            let fits = self.fitting(rest, size, room).max(first);
            // The line may also end where the text does, or at a space right behind it.
            let ends = |at: usize| at == rest.len() || rest[at..].starts_with(' ');
            let end = if ends(fits) { fits } else { rest[..fits].rfind(' ').unwrap_or(fits) };
            lines.push(rest[..end].trim_end().to_owned());
            rest = rest[end..].trim_start();
        }
        lines
    }
}

/// The characters of `text` from left to right: Hebrew and Arabic run to the left, and marks stay on their letters. A
/// number inside of such words begins a new run, which is simpler than Unicode's rule, since labels are short.
pub(super) fn visual(text: &str) -> Vec<char> {
    let characters: Vec<char> = text.chars().collect();
    let mut out = Vec::with_capacity(characters.len());
    let mut rest = &characters[..];
    while let Some(first) = rest.first() {
        let mut run = 0;
        if runs_left(*first) {
            for (i, c) in rest.iter().enumerate() {
                if runs_left(*c) {
                    run = i + 1;
                } else if c.width() == Some(0) && run == i {
                    run = i + 1; // a mark on a letter of the run
                } else if c.is_alphanumeric() {
                    break;
                }
            }
        }
        let (turned, after) = rest.split_at(run.max(1));
        let with_its_marks = |_: &char, next: &char| next.width() == Some(0);
        out.extend(turned.chunk_by(with_its_marks).rev().flatten());
        rest = after;
    }
    out
}

/// Whether a character is of a script that is written from right to left.
fn runs_left(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'
        | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
        && c.width() != Some(0)
        && !c.is_numeric()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::NASTY;
    use crate::visible_token;

    #[test]
    fn what_is_cut_says_so_and_keeps_all_that_fits() -> Result<()> {
        let letters = Letters::new()?;
        let plain = "attention of layer 3, head 7".to_owned();
        for text in NASTY.iter().map(|token| visible_token(token)).chain([plain]) {
            let full = letters.width(&text, 14.0);
            assert_eq!(letters.cut(&text, 14.0, full), text);
            for room in (0..60).map(|n| full * n as f32 / 60.0) {
                let part = letters.cut(&text, 14.0, room);
                assert!(letters.width(&part, 14.0) <= room, "{part} in {room}");
                let Some(kept) = part.strip_suffix('…') else {
                    assert!(part.is_empty() && letters.width("…", 14.0) > room || part == text);
                    continue;
                };
                let next = text[kept.len()..].chars().next().expect("something is missing");
                assert!(text.starts_with(kept) && next.width() != Some(0), "{part} halves a letter");
                assert!(letters.width(&format!("{kept}{next}…"), 14.0) > room, "{next} has room in {room}");
            }
        }
        Ok(())
    }

    #[test]
    fn lines_have_room_and_hold_all_of_the_text() -> Result<()> {
        let letters = Letters::new()?;
        let squeezed = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
        let plain =
            ["attention of layer 3, head 7", "  two  spaces  ", "", "a_name_without_a_space_and one with"];
        for text in NASTY.map(visible_token).into_iter().chain(plain.map(String::from)) {
            for room in [1.0, 30.0, 77.0, 200.0] {
                let lines = letters.wrap(&text, 14.0, room);
                assert_eq!(squeezed(&lines.concat()), squeezed(&text), "{room}");
                for line in &lines {
                    let one = line.chars().filter(|c| c.width() != Some(0)).count() <= 1;
                    assert!(one || letters.width(line, 14.0) <= room, "{line} in {room}");
                    assert!(!line.is_empty() && line.trim() == line, "{line:?}");
                    assert!(
                        line.chars().next().is_some_and(|c| c.width() != Some(0)),
                        "{line:?}: a mark alone"
                    );
                }
            }
        }
        let lines = letters.wrap("patching, fair to me", 14.0, letters.width("patching, fair", 14.0));
        assert_eq!(lines, ["patching, fair", "to me"], "a space at the end needs no room");
        Ok(())
    }

    #[test]
    fn hebrew_and_arabic_run_to_the_left() {
        let shown = |text: &str| visual(text).into_iter().collect::<String>();
        for (text, expected) in [
            ("", ""),
            ("3 Romeo!", "3 Romeo!"),
            ("9 אבג", "9 גבא"),
            ("אב גד x", "דג בא x"),
            ("אב·", "בא·"),
            ("x e\u{301}a", "x e\u{301}a"),
            ("א\u{5b8}ב", "בא\u{5b8}"),
            ("אב 12", "בא 12"),
        ] {
            assert_eq!(shown(text), expected);
        }
        for text in NASTY.map(visible_token) {
            let (mut all, mut moved): (Vec<char>, Vec<char>) = (text.chars().collect(), visual(&text));
            all.sort_unstable();
            moved.sort_unstable();
            assert_eq!(all, moved, "nothing is lost");
        }
    }

    #[test]
    fn letters_are_as_wide_as_in_the_font() -> Result<()> {
        let letters = Letters::new()?;
        // From DejaVu's own table: 2048 units an em.
        assert!((letters.width("m", 2048.0) - 1795.0).abs() < 0.01);
        assert!(letters.letter('\u{301}').advance.abs() < 1e-6, "a mark takes no room");
        let missing = letters.letter('\u{10ffff}');
        assert_eq!(missing.glyph.0, 0);
        assert_eq!(letters.letter('漢'), Letter { advance: 2.0 * missing.advance, ..missing });
        Ok(())
    }
}
