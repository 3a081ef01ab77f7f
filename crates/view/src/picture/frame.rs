//! The frame that all kinds of pictures share: the file's format, a title, a width, and what made them.

use super::format::PictureFormat;
use super::heading::Heading;
use super::letters::Letters;
use super::scene::Scene;
use crate::provenance::Provenance;
use candle_core::Result;
use std::str::FromStr;

/// Dots an inch of a PNG for print.
const PRINT_DOTS: f32 = 300.0;
/// CSS pixels an inch.
const CSS_DOTS: f32 = 96.0;
/// CSS pixels of a picture for print in each of its layout's pixels: labels of 14 of these have 7 points.
const PRINT_SCALE: f32 = 2.0 / 3.0;
/// The narrowest layout that has room for labels, a map and its color bar.
const NARROWEST: f32 = 300.0;
/// The widest PNG.
const WIDEST: f32 = 16_384.0;
/// The narrowest of two parts that stand side by side, and the gap between them.
const HALF: f32 = 450.0;
const GAP: f32 = 16.0;

/// The file of a picture, and what stands around what it shows: a title, and below it the caption of a [`Provenance`],
/// whose facts go into the file's metadata.
///
/// A title that is longer than the picture is wide gets smaller letters and several lines; nothing of it is cut.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    format: PictureFormat,
    title: &'a str,
    provenance: &'a Provenance,
    width: Option<PictureWidth>,
}

impl<'a> Frame<'a> {
    /// A picture that is as wide as its content asks for. With an empty title, it has none.
    #[must_use]
    pub fn new(format: PictureFormat, title: &'a str, provenance: &'a Provenance) -> Self {
        Self { format, title, provenance, width: None }
    }

    /// The same, with this width if there is one.
    #[must_use]
    pub fn with_width(self, width: Option<PictureWidth>) -> Self {
        Self { width, ..self }
    }

    /// The width of the layout in pixels, if it is given.
    pub(super) fn room(&self) -> Option<f32> {
        self.width.map(PictureWidth::layout)
    }

    /// The bytes of a file with `count` parts below its title; `part` draws each in the width that it has.
    pub(super) fn write(
        &self,
        count: usize,
        part: impl Fn(usize, Option<f32>) -> Result<Scene>,
    ) -> Result<Vec<u8>> {
        let scene = self.scene(count, part)?;
        let Some(width) = self.width else { return self.format.write(&scene, self.provenance) };
        let dots = if width.is_print && self.format == PictureFormat::Png { PRINT_DOTS } else { CSS_DOTS };
        let wide = width.pixels * dots / CSS_DOTS;
        let scale = wide / scene.width;
        let high = scene.height * scale;
        let mut scaled = Scene::new(Letters::new()?, (wide, high), &scene.title)?;
        // Rounded to whole pixels, a page would not have the width that was asked for.
        (scaled.width, scaled.height) = (wide, high);
        scaled.dots_per_inch = width.is_print.then_some(dots);
        scaled.add(scene, scale, (0.0, 0.0));
        self.format.write(&scaled, self.provenance)
    }

    /// The title, the caption and the parts: two side by side where they have room.
    pub(super) fn scene(
        &self,
        count: usize,
        part: impl Fn(usize, Option<f32>) -> Result<Scene>,
    ) -> Result<Scene> {
        let half = |room: f32| (room - GAP) / 2.0;
        let columns = if count > 1 && self.room().is_none_or(|room| half(room) >= HALF) { 2 } else { 1 };
        let room = if columns == 2 { self.room().map(half) } else { self.room() };
        let parts = (0..count).map(|i| part(i, room)).collect::<Result<Vec<_>>>()?;
        let widest = parts.iter().map(|part| part.width).fold(0.0, f32::max);
        let letters = Letters::new()?;
        let heading = Heading::new(
            self.title,
            &self.provenance.caption,
            self.room(),
            &letters,
            columns as f32 * (widest + GAP) - GAP,
        );
        let high = |row: &[Scene]| row.iter().map(|part| part.height).fold(0.0, f32::max);
        let height = heading.height() + parts.chunks(columns).map(high).sum::<f32>();
        let mut scene = Scene::new(letters, (heading.width(), height), &heading.title())?;
        let mut top = heading.height();
        heading.draw(&mut scene);
        let mut parts = parts.into_iter().peekable();
        while parts.peek().is_some() {
            let row: Vec<Scene> = parts.by_ref().take(columns).collect();
            let below = top + high(&row);
            for (column, part) in row.into_iter().enumerate() {
                scene.add(part, 1.0, (column as f32 * (widest + GAP), top));
            }
            top = below;
        }
        Ok(scene)
    }
}

/// The width of a picture. The height follows from what it shows.
///
/// A width in cm, mm, in or pt is for print: labels have 7 points, and a PNG 300 dots an inch. One in px is for a screen, with
/// labels of 14 pixels.
///
/// ```
/// use gpt2_view::PictureWidth;
///
/// assert_eq!("8.5cm".parse::<PictureWidth>(), "85mm".parse());
/// assert!("8.5".parse::<PictureWidth>().unwrap_err().contains("8.5cm"));
/// assert!("1cm".parse::<PictureWidth>().unwrap_err().contains("at least"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PictureWidth {
    /// 96 an inch
    pixels: f32,
    is_print: bool,
}

impl PictureWidth {
    /// The width for which the letters are laid out, with sizes that suit a screen.
    fn layout(self) -> f32 {
        if self.is_print { self.pixels / PRINT_SCALE } else { self.pixels }
    }
}

