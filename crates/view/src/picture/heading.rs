//! The title of a picture, and below it a line that says how it was made.

use super::letters::Letters;
use super::scene::{GREY, INK, Scene, Style};
use crate::provenance::Provenance;
use crate::text::visible_text;

const TITLE: Style = Style::new(24.0, INK);
const CAPTION: Style = Style::new(15.0, GREY);
/// The margin of the text.
const MARGIN: f32 = 20.0;

pub(super) struct Heading {
    title: String,
    caption: String,
}

impl Heading {
    pub(super) fn new(title: &str, provenance: &Provenance) -> Self {
        Self { title: visible_text(title), caption: provenance.shown() }
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// How much room it takes at the top.
    pub(super) fn height(&self) -> f32 {
        if self.caption.is_empty() { 56.0 } else { 80.0 }
    }

    /// The width in which nothing is cut, or `most` if that is less.
    pub(super) fn width(&self, letters: &Letters, most: f32) -> f32 {
        let width = |text: &str, style: Style| letters.width(text, style.size).ceil() + 2.0 * MARGIN;
        width(&self.title, TITLE).max(width(&self.caption, CAPTION)).min(most)
    }

    /// Draws it, cut to the width of the picture.
    pub(super) fn draw(&self, scene: &mut Scene) {
        let room = scene.width - 2.0 * MARGIN;
        let title = scene.letters.cut(&self.title, TITLE.size, room);
        scene.text(title, (MARGIN, 38.0), TITLE);
        if !self.caption.is_empty() {
            let caption = scene.letters.cut(&self.caption, CAPTION.size, room);
            scene.text(caption, (MARGIN, 62.0), CAPTION);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Result;
    use serde_json::Value;

    #[test]
    fn a_caption_ends_before_the_edge() -> Result<()> {
        for long in
            ["ablate 0.1, ".repeat(1000), "i".repeat(10_000), "漢".repeat(300), "e\u{301}".repeat(5000)]
        {
            let provenance = Provenance { caption: long.clone(), facts: Value::Null };
            let mut scene = Scene::new(Letters::new()?, (300.0, 100.0), "")?;
            let heading = Heading::new(&long, &provenance);
            assert!(heading.width(&scene.letters, 300.0) > 299.9);
            heading.draw(&mut scene);
            scene.assert_legible(false);
            for (text, (left, _, right, bottom)) in scene.texts() {
                assert!(text.ends_with('…') && left >= MARGIN && right > 300.0 - MARGIN - 30.0, "{text}");
                assert!(right <= 300.0 - MARGIN && bottom <= heading.height(), "{text} ends at {right}");
            }
        }
        Ok(())
    }
}
