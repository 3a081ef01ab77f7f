//! The axes of a picture: the labels of rows and columns, the color bar, and round numbers.

use super::letters::Letters;
use super::scene::{Anchor, Cells, GREY, INK, NOT_A_NUMBER, Scene, TextStyle};
use crate::palette::{Rgb, level, rgb};

/// Around a map and its heading.
pub(super) const MARGIN: f32 = 20.0;
/// The least width of a map's picture, which leaves room for a title.
pub(super) const NARROWEST: f32 = 560.0;
/// The name of an axis, and its room.
pub(super) const AXIS_NAME: TextStyle = TextStyle::new(16.0, INK);
pub(super) const AXIS_ROOM: f32 = 26.0;

/// The size of labels, if they have room.
const LARGE: f32 = 14.0;
/// The smallest that people read.
const SMALL: f32 = 10.0;
/// The longest label, in pixels; what is longer is cut.
const LONGEST: f32 = 150.0;
/// The part of the room that a label may take in a picture of a given width.
const SHARE: f32 = 0.2;
/// The least distance between a label and its cell or its neighbor.
const GAP: f32 = 6.0;

/// The labels along one side of a heat map: as many as have room, and none so long that it reaches another.
pub(super) struct Axis {
    /// By the index of the row or column.
    labels: Vec<(usize, String)>,
    cell: f32,
    style: TextStyle,
    /// The longest label.
    longest: f32,
    /// Between a label and its cell.
    gap: f32,
    /// Whether a label fits above its column without being turned.
    flat: bool,
}

impl Axis {
    /// Labels for `count` cells with a side of `cell`, in a picture with this `room`, if it is given. If there are too many,
    /// only those whose `place` is a multiple of 2, 5, 10, 20 and so on.
    pub(super) fn new(
        letters: &Letters,
        (count, cell): (usize, f32),
        room: Option<f32>,
        place: impl Fn(usize) -> usize,
        label: impl Fn(usize) -> String,
    ) -> Self {
        let line = letters.ascent() + letters.descent();
        let size = (cell / line).min(LARGE);
        let steps = (0u32..).flat_map(|power| [1, 2, 5].map(|n| n * 10usize.pow(power)));
        let (size, step) = if size >= SMALL {
            (size, 1)
        } else {
            let has_room = |step: &usize| *step as f32 * cell >= line * LARGE;
            (LARGE, steps.take(18).find(has_room).unwrap_or(usize::MAX))
        };
        let most = room.map_or(LONGEST, |room| (SHARE * room).min(LONGEST));
        let labels: Vec<(usize, String)> = (0..count)
            .filter(|&i| place(i).is_multiple_of(step))
            .map(|i| (i, letters.cut(&label(i), size, most)))
            .collect();
        let longest = labels.iter().map(|(_, label)| letters.width(label, size)).fold(0.0, f32::max);
        let flat = longest + GAP <= step as f32 * cell;
        // In the corner, the labels of small cells would reach those of the other axis.
        let gap = (0.6 * size - cell / 2.0).ceil().max(GAP);
        Self { labels, cell, style: TextStyle::new(size, INK), longest: longest.ceil(), gap, flat }
    }

    /// The labels beside rows, and the side of the cells with which `count` of them fill `room` beside these labels: the
    /// size of the cells decides which labels there are.
    pub(super) fn filling(room: f32, count: usize, axis: impl Fn(f32) -> Self) -> (Self, f32) {
        let mut labels = 0.0;
        loop {
            let cell = (room - labels) / count as f32;
            let axis = axis(cell);
            if axis.beside() <= labels {
                return (axis, cell);
            }
            labels = axis.beside();
        }
    }

    /// The room that the labels take to the left of their rows.
    pub(super) fn beside(&self) -> f32 {
        if self.labels.is_empty() { 0.0 } else { self.longest + self.gap }
    }

    /// The room that the labels take above their columns.
    pub(super) fn above(&self) -> f32 {
        if self.flat { (1.2 * self.style.size).ceil() + self.gap } else { self.beside() }
    }

    /// Draws the labels to the left of rows that begin at (`x`, `y`).
    pub(super) fn draw_beside(&self, scene: &mut Scene, (x, y): (f32, f32)) {
        let style = self.style.anchor(Anchor::End);
        for (i, label) in &self.labels {
            scene.text(label, (x - self.gap, y + self.middle(*i) + style.to_baseline()), style);
        }
    }

    /// Draws the labels above columns that begin at (`x`, `y`): turned, unless each has room as it is.
    pub(super) fn draw_above(&self, scene: &mut Scene, (x, y): (f32, f32)) {
        let flat = self.style.anchor(Anchor::Middle);
        let turned = self.style.upward();
        for (i, label) in &self.labels {
            let middle = x + self.middle(*i);
            if self.flat {
                scene.text(label, (middle, y - self.gap), flat);
            } else {
                scene.text(label, (middle + turned.to_baseline(), y - self.gap), turned);
            }
        }
    }

