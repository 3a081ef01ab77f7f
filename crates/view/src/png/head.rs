//! One head's weights: a row and a column for each token, and a colour bar.

use super::canvas::{Area, FONT, GREY, INK, Outcome, bitmap, checked_size, draw};
use super::caption::Caption;
use crate::palette::{level, rgb};
use crate::provenance::Provenance;
use crate::text::{display_width, fit, visible_token};
use crate::triangle::lower_triangle;
use candle_core::Result;
use plotters::prelude::{IntoFont, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontTransform, TextStyle};

/// The longest side of the weights in pixels, unless one pixel per weight needs more.
const LONGEST: usize = 1000;
/// The largest cell.
const LARGEST: usize = 40;
/// A cell of this side has room for a line of text.
const LEGIBLE: usize = 13;
/// The longest label, in characters.
const LABEL: usize = 16;
/// The margins around the weights, without the labels on the left and on top: axis names, title, colour bar.
const LEFT: i32 = 44;
const TOP: i32 = 92;
const RIGHT: i32 = 110;
const BOTTOM: i32 = 30;
/// About the width of a letter in a label.
const LETTER: i32 = 8;

/// The weights of one head as a PNG: queries down the side, keys along the top, each with its position, and a
/// colour bar. Keys that a query cannot see are white, a NaN is grey.
///
/// Colours go from dark purple (0) to bright yellow (1) in viridis, by the square root of the weight. If a text is too
/// long to label every token, every tenth, hundredth or so has a label. No pixel stands for more than one weight.
///
/// The caption of `provenance` goes below the title, and its facts into a text chunk.
///
/// # Shapes
/// `weights` (T, S), `queries` T tokens, `keys` S tokens -> the bytes of a file
///
/// # Errors
/// When `weights` is not of rank 2, has no query or more queries than keys, the numbers of tokens differ from its rows
/// and columns, or the picture cannot be drawn.
pub fn head_png(
    title: &str,
    weights: &candle_core::Tensor,
    queries: &[String],
    keys: &[String],
    provenance: &Provenance,
) -> Result<Vec<u8>> {
    let rows = lower_triangle::<f32>(weights, "head_png")?;
    let (t, s) = (queries.len(), keys.len());
    if weights.dims() != [t, s] {
        candle_core::bail!(
            "head_png: weights have shape {:?}, with tokens for {t} queries and {s} keys",
            weights.dims()
        )
    }
    let cell = (LONGEST / s).clamp(1, LARGEST);
    let pixels = |n: usize| i32::try_from(n * cell).unwrap_or(i32::MAX);
    let (width, height) = (pixels(s), pixels(t).max(200));
    let (sides, tops) = (labels(queries, s - t, cell), labels(keys, 0, cell));
    let caption = Caption::of(provenance);
    let down = i32::try_from(caption.height()).unwrap_or_default();
    let (left, upper) = (LEFT + room(&sides), TOP + down + room(&tops));
    let size = checked_size((left + width + RIGHT).max(500), upper + height + BOTTOM)?;
    draw(size, provenance, |area| {
        let text = |size: i32| TextStyle::from((FONT, size).into_font()).color(&INK);
        area.draw(&Text::new(fit(&crate::visible_text(title), 90), (20, 16), text(24)))?;
        caption.draw(area, (20, 46))?;
        area.draw(&Text::new("keys: what is attended to", (left, 52 + down), text(16)))?;
        let turned = TextStyle::from((FONT, 16).into_font().transform(FontTransform::Rotate270)).color(&INK);
        area.draw(&Text::new("queries", (10, upper + 60), turned))?;

        let mut picture = vec![255; s * t * 3];
        for (row, line) in rows.iter().zip(picture.chunks_exact_mut(s * 3)) {
            for (weight, pixel) in row.iter().zip(line.chunks_exact_mut(3)) {
                let (r, g, b) = level(*weight).map_or((160, 160, 160), rgb);
                pixel.copy_from_slice(&[r, g, b]);
            }
        }
        bitmap(area, (left, upper), (s, t), cell, &picture)?;

        let side = text(14).pos(Pos::new(HPos::Right, VPos::Center));
        for (i, label) in sides {
            area.draw(&Text::new(label, (left - 6, upper + pixels(i) + pixels(1) / 2), side.clone()))?;
        }
        let font = (FONT, 14).into_font().transform(FontTransform::Rotate270);
        let top = TextStyle::from(font).color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        for (j, label) in tops {
            area.draw(&Text::new(label, (left + pixels(j) + pixels(1) / 2, upper - 6), top.clone()))?;
        }
        colour_bar(area, (left + width + 30, upper), height.min(400))
    })
}

/// Positions and tokens, as many as fit, with the index that each belongs to.
fn labels(tokens: &[String], first: usize, cell: usize) -> Vec<(usize, String)> {
    // 1, 2, 5, 10, 20, .. tokens from one label to the next.
    let steps = (0u32..).flat_map(|power| [1, 2, 5].map(|n| n * 10usize.pow(power)));
    let step = steps.take(18).find(|step| step * cell >= LEGIBLE).unwrap_or(usize::MAX);
    let place = |i: usize| (first + i).is_multiple_of(step);
    let label = |i: usize| (i, format!("{} {}", first + i, fit(&visible_token(&tokens[i]), LABEL)));
    (0..tokens.len()).filter(|&i| place(i)).map(label).collect()
}

