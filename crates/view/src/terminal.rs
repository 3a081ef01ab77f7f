//! The abilities of a terminal, and the escape sequences that color a cell.

use crate::palette::{Rgb, cube, level, rgb, wants_black};
use std::fmt::Write;

/// The narrowest terminal that the views support, in columns.
pub const MIN_WIDTH: usize = 40;

/// Gray from a weight of 0 to 1. Each takes one column.
const SHADES: [&str; 5] = [" ", "░", "▒", "▓", "█"];

/// The colors of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Color {
    /// Only text, without escape sequences: for pipes, files and `NO_COLOR`.
    #[default]
    Plain,
    /// The 256 colors that nearly every terminal has (`TERM=*-256color`).
    Ansi256,
    /// 24-bit colors (`COLORTERM=truecolor`).
    TrueColor,
}

/// The room and the colors that a view may use: start with [`Style::default`] and change what differs.
///
/// ```
/// use gpt2_view::{Color, Style};
///
/// let style = Style::default().with_color(Color::Ansi256).with_width(120);
/// assert_eq!((style.width, style.max_rows), (120, 40));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Style {
    /// The colors.
    pub color: Color,
    /// The terminal's width in columns; less than [`MIN_WIDTH`] counts as that.
    pub width: usize,
    /// The most rows of tokens that a heat map shows; less than 3 counts as 3.
    pub max_rows: usize,
    /// The most columns that a key takes in a heat map, with the space before it; if keys do not fit, they shrink to one
    /// column, and shades replace the numbers. `None`: as many columns as the tokens need, and always numbers.
    pub max_cell: Option<usize>,
}

impl Default for Style {
    /// Plain text, 80 columns, 40 rows.
    fn default() -> Self {
        Self { color: Color::Plain, width: 80, max_rows: 40, max_cell: None }
    }
}

impl Style {
    /// Sets the colors.
    #[must_use]
    pub fn with_color(self, color: Color) -> Self {
        Self { color, ..self }
    }

    /// Sets the width of the terminal, in columns.
    #[must_use]
    pub fn with_width(self, width: usize) -> Self {
        Self { width, ..self }
    }

    /// Limits a heat map to `max_rows` rows of tokens.
    #[must_use]
    pub fn with_max_rows(self, max_rows: usize) -> Self {
        Self { max_rows, ..self }
    }

    /// Limits each key of a heat map to `max_cell` columns.
    #[must_use]
    pub fn with_max_cell(self, max_cell: usize) -> Self {
        Self { max_cell: Some(max_cell), ..self }
    }

    /// The number of usable columns.
    pub(crate) fn columns(&self) -> usize {
        self.width.max(MIN_WIDTH)
    }
}

/// `text` on the color of `weight`, or unchanged if the style has no color or the weight is NaN.
pub(crate) fn paint(text: &str, weight: f32, color: Color) -> String {
    let Some(level) = level(weight) else { return text.to_owned() };
    match color {
        Color::Plain => text.to_owned(),
        Color::Ansi256 => {
            let (index, looks) = cube(level);
            // 16 and 231 are the cube's black and white; the first sixteen colors depend on the theme.
            let ink = if wants_black(looks) { 16 } else { 231 };
            format!("\x1b[38;5;{ink};48;5;{index}m{text}\x1b[0m")
        }
        Color::TrueColor => {
            let background = rgb(level);
            let ink = if wants_black(background) { (0, 0, 0) } else { (255, 255, 255) };
            format!("\x1b[38;2;{};48;2;{}m{text}\x1b[0m", code(ink), code(background))
        }
    }
}

fn code((red, green, blue): Rgb) -> String {
    format!("{red};{green};{blue}")
}

/// `columns` of the color of `weight`, or of a shade of gray if the style has no color; `?` for NaN.
pub(crate) fn shade(weight: f32, columns: usize, color: Color) -> String {
    let Some(level) = level(weight) else { return "?".repeat(columns) };
    if color != Color::Plain {
        return paint(&" ".repeat(columns), weight, color);
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an index between 0 and 4
    let index = (level * (SHADES.len() - 1) as f32).round() as usize;
    SHADES[index.min(SHADES.len() - 1)].repeat(columns)
}

/// A line that shows which color stands for which weight; empty if the style has no color.
pub(crate) fn legend(color: Color) -> Option<String> {
    if color == Color::Plain {
        return None;
    }
    let mut line = "weight ".to_owned();
    for weight in [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0] {
        let _ = write!(line, "{}", paint(&format!("{:>4}", compact(weight)), weight, color));
    }
    Some(line)
}

/// A weight in three columns: `.53`, `1.0`, `0` for exactly 0, `.00` for almost 0.
///
/// Other numbers are not weights and may take more columns: `nan`, `inf`, `-.20`, `12.5`.
pub(crate) fn compact(weight: f32) -> String {
    if weight == 0.0 {
        return "0".to_owned();
    }
    if !weight.is_finite() {
        return weight.to_string().to_lowercase();
    }
    let text = format!("{weight:.2}");
    if let Some(digits) = text.strip_prefix("0.") {
        format!(".{digits}")
    } else if let Some(digits) = text.strip_prefix("-0.") {
        format!("-.{digits}")
    } else {
        format!("{weight:.1}")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `text` without the sequences of [`paint`].
    pub(crate) fn unpainted(text: &str) -> String {
        let mut parts = text.split("\x1b[");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (codes, rest) = part.split_once('m').expect("a sequence ends with m");
            assert!(codes.bytes().all(|b| b.is_ascii_digit() || b == b';'), "{codes:?}");
            out.push_str(rest);
        }
        out
    }

    #[test]
    fn weights_are_short() {
        for (weight, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.001, ".00"),
            (0.534, ".53"),
            (0.25, ".25"),
            (0.9999, "1.0"),
            (1.0, "1.0"),
            (f32::NAN, "nan"),
            (f32::INFINITY, "inf"),
            (f32::NEG_INFINITY, "-inf"),
            (-0.2, "-.20"),
            (12.53, "12.5"),
        ] {
            assert_eq!(compact(weight), text);
        }
    }

    #[test]
    fn color_is_only_around_the_text() {
        assert_eq!(paint("x", 1.0, Color::Plain), "x");
        assert_eq!(paint("x", f32::NAN, Color::TrueColor), "x");
        assert_eq!(paint("x", 1.0, Color::Ansi256), "\x1b[38;5;16;48;5;226mx\x1b[0m");
        assert_eq!(paint("x", 0.0, Color::TrueColor), "\x1b[38;2;255;255;255;48;2;68;1;84mx\x1b[0m");
    }

    #[test]
    fn the_legend_fits_the_narrowest_terminal() {
        assert_eq!(legend(Color::Plain), None);
        for color in [Color::Ansi256, Color::TrueColor] {
            let line = unpainted(&legend(color).unwrap_or_default());
            assert_eq!(line, "weight    0 .01 .05 .10 .25 .50 1.0");
            assert!(line.len() <= MIN_WIDTH);
        }
    }
}