    fn middle(&self, i: usize) -> f32 {
        (i as f32 + 0.5) * self.cell
    }
}

/// Between the map and the bar.
const TO_BAR: f32 = 28.0;
const BAR_WIDTH: f32 = 16.0;
const BAR_NUMBER: TextStyle = TextStyle::new(14.0, INK);
const BAR_NAME: TextStyle = TextStyle::new(14.0, GREY);
/// The shortest and the tallest bar.
const SHORTEST: f32 = 160.0;
const TALLEST: f32 = 400.0;
/// A line of text.
const LINE: f32 = 18.0;

/// Explains the colors of a heat map: a bar with numbers and a name, to the right of the map.
pub(super) struct ColorBar<'a> {
    /// The name of the numbers.
    pub(super) name: String,
    /// The level on the scale of each number, 0 to 1; where two have no room, the first of them counts.
    pub(super) numbers: Vec<(f32, String)>,
    pub(super) color: &'a dyn Fn(f32) -> Rgb,
    /// Whether to explain the color of what is not a number.
    pub(super) has_nan: bool,
}

impl ColorBar<'static> {
    /// The scale of attention weights, under this name.
    pub(super) fn of_weights(name: &str, has_nan: bool) -> Self {
        let numbers = [1.0, 0.0, 0.5, 0.25, 0.1, 0.75, 0.01];
        let number = |weight: f32| (level(weight).unwrap_or(0.0), weight.to_string());
        Self { name: name.to_owned(), numbers: numbers.map(number).into(), color: &rgb, has_nan }
    }
}

impl ColorBar<'_> {
    /// The least height of a map that has the bar beside it.
    pub(super) fn least_height(&self, letters: &Letters) -> f32 {
        let name = letters.width(&self.name, BAR_NAME.size).ceil();
        name.clamp(SHORTEST, TALLEST) + self.below()
    }

    /// The room of the explanation of what is not a number.
    fn below(&self) -> f32 {
        if self.has_nan { 2.0 * LINE } else { 0.0 }
    }

    /// The room to the right of the map.
    pub(super) fn room(&self, letters: &Letters) -> f32 {
        let widths = self.numbers.iter().map(|(_, number)| letters.width(number, BAR_NUMBER.size));
        TO_BAR + BAR_WIDTH + 8.0 + widths.fold(24.0, f32::max).ceil() + 34.0
    }

    /// Draws it to the right of a map of this `height` with its upper right corner at (`x`, `y`).
    pub(super) fn draw(&self, scene: &mut Scene, (x, y): (f32, f32), height: f32) {
        let height = (height - self.below()).min(TALLEST).floor();
        let x = x + TO_BAR;
        let steps = height / 2.0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // up to half of TALLEST
        let colors = (0..steps as usize).map(|i| Some((self.color)(1.0 - i as f32 / (steps - 1.0))));
        scene.cells(Cells { x, y, width: BAR_WIDTH, height, columns: 1, colors: colors.collect() });
        let mut drawn: Vec<f32> = vec![];
        for (level, number) in &self.numbers {
            let middle = y + (1.0 - level) * height;
            if drawn.iter().all(|other| (middle - other).abs() >= LINE) {
                let tick = [(x + BAR_WIDTH, middle), (x + BAR_WIDTH + 4.0, middle)];
                scene.line(tick, 1.0, INK);
                scene.text(number, (x + BAR_WIDTH + 8.0, middle + BAR_NUMBER.to_baseline()), BAR_NUMBER);
                drawn.push(middle);
            }
        }
        if self.has_nan {
            let y = y + height + LINE;
            let side = 0.75 * LINE;
            let colors = vec![Some(NOT_A_NUMBER)];
            scene.cells(Cells { x, y, width: BAR_WIDTH, height: side, columns: 1, colors });
            scene.text("NaN", (x + BAR_WIDTH + 8.0, y + side / 2.0 + BAR_NUMBER.to_baseline()), BAR_NUMBER);
        }
        let right = x - TO_BAR + self.room(&scene.letters) - 12.0;
        let name = scene.letters.cut(&self.name, BAR_NAME.size, height);
        scene.text(name, (right, y + height / 2.0), BAR_NAME.upward().anchor(Anchor::Middle));
    }
}

/// At most `most` round numbers in `from..=to`, evenly spaced by 1, 2 or 5 times a power of ten, and how many digits
/// they need after the point.
pub(super) fn round_numbers(from: f64, to: f64, most: usize) -> (Vec<f64>, usize) {
    let least = (to - from) / most.max(1) as f64;
    let power = least.log10().floor();
    if !power.is_finite() {
        return (vec![], 0);
    }
    let steps = [1.0, 2.0, 5.0, 10.0].map(|n| n * 10f64.powf(power));
    let step = steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(steps[3]);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at most 300
    let digits = (-(step * 1.000_001).log10().floor()).clamp(0.0, 300.0) as usize;
    let first = (from / step - 1e-9).ceil();
    let numbers = (0..=most).map(|n| (first + n as f64) * step);
    (numbers.take_while(|number| *number <= to + 1e-9 * step).collect(), digits)
}

