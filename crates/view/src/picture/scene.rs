//! The content of a picture: marks at places, the same for every file format.
//!
//! Places are in pixels of the PNG from the upper left corner; an edge between two pixels is a whole number.

use super::letters::Letters;
use crate::palette::Rgb;
use candle_core::Result;

pub(super) const INK: Rgb = (31, 35, 40);
pub(super) const FAINT: Rgb = (208, 215, 222);
pub(super) const GREY: Rgb = (101, 109, 118);
pub(super) const WHITE: Rgb = (255, 255, 255);
/// The color of NaN.
pub(super) const NOT_A_NUMBER: Rgb = (160, 160, 160);

/// The longest side of a picture: above it, viewers give up.
const LARGEST: f32 = 16_384.0;
/// The most pixels: they take 256 MB of memory as a bitmap.
const LARGEST_AREA: f32 = 64e6;

#[derive(Debug)]
pub(super) struct Scene {
    pub(super) letters: Letters,
    pub(super) width: f32,
    pub(super) height: f32,
    /// The title of the file; the marks have it once more.
    pub(super) title: String,
    /// Pixels an inch in print, for formats that know only pixels.
    pub(super) dots_per_inch: Option<f32>,
    pub(super) marks: Vec<Mark>,
}

#[derive(Debug)]
pub(super) enum Mark {
    /// A filled rectangle.
    Box {
        x: f32,
        y: f32,
        width: f32,
        height: f32,
        color: Rgb,
    },
    /// Straight lines from point to point.
    Line {
        points: Vec<(f32, f32)>,
        width: f32,
        color: Rgb,
    },
    /// A filled circle.
    Disc {
        center: (f32, f32),
        radius: f32,
        color: Rgb,
    },
    /// A circle's edge.
    Ring {
        center: (f32, f32),
        radius: f32,
        width: f32,
        color: Rgb,
    },
    Cells(Cells),
    Text(PlacedText),
}

impl Mark {
    /// The mark `scale` times as large, and then moved by `left` and `top`.
    fn placed(self, scale: f32, (left, top): (f32, f32)) -> Self {
        let at = |(x, y): (f32, f32)| (scale * x + left, scale * y + top);
        match self {
            Self::Box { x, y, width, height, color } => {
                let ((x, y), width, height) = (at((x, y)), scale * width, scale * height);
                Self::Box { x, y, width, height, color }
            }
            Self::Line { points, width, color } => {
                Self::Line { points: points.into_iter().map(at).collect(), width: scale * width, color }
            }
            Self::Disc { center, radius, color } => {
                Self::Disc { center: at(center), radius: scale * radius, color }
            }
            Self::Ring { center, radius, width, color } => {
                Self::Ring { center: at(center), radius: scale * radius, width: scale * width, color }
            }
            Self::Cells(cells) => {
                let ((x, y), width, height) =
                    (at((cells.x, cells.y)), scale * cells.width, scale * cells.height);
                Self::Cells(Cells { x, y, width, height, ..cells })
            }
            Self::Text(text) => {
                let style = TextStyle { size: scale * text.style.size, ..text.style };
                Self::Text(PlacedText { place: at(text.place), width: scale * text.width, style, ..text })
            }
        }
    }
}

/// Colored rectangles, edge to edge.
#[derive(Debug)]
pub(super) struct Cells {
    pub(super) x: f32,
    pub(super) y: f32,
    pub(super) width: f32,
    pub(super) height: f32,
    pub(super) columns: usize,
    /// (rows, columns); nothing where the paper shows
    pub(super) colors: Vec<Option<Rgb>>,
}

impl Cells {
    pub(super) fn rows(&self) -> usize {
        self.colors.len() / self.columns.max(1)
    }
}

/// The part of a text that lies at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A text's size, color and direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextStyle {
    pub(super) size: f32,
    pub(super) color: Rgb,
    pub(super) anchor: Anchor,
    /// Turned by a quarter, to read from the bottom up.
    pub(super) upward: bool,
}

impl TextStyle {
    pub(super) const fn new(size: f32, color: Rgb) -> Self {
        Self { size, color, anchor: Anchor::Start, upward: false }
    }

    pub(super) const fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub(super) const fn upward(self) -> Self {
        Self { upward: true, ..self }
    }

    /// From the middle of a line to the baseline.
    pub(super) fn to_baseline(self) -> f32 {
        0.36 * self.size
    }
}