impl FromStr for PictureWidth {
    type Err = String;

    /// # Errors
    /// For anything but a number with a unit, and for widths in which no picture has room, or that no viewer opens. The text
    /// says what to write instead.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let units =
            [("cm", CSS_DOTS / 2.54), ("mm", CSS_DOTS / 25.4), ("in", CSS_DOTS), ("pt", CSS_DOTS / 72.0)];
        let found = units.into_iter().chain([("px", 1.0)]).find_map(|(unit, pixels)| {
            let number = text.strip_suffix(unit)?.trim_end();
            // `inf` and `1e3` are numbers in Rust.
            let is_plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            let number = number.parse::<f32>().ok().filter(|_| is_plain)?;
            Some((number * pixels, unit))
        });
        let Some((pixels, unit)) = found else {
            return Err("expected a width with its unit, such as 8.5cm, 85mm, 3.3in, 240pt or 1200px; \
                        the height follows from it"
                .to_owned());
        };
        let width = Self { pixels, is_print: unit != "px" };
        if width.layout() < NARROWEST {
            return Err("too narrow to read; give at least 5.3cm, 53mm, 2.1in, 151pt or 300px".to_owned());
        }
        let most = if width.is_print { WIDEST * CSS_DOTS / PRINT_DOTS } else { WIDEST };
        if pixels > most {
            return Err(
                "too wide for viewers; give at most 138cm, 1380mm, 54in, 3930pt or 16384px".to_owned()
            );
        }
        Ok(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::png::tests::{decode, provenance};
    use crate::picture::scene::{Anchor, INK, TextStyle};
    use serde_json::Value;

    #[test]
    fn widths_are_lengths_with_a_unit_in_which_a_picture_has_room() {
        let width = |text: &str| text.parse::<PictureWidth>();
        for (text, other) in [("8.5cm", "85mm"), ("1in", "72pt"), ("4in", "288 pt")] {
            assert!(width(text) == width(other), "{text} and {other}");
        }
        assert!(width("5in").is_ok_and(|five| five != width("480px").unwrap()), "letters differ");
        for text in
            ["", "8.5", "cm", ".cm", "8,5cm", "-8cm", "nancm", "infpx", "1e3px", "800x600px", "8 feet"]
        {
            assert!(width(text).unwrap_err().contains("such as 8.5cm"), "{text}");
        }
        for text in ["0px", "299px", "5.2cm", "52mm", "2in", "149pt"] {
            assert!(width(text).unwrap_err().contains("at least 5.3cm"), "{text}");
        }
        for text in
            ["16385px", "139cm", "1400mm", "55in", "4000pt", "99999999999999999999999999999999999999999px"]
        {
            assert!(width(text).unwrap_err().contains("at most 138cm"), "{text}");
        }
        // What the errors advise.
        for text in "5.3cm 53mm 2.1in 151pt 300px 138cm 1380mm 54in 3930pt 16384px".split(' ') {
            assert!(width(text).is_ok(), "{text}");
        }
    }

    /// A part with a text in each corner.
    fn part(room: Option<f32>) -> Result<Scene> {
        let width = room.unwrap_or(400.0);
        let style = TextStyle::new(14.0, INK);
        let mut scene = Scene::new(Letters::new()?, (width, 100.0), "")?;
        scene.text("a", (0.0, 20.0), style);
        scene.text("b", (width, 90.0), style.anchor(Anchor::End));
        Ok(scene)
    }

    #[test]
    fn parts_stand_side_by_side_where_they_have_room() -> Result<()> {
        let made_by = provenance("what made it", Value::Null);
        for (width, count, columns) in
            [(None, 1, 1), (None, 3, 2), (Some("900px"), 2, 1), (Some("916px"), 4, 2), (Some("8.5cm"), 2, 1)]
        {
            let width = width.map(|width: &str| width.parse::<PictureWidth>().unwrap());
            let frame = Frame::new(PictureFormat::Svg, "a title", &made_by).with_width(width);
            let scene = frame.scene(count, |_, room| part(room))?;
            scene.assert_legible(false);
            let texts = scene.texts();
            let mut lefts: Vec<f32> =
                texts.iter().filter(|(text, _)| *text == "a").map(|(_, at)| at.0).collect();
            assert_eq!(lefts.len(), count);
            lefts.dedup();
            assert_eq!(lefts.len().min(2), columns, "{width:?}");
            assert!(width.is_none_or(|width| (scene.width - width.layout()).abs() < 1.0), "{}", scene.width);
        }
        Ok(())
    }

    #[test]
    fn every_format_has_the_width_that_was_asked_for() -> Result<()> {
        let made_by = Provenance::default();
        let draw = |format: PictureFormat, width: &str| {
            let frame = Frame::new(format, "", &made_by).with_width(Some(width.parse().unwrap()));
            frame.write(1, |_, room| part(room))
        };
        // 300 dots an inch for print, one each pixel for a screen.
        assert_eq!(decode(&draw(PictureFormat::Png, "4in")?).width, 1200);
        assert_eq!(decode(&draw(PictureFormat::Png, "700px")?).width, 700);
        let svg = String::from_utf8(draw(PictureFormat::Svg, "254mm")?).expect("text");
        assert!(svg.contains("width=\"960\""), "{svg}");
        // 10 cm are 283.46 points.
        let pdf = String::from_utf8_lossy(&draw(PictureFormat::Pdf, "10cm")?).into_owned();
        assert!(pdf.contains("/MediaBox [0 0 283.46"), "{pdf}");
        Ok(())
    }
}
