//! The numbers of a map in their cells: the color of each, and its text where there is room.

use super::axes::{axis_number, fixed, round_numbers};
use super::letters::Letters;
use super::scene::NOT_A_NUMBER;
use crate::palette::{Rgb, diverging};

/// The sizes of the numbers in cells.
const LARGE: f32 = 13.0;
const MEDIUM: f32 = 10.0;
const SMALL: f32 = 8.0;
/// Around a number in its cell.
const PAD: f32 = 2.0;

/// The scale of the colors.
pub(super) struct Scale {
    /// The number where the scale begins, as a share of its end.
    pub(super) start: f32,
    end: f32,
    /// The largest number, whatever its sign.
    pub(super) largest: f32,
    pub(super) has_nan: bool,
}

impl Scale {
    /// The scale of these numbers, up to `end` or to the largest of them.
    pub(super) fn new(values: &[f32], end: Option<f32>, from_zero: bool) -> Self {
        let finite = || values.iter().filter(|value| value.is_finite());
        let largest = finite().map(|value| value.abs()).fold(0.0, f32::max);
        let end = end.filter(|end| end.is_finite()).unwrap_or(largest);
        // Without any number but 0, all scales are the same.
        let end = if end > 0.0 { end } else { 1.0 };
        let start = if from_zero { 0.0 } else { -1.0 };
        Self { start, end, largest, has_nan: finite().count() < values.len() }
    }

    /// Round numbers for the color bar, each with its level on it.
    pub(super) fn numbers(&self) -> Vec<(f32, String)> {
        let first = f64::from(self.start * self.end);
        let last = f64::from(self.end);
        let (marks, digits) = round_numbers(first, last, 6);
        let number = |mark: f64| {
            #[allow(clippy::cast_possible_truncation)] // between 0 and 1
            let level = ((mark - first) / (last - first)) as f32;
            (level, axis_number(mark, digits))
        };
        marks.into_iter().map(number).collect()
    }

    pub(super) fn color(&self, value: f32) -> Rgb {
        if value.is_finite() { diverging(value / self.end) } else { NOT_A_NUMBER }
    }
}

/// The numbers as they are printed in cells of this size, and the size of the letters; `None` if there is no room for
/// two digits of the largest number.
pub(super) fn printed(
    values: &[f32],
    most: f32,
    (width, height): (f32, f32),
    letters: &Letters,
) -> Option<(Vec<String>, f32)> {
    #[allow(clippy::cast_possible_truncation)] // between -45 and 38
    let before = most.log10().floor() as i32 + 1; // digits before the point, or zeros after it below 0
    for (significant, least) in [(3, MEDIUM), (2, SMALL)] {
        let digits = usize::try_from((significant - before).max(0)).ok().filter(|digits| *digits <= 4);
        let Some(digits) = digits else { continue };
        let texts: Vec<String> = values.iter().map(|value| in_cell(*value, digits)).collect();
        let widest = texts.iter().map(|text| letters.width(text, 1.0)).fold(0.0, f32::max);
        let size = ((width - 2.0 * PAD) / widest).min((height - 2.0 * PAD) / 1.2).min(LARGE);
        if size >= least {
            return Some((texts, size));
        }
    }
    None
}

/// Without the zero before the point, which takes room and says nothing.
fn in_cell(value: f32, digits: usize) -> String {
    let text = fixed(f64::from(value), digits);
    let (sign, rest) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    rest.strip_prefix("0.").map_or_else(|| text.clone(), |rest| format!("{sign}.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Result;

    #[test]
    fn numbers_are_printed_where_they_fit() -> Result<()> {
        let letters = Letters::new()?;
        let print = |values: &[f32], most: f32, width: f32| {
            printed(values, most, (width, 30.0), &letters).map(|(texts, _)| texts.join(" "))
        };
        assert_eq!(print(&[0.5, -0.25, 0.125], 0.5, 60.0), Some(".500 -.250 .125".into()));
        assert_eq!(print(&[0.5, -0.25, 0.125], 0.5, 24.0), Some(".50 -.25 .12".into()));
        assert_eq!(print(&[0.5, -0.25], 0.5, 12.0), None);
        assert_eq!(print(&[0.005, -0.0025], 0.005, 60.0), Some(".0050 -.0025".into()), "two digits fit");
        assert_eq!(print(&[123.4, -5.0], 123.4, 60.0), Some("123 -5".into()));
        assert_eq!(print(&[1e-7], 1e-7, 60.0), None, "an exponent would not fit");
        assert_eq!(print(&[f32::INFINITY], 1.0, 60.0), Some("inf".into()));
        Ok(())
    }
}
