//! The line below a picture's title that says how it was made.

use super::canvas::{Area, FONT, GREY, Outcome};
use crate::provenance::Provenance;
use plotters::prelude::{FontDesc, IntoFont, Text};
use plotters::style::TextStyle;
use std::error::Error as StdError;

/// The height of the line in pixels, if there is one.
pub(super) const HEIGHT: usize = 24;
/// The margin between the end of the line and the picture's edge.
const MARGIN: i32 = 16;

/// A line of grey text, or none.
pub(super) struct Caption(String);

impl Caption {
    pub(super) fn of(provenance: &Provenance) -> Self {
        Self(provenance.shown())
    }

    pub(super) fn height(&self) -> usize {
        if self.0.is_empty() { 0 } else { HEIGHT }
    }

    /// Draws it with its upper left corner at `place`, cut to the width of `area`.
    pub(super) fn draw(&self, area: &Area, place: (i32, i32)) -> Outcome {
        if self.0.is_empty() {
            return Ok(());
        }
        let width = i32::try_from(area.dim_in_pixel().0)? - place.0 - MARGIN;
        let text = cut(&self.0, &font(), u32::try_from(width).unwrap_or(0))?;
        Ok(area.draw(&Text::new(text, place, TextStyle::from(font()).color(&GREY)))?)
    }

    /// Draws it centred at the top of `area`; returns the rest of the area.
    pub(super) fn draw_centred<'a>(&self, area: Area<'a>) -> Result<Area<'a>, Box<dyn StdError>> {
        if self.0.is_empty() {
            return Ok(area);
        }
        let text = cut(&self.0, &font(), area.dim_in_pixel().0)?;
        Ok(area.titled(&text, TextStyle::from(font()).color(&GREY))?)
    }
}

fn font() -> FontDesc<'static> {
    (FONT, 15).into_font()
}

/// `text` cut to at most `pixels`, with `…` at the end if something is missing.
fn cut(text: &str, font: &FontDesc, pixels: u32) -> Result<String, Box<dyn StdError>> {
    if font.box_size(text)?.0 <= pixels {
        return Ok(text.to_owned());
    }
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let shortened = |n: usize| format!("{}…", &text[..ends[n]]);
    // Find the most letters that fit, from 0 to `ends.len() - 1`; a longer text is never narrower.
    let (mut fits, mut wide) = (0, ends.len());
    while wide - fits > 1 {
        let middle = usize::midpoint(fits, wide);
        if font.box_size(&shortened(middle))?.0 <= pixels {
            fits = middle;
        } else {
            wide = middle;
        }
    }
    Ok(shortened(fits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::png::canvas::draw;
    use crate::png::canvas::tests::{decode, provenance};
    use serde_json::Value;

    /// The first and the last column that have ink, if any have.
    fn inked(caption: &str, width: u32) -> Option<(usize, usize)> {
        let provenance = provenance(caption, Value::Null);
        let file = draw((width, 40), &provenance, |area| Caption::of(&provenance).draw(area, (20, 10)));
        let picture = decode(&file.expect("a picture"));
        let has_ink = |x: &usize| (0..picture.height).any(|y| (picture.pixels)(*x, y) != (255, 255, 255));
        let columns: Vec<usize> = (0..picture.width).filter(has_ink).collect();
        Some((*columns.first()?, *columns.last()?))
    }

    #[test]
    fn a_caption_ends_before_the_edge() {
        assert_eq!(inked("", 300), None);
        let (first, last) = inked("f32 on cpu, fused", 300).expect("text");
        assert!((20..25).contains(&first) && last > 100 && last < 284, "{first} to {last}");
        for long in
            ["ablate 0.1, ".repeat(1000), "i".repeat(10_000), "漢".repeat(300), "e\u{301}".repeat(5000)]
        {
            let (_, last) = inked(&long, 300).expect("text");
            // It fills the room to within a letter, and never exceeds it.
            assert!((250..300 - 16 + 2).contains(&last), "{last}: {}", &long[..12]);
        }
    }

    #[test]
    fn what_is_cut_says_so_and_keeps_all_that_fits() -> Result<(), Box<dyn StdError>> {
        // `draw` registers the font.
        draw((1, 1), &Provenance::default(), |_| Ok(()))?;
        let (font, text) = (font(), "attention of layer 3, head 7");
        let width = font.box_size(text)?.0;
        assert_eq!(cut(text, &font, width)?, text);
        for pixels in 20..width {
            let part = cut(text, &font, pixels)?;
            let kept = part.strip_suffix('…').ok_or("an end")?;
            assert!(text.starts_with(kept) && font.box_size(&part)?.0 <= pixels, "{part} in {pixels}");
            let next = &text[..=kept.len()];
            assert!(font.box_size(&format!("{next}…"))?.0 > pixels, "{next} has room in {pixels}");
        }
        Ok(())
    }
}
