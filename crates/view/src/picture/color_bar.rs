//! What the colors of a heat map mean: a bar with numbers and a name, to the right of the map.

use super::letters::Letters;
use super::scene::{Anchor, Cells, GREY, INK, NOT_A_NUMBER, Scene, Style};
use crate::palette::{Rgb, level, rgb};

/// Between the map and the bar.
const MARGIN: f32 = 28.0;
const WIDTH: f32 = 16.0;
const NUMBER: Style = Style::new(14.0, INK);
const NAME: Style = Style::new(14.0, GREY);
/// The shortest and the tallest bar.
const SHORTEST: f32 = 160.0;
const TALLEST: f32 = 400.0;
/// A line of text.
const LINE: f32 = 18.0;

pub(super) struct ColorBar<'a> {
    /// What the numbers are.
    pub(super) name: String,
    /// The level on the scale of each number, 0 to 1; where two have no room, the first of them counts.
    pub(super) numbers: Vec<(f32, String)>,
    pub(super) color: &'a dyn Fn(f32) -> Rgb,
    /// Whether to explain the color of what is not a number.
    pub(super) has_nan: bool,
}

impl ColorBar<'static> {
    /// The scale of attention weights.
    pub(super) fn of_weights(has_nan: bool) -> Self {
        let numbers = [1.0, 0.0, 0.5, 0.25, 0.1, 0.75, 0.01];
        let number = |weight: f32| (level(weight).unwrap_or(0.0), weight.to_string());
        Self { name: "weight".to_owned(), numbers: numbers.map(number).into(), color: &rgb, has_nan }
    }
}

impl ColorBar<'_> {
    /// The least height of a map that has the bar beside it.
    pub(super) fn least_height(&self, letters: &Letters) -> f32 {
        let name = letters.width(&self.name, NAME.size).ceil();
        name.clamp(SHORTEST, TALLEST) + self.below()
    }

    /// The room of the explanation of what is not a number.
    fn below(&self) -> f32 {
        if self.has_nan { 2.0 * LINE } else { 0.0 }
    }

    /// The room to the right of the map.
    pub(super) fn room(&self, letters: &Letters) -> f32 {
        let widths = self.numbers.iter().map(|(_, number)| letters.width(number, NUMBER.size));
        MARGIN + WIDTH + 8.0 + widths.fold(24.0, f32::max).ceil() + 34.0
    }

    /// Draws it to the right of a map of this `height` with its upper right corner at (`x`, `y`).
    pub(super) fn draw(&self, scene: &mut Scene, (x, y): (f32, f32), height: f32) {
        let height = (height - self.below()).min(TALLEST).floor();
        let (x, steps) = (x + MARGIN, height / 2.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // up to half of TALLEST
        let colors = (0..steps as usize).map(|i| Some((self.color)(1.0 - i as f32 / (steps - 1.0))));
        scene.cells(Cells { x, y, width: WIDTH, height, columns: 1, colors: colors.collect() });
        let mut drawn: Vec<f32> = vec![];
        for (level, number) in &self.numbers {
            let middle = y + (1.0 - level) * height;
            if drawn.iter().all(|other| (middle - other).abs() >= LINE) {
                let tick = [(x + WIDTH, middle), (x + WIDTH + 4.0, middle)];
                scene.line(tick, 1.0, INK);
                scene.text(number, (x + WIDTH + 8.0, middle + NUMBER.to_baseline()), NUMBER);
                drawn.push(middle);
            }
        }
        if self.has_nan {
            let (y, side) = (y + height + LINE, 0.75 * LINE);
            let colors = vec![Some(NOT_A_NUMBER)];
            scene.cells(Cells { x, y, width: WIDTH, height: side, columns: 1, colors });
            scene.text("NaN", (x + WIDTH + 8.0, y + side / 2.0 + NUMBER.to_baseline()), NUMBER);
        }
        let right = x - MARGIN + self.room(&scene.letters) - 12.0;
        let name = scene.letters.cut(&self.name, NAME.size, height);
        scene.text(name, (right, y + height / 2.0), NAME.upward().anchor(Anchor::Middle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Result;

    #[test]
    fn its_numbers_stand_beside_their_colors() -> Result<()> {
        for has_nan in [false, true] {
            let bar = ColorBar::of_weights(has_nan);
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
}
