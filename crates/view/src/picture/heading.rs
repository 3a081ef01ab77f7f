//! The title of a picture and its caption.

use super::axes::{MARGIN, NARROWEST};
use super::letters::Letters;
use super::scene::{GREY, INK, Scene, TextStyle};
use crate::text::visible_text;

/// The sizes of titles: the first in which one has at most [`LINES`], or else the last.
const TITLES: [f32; 3] = [24.0, 20.0, 16.0];
const LINES: usize = 2;
const CAPTION: TextStyle = TextStyle::new(15.0, GREY);

/// The title of a picture, and below it the caption, which says how it was made.
pub(super) struct Heading {
    title: Vec<String>,
    title_style: TextStyle,
    caption: Vec<String>,
    width: f32,
}

impl Heading {
    /// Wraps both to `room`, or if none is given to the width of `content`, or to a wider one where that has no room for a title. Line feeds begin lines.
    pub(super) fn new(
        title: &str,
        caption: &str,
        room: Option<f32>,
        letters: &Letters,
        content: f32,
    ) -> Self {
        let lines = |text: &str| text.lines().map(visible_text).collect::<Vec<_>>();
        let title = lines(title);
        let caption = lines(caption);
        let widths = |lines: &[String], size: f32| {
            lines.iter().map(|line| letters.width(line, size).ceil()).fold(0.0, f32::max) + 2.0 * MARGIN
        };
        let longest = widths(&title, TITLES[0]).max(widths(&caption, CAPTION.size));
        let width = room.unwrap_or_else(|| content.max(longest.min(NARROWEST)));
        let wrap = |lines: &[String], size: f32| -> Vec<String> {
            lines.iter().flat_map(|line| letters.wrap(line, size, width - 2.0 * MARGIN)).collect()
        };
        let few = |size: &f32| wrap(&title, *size).len() <= LINES;
        let size = TITLES.into_iter().find(few).unwrap_or(TITLES[2]);
        let title = wrap(&title, size);
        let caption = wrap(&caption, CAPTION.size);
        Self { title, title_style: TextStyle::new(size, INK), caption, width }
    }

    /// In one line.
    pub(super) fn title(&self) -> String {
        self.title.join(" ")
    }

    pub(super) fn width(&self) -> f32 {
        self.width
    }

    /// The room that the heading takes at the top.
    pub(super) fn height(&self) -> f32 {
        self.lines().last().map_or(8.0, |(_, baseline, _)| baseline + 18.0)
    }

    /// Each line with its baseline.
    fn lines(&self) -> Vec<(&str, f32, TextStyle)> {
        let mut lines = vec![];
        let mut y = 8.0;
        for line in &self.title {
            y += 1.25 * self.title_style.size;
            lines.push((line.as_str(), y, self.title_style));
        }
        for (i, line) in self.caption.iter().enumerate() {
            y += if i == 0 { 24.0 } else { 20.0 };
            lines.push((line.as_str(), y, CAPTION));
        }
        lines
    }

    pub(super) fn draw(&self, scene: &mut Scene) {
        for (line, y, style) in self.lines() {
            scene.text(line, (MARGIN, y), style);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Result;

    #[test]
    fn headings_are_whole_and_inside_of_the_picture() -> Result<()> {
        let letters = Letters::new()?;
        let squeezed = |text: &str| text.replace(' ', "");
        for long in [
            "a short one".to_owned(),
            "ablate 0.1, ".repeat(100),
            "i".repeat(1000),
            "漢🙂".repeat(100),
            "e\u{301}".repeat(500),
            "מלך אנגליה ".repeat(40),
            "two\nlines".to_owned(),
        ] {
            for (room, content) in [(None, 300.0), (None, 1000.0), (Some(300.0), 300.0)] {
                let heading = Heading::new(&long, &long, room, &letters, content);
                let mut scene = Scene::new(Letters::new()?, (heading.width(), heading.height()), "")?;
                heading.draw(&mut scene);
                scene.assert_legible(false);
                let texts = scene.texts();
                assert!(
                    texts.iter().all(|(_, at)| at.0 >= MARGIN && at.2 <= heading.width() - MARGIN + 0.01)
                );
                let all: String = texts.iter().map(|(text, _)| *text).collect();
                let expected = squeezed(&long.replace('\n', "")).repeat(2);
                assert_eq!(squeezed(&all), expected, "nothing is cut");
            }
        }
        let heading = |title: &str| Heading::new(title, "", None, &letters, 500.0);
        assert!(heading("").lines().is_empty() && heading("two\nlines").title.len() == 2);
        // First the letters shrink, then there are more lines.
        let (short, long, longer) =
            (heading("short"), heading(&"a name ".repeat(12)), heading(&"z ".repeat(500)));
        assert!((short.title_style.size - 24.0).abs() < 0.1 && short.title.len() == 1);
        assert!((long.title_style.size - 20.0).abs() < 4.1 && long.title.len() == 2, "{:?}", long.title);
        assert!((longer.title_style.size - 16.0).abs() < 0.1 && longer.title.len() > 2);
        Ok(())
    }
}