/// `value` with this many digits after the point, and never a zero with a sign.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| matches!(c, '0' | '.')) => rest.to_owned(),
        _ => text,
    }
}

/// A number of an axis: an exponent if plain digits would be too long.
pub(super) fn axis_number(value: f64, digits: usize) -> String {
    if digits > 4 || value.abs() >= 1e6 { Exponent(value).to_string() } else { fixed(value, digits) }
}

/// At most three digits and an exponent.
struct Exponent(f64);

impl std::fmt::Display for Exponent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2e}", self.0);
        let (number, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let number = number.trim_end_matches('0').trim_end_matches('.');
        if exponent == "0" {
            f.write_str(if number.is_empty() { "0" } else { number })
        } else {
            write!(f, "{number}e{exponent}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Result;

    fn places(count: usize, first: usize, cell: f32) -> Result<Vec<usize>> {
        let axis = Axis::new(&Letters::new()?, (count, cell), None, |i| first + i, |i| format!("t{i}"));
        Ok(axis.labels.into_iter().map(|(i, _)| i).collect())
    }

    #[test]
    fn there_are_as_many_labels_as_have_room() -> Result<()> {
        assert_eq!(places(3, 4, 40.0)?, [0, 1, 2]);
        assert_eq!(places(4, 0, 12.0)?, [0, 1, 2, 3]);
        assert_eq!(places(5, 1, 11.0)?, [1, 3]);
        assert_eq!(places(300, 5, 3.5)?[..3], [0, 5, 10]);
        assert_eq!(places(1024, 0, 1.0)?.len(), 1024usize.div_ceil(20));
        assert_eq!(places(1024, 7, 1e-9)?, [0; 0]);
        Ok(())
    }

    #[test]
    fn short_labels_of_wide_columns_stay_flat() -> Result<()> {
        let letters = Letters::new()?;
        let axis = |cell, label: &str| Axis::new(&letters, (3, cell), None, |i| i, |_| label.to_owned());
        assert!(axis(40.0, "12").flat && !axis(40.0, "Capulet").flat && !axis(20.0, "12").flat);
        let cut = axis(40.0, &"y".repeat(10_000)).longest;
        assert!(cut <= LONGEST && cut > LONGEST - 10.0, "{cut}");
        Ok(())
    }

    #[test]
    fn its_numbers_stand_beside_their_colors() -> Result<()> {
        for has_nan in [false, true] {
            let bar = ColorBar::of_weights("weight", has_nan);
            let letters = Letters::new()?;
            for height in [bar.least_height(&letters), 300.0, 2000.0] {
                let letters = Letters::new()?;
                let room = bar.room(&letters);
                let mut scene = Scene::new(letters, (100.0 + room, height + 40.0), "")?;
                bar.draw(&mut scene, (100.0, 20.0), height);
                scene.assert_legible(false);
                let texts = scene.texts();
                assert!(texts.len() >= 6 && texts.iter().any(|(text, _)| *text == "weight"));
                assert_eq!(texts.iter().any(|(text, _)| *text == "NaN"), has_nan);
                let bar_height = (height - bar.below()).min(TALLEST);
                for (text, (_, top, _, bottom)) in &texts {
                    let Some(weight) = text.parse::<f32>().ok().filter(|weight| !weight.is_nan()) else {
                        continue;
                    };
                    let middle = 20.0 + (1.0 - level(weight).unwrap()) * bar_height;
                    assert!((f32::midpoint(*top, *bottom) - middle).abs() < 2.0, "{text} of {height}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn they_are_round_and_cover_the_range() {
        let texts = |from: f64, to: f64, most: usize| {
            let (numbers, digits) = round_numbers(from, to, most);
            numbers.into_iter().map(|n| axis_number(n, digits)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(texts(0.0, 1.0, 5), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(texts(1.0, 100.0, 8), "20 40 60 80 100");
        assert_eq!(texts(2.93, 3.01, 8), "2.93 2.94 2.95 2.96 2.97 2.98 2.99 3.00 3.01");
        assert_eq!(texts(-0.07, 0.07, 4), "-0.05 0.00 0.05");
        assert_eq!(texts(-2e-7, 2e-7, 4), "-2e-7 -1e-7 0 1e-7 2e-7");
        assert_eq!(texts(0.0, 3e30, 3), "0 1e30 2e30 3e30");
        assert_eq!(texts(5.0, 5.0, 8), "");
        assert_eq!(texts(f64::NAN, 5.0, 8), "");
        assert_eq!((fixed(-0.001, 2), fixed(-0.006, 2)), ("0.00".into(), "-0.01".into()));
    }
}