/// The width of the longest of these labels, in pixels.
fn room(labels: &[(usize, String)]) -> i32 {
    let longest = labels.iter().map(|(_, label)| display_width(label)).max().unwrap_or(0);
    LETTER * i32::try_from(longest).unwrap_or(i32::MAX / LETTER)
}

/// The scale, from 1 at the top to 0.
fn colour_bar(area: &Area, (x, y): (i32, i32), height: i32) -> Outcome {
    let steps = usize::try_from(height).unwrap_or(1);
    let mut picture = Vec::with_capacity(steps * 3);
    for i in 0..steps {
        let (r, g, b) = rgb(1.0 - i as f32 / (steps - 1).max(1) as f32);
        picture.extend([r, g, b].repeat(16));
    }
    bitmap(area, (x, y), (16, steps), 1, &picture)?;
    let style = TextStyle::from((FONT, 14).into_font()).color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    for mark in [1.0, 0.75, 0.5, 0.25, 0.1, 0.01, 0.0] {
        #[allow(clippy::cast_possible_truncation)] // within the bar
        let down = ((1.0 - level(mark).unwrap_or(0.0)) * height as f32) as i32;
        area.draw(&Text::new(format!("{mark}"), (x + 24, y + down), style.clone()))?;
    }
    let small = TextStyle::from((FONT, 13).into_font()).color(&GREY);
    area.draw(&Text::new("weight", (x, y - 22), small))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::png::canvas::tests::{Picture, decode, provenance};
    use candle_core::{DType, Device, Tensor};
    use serde_json::Value;

    fn tokens(n: usize) -> Vec<String> {
        (0..n).map(|i| format!(" t{i}\n")).collect()
    }

    #[test]
    fn each_cell_has_its_weights_colour() -> Result<()> {
        let values = [[1f32, 9., 9.], [0.25, 0.75, 9.], [0., 0.01, f32::NAN]];
        let weights = Tensor::new(&values, &Device::Cpu)?;
        for (caption, down) in [("", 0), ("what made it", super::super::caption::HEIGHT)] {
            let provenance = provenance(caption, Value::Null);
            let file = head_png("a head", &weights, &tokens(3), &tokens(3), &provenance)?;
            let Picture { pixels, .. } = decode(&file);
            for (i, row) in values.iter().enumerate() {
                for (j, weight) in row.iter().enumerate() {
                    let expected = match level(*weight) {
                        _ if j > i => (255, 255, 255),
                        Some(level) => rgb(level),
                        None => (160, 160, 160),
                    };
                    // The corners and the middle of a cell.
                    for (dx, dy) in [(0, 0), (39, 0), (20, 20), (0, 39), (39, 39)] {
                        let labels = usize::try_from(room(&[(0, "0 ·t0⏎".into())])).unwrap();
                        let upper = TOP as usize + down + labels;
                        let at = (LEFT as usize + labels + j * 40 + dx, upper + i * 40 + dy);
                        assert_eq!(pixels(at.0, at.1), expected, "weight {i}, {j}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn long_texts_have_fewer_labels_and_hostile_ones_are_drawn() -> Result<()> {
        assert_eq!(labels(&tokens(3), 4, 40).len(), 3);
        let places: Vec<usize> = labels(&tokens(300), 5, 3).iter().map(|(i, _)| *i).collect();
        assert_eq!(places[..3], [0, 5, 10]);
        assert_eq!(labels(&tokens(1024), 0, 1).len(), 1024usize.div_ceil(20));
        for (t, s) in [(1, 1), (2, 7), (1, 1500), (1100, 1100)] {
            let weights = Tensor::full(0.25f32, (t, s), &Device::Cpu)?;
            let file = head_png("", &weights, &tokens(t), &tokens(s), &Provenance::default())?;
            let Picture { width, height, .. } = decode(&file);
            assert!(width >= s && height >= t, "{t} x {s} in {width} x {height}");
        }
        let nasty: Vec<String> = ["\u{202e}x", "🙂🙂", "\0", &"y".repeat(10_000)].map(String::from).into();
        let weights = Tensor::full(0.25f32, (4, 4), &Device::Cpu)?;
        let provenance = provenance(&nasty.concat(), Value::Null);
        decode(&head_png(&"z".repeat(10_000), &weights, &nasty, &nasty, &provenance)?);
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let weights = |t: usize, s: usize| Tensor::zeros((t, s), DType::F32, &Device::Cpu);
        for (t, s, queries, keys, said) in
            [(2, 3, 1, 3, "[2, 3]"), (3, 2, 3, 2, "3 queries"), (1, 20_000, 1, 20_000, "too large")]
        {
            let (queries, keys) = (tokens(queries), tokens(keys));
            let drawn = head_png("", &weights(t, s)?, &queries, &keys, &Provenance::default());
            let error = drawn.unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        Ok(())
    }
}