/// One line of text.
#[derive(Debug)]
pub(super) struct PlacedText {
    pub(super) shown: String,
    /// On the baseline.
    pub(super) place: (f32, f32),
    pub(super) width: f32,
    pub(super) style: TextStyle,
}

impl PlacedText {
    /// The place where the text begins, on the baseline.
    pub(super) fn start(&self) -> (f32, f32) {
        let before = match self.style.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => self.width / 2.0,
            Anchor::End => self.width,
        };
        let (x, y) = self.place;
        if self.style.upward { (x, y + before) } else { (x - before, y) }
    }
}

impl Scene {
    /// An empty picture.
    pub(super) fn new(letters: Letters, (width, height): (f32, f32), title: &str) -> Result<Self> {
        let width = width.ceil();
        let height = height.ceil();
        if width > LARGEST || height > LARGEST || width * height > LARGEST_AREA {
            candle_core::bail!(
                "a picture of {width} x {height} pixels is too large: choose fewer tokens or heads, or a smaller width"
            )
        }
        Ok(Self { letters, width, height, title: title.to_owned(), dots_per_inch: None, marks: vec![] })
    }

    /// Adds the marks of another scene, `scale` times as large, with its upper left corner at a place.
    pub(super) fn add(&mut self, other: Self, scale: f32, at: (f32, f32)) {
        self.marks.extend(other.marks.into_iter().map(|mark| mark.placed(scale, at)));
    }

    /// Adds text with its anchor at `place`, on the baseline.
    pub(super) fn text(&mut self, text: impl Into<String>, place: (f32, f32), style: TextStyle) {
        let shown = text.into();
        let width = self.letters.width(&shown, style.size);
        self.marks.push(Mark::Text(PlacedText { shown, place, width, style }));
    }

    pub(super) fn line(&mut self, points: impl Into<Vec<(f32, f32)>>, width: f32, color: Rgb) {
        self.marks.push(Mark::Line { points: points.into(), width, color });
    }

    pub(super) fn cells(&mut self, cells: Cells) {
        self.marks.push(Mark::Cells(cells));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Left, top, right, bottom.
    pub(crate) type Bounds = (f32, f32, f32, f32);

    impl Scene {
        /// The room of each text.
        pub(crate) fn texts(&self) -> Vec<(&str, Bounds)> {
            let up = self.letters.ascent();
            let down = self.letters.descent();
            let bounds = |text: &PlacedText| {
                let ((x, y), size) = (text.start(), text.style.size);
                if text.style.upward {
                    (x - up * size, y - text.width, x + down * size, y)
                } else {
                    (x, y - up * size, x + text.width, y + down * size)
                }
            };
            let texts = self.marks.iter().filter_map(|mark| match mark {
                Mark::Text(text) => Some((text.shown.as_str(), bounds(text))),
                _ => None,
            });
            texts.filter(|(text, _)| !text.is_empty()).collect()
        }

        /// Asserts that no text leaves the picture, lies on another one or on the cells of a heat map.
        pub(crate) fn assert_legible(&self, may_lie_on_cells: bool) {
            let texts = self.texts();
            for (i, (text, (left, top, right, bottom))) in texts.iter().enumerate() {
                assert!(
                    *left >= 0.0 && *top >= 0.0 && *right <= self.width && *bottom <= self.height,
                    "{text:?} at {left}, {top} to {right}, {bottom} leaves {} x {}",
                    self.width,
                    self.height
                );
                let over = |l: f32, t: f32, r: f32, b: f32| {
                    left.max(l) + 0.01 < right.min(r) && top.max(t) + 0.01 < bottom.min(b)
                };
                for (other, (l, t, r, b)) in &texts[..i] {
                    assert!(!over(*l, *t, *r, *b), "{text:?} lies on {other:?}");
                }
                for mark in &self.marks {
                    let Mark::Cells(cells) = mark else { continue };
                    let on = over(cells.x, cells.y, cells.x + cells.width, cells.y + cells.height);
                    assert!(may_lie_on_cells || !on, "{text:?} lies on cells");
                }
            }
        }
    }

    #[test]
    fn a_picture_that_no_viewer_opens_is_refused() -> Result<()> {
        for size in [(16_384.0, 1.0), (8_000.0, 8_000.0)] {
            assert!(Scene::new(Letters::new()?, size, "").is_ok());
        }
        for size in [(16_385.0, 1.0), (1.0, 1e9), (8_001.0, 8_000.0)] {
            let error = Scene::new(Letters::new()?, size, "").unwrap_err().to_string();
            assert!(error.contains("too large"), "{error}");
        }
        Ok(())
    }
}
