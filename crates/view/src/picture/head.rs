//! One head's weights: a row and a column for each token, and a color bar.

use super::format::PictureFormat;
use super::guides::{AXIS_NAME, AXIS_ROOM, Axis, ColorBar, Heading, MARGIN, NARROWEST};
use super::letters::Letters;
use super::scene::{Anchor, Cells, NOT_A_NUMBER, Scene};
use crate::palette::{level, rgb};
use crate::provenance::Provenance;
use crate::rows::lower_triangle;
use crate::text::visible_token;
use candle_core::{Result, Tensor};

/// The longest side of the weights in pixels, unless one pixel per weight needs more.
const LONGEST: usize = 1100;
/// The largest cell.
const LARGEST: usize = 40;

/// The weights of one head as a picture: queries down the side, keys along the top, each with its position, and a
/// color bar. Keys that a query cannot see are white, a NaN is gray.
///
/// Colors go from dark purple (0) to bright yellow (1) in viridis, by the square root of the weight. If a text is too
/// long to label every token, every tenth, hundredth or so has a label. No pixel stands for more than one weight.
///
/// The caption of `provenance` goes below the title, and its facts into the file's metadata. In SVG and PDF, text can
/// be searched and selected.
///
/// # Shapes
/// `weights` (T, S), `queries` T tokens, `keys` S tokens -> the bytes of a file
///
/// # Errors
/// When `weights` is not of rank 2, has no query or more queries than keys, the numbers of tokens differ from its rows
/// and columns, or the picture cannot be drawn.
pub fn head_picture(
    format: PictureFormat,
    title: &str,
    weights: &Tensor,
    queries: &[String],
    keys: &[String],
    provenance: &Provenance,
) -> Result<Vec<u8>> {
    format.write(&scene(title, weights, queries, keys, provenance)?, provenance)
}

fn scene(
    title: &str,
    weights: &Tensor,
    queries: &[String],
    keys: &[String],
    provenance: &Provenance,
) -> Result<Scene> {
    let rows = lower_triangle::<f32>(weights, "head_picture")?;
    let (t, s) = (queries.len(), keys.len());
    if weights.dims() != [t, s] {
        candle_core::bail!(
            "head_picture: weights have shape {:?}, with tokens for {t} queries and {s} keys",
            weights.dims()
        )
    }
    let letters = Letters::new()?;
    let cell = (LONGEST / s).clamp(1, LARGEST) as f32;
    let (width, height) = (s as f32 * cell, t as f32 * cell);
    let axis = |tokens: &[String], first: usize| {
        let label = |i: usize| format!("{} {}", first + i, visible_token(&tokens[i]));
        Axis::new(&letters, tokens.len(), cell, |i| first + i, label)
    };
    let (side, top) = (axis(queries, s - t), axis(keys, 0));
    let bar = ColorBar::of_weights(rows.iter().flatten().any(|weight| weight.is_nan()));
    let heading = Heading::new(title, provenance);
    let (x, y) = (MARGIN + AXIS_ROOM + side.beside(), heading.height() + AXIS_ROOM + top.above());
    // An axis name may be longer than the weights are high or wide.
    let (across, down) = ("keys: what is attended to", "queries");
    let tall = height.max(bar.least_height(&letters));
    let right = (x + width + bar.room(&letters)).max(x + letters.width(across, AXIS_NAME.size)) + MARGIN;
    let least = heading.width(&letters, NARROWEST);
    let mut scene = Scene::new(letters, (right.max(least), y + tall + MARGIN), heading.title())?;
    heading.draw(&mut scene);
    scene.text(across, (x, heading.height() + 16.0), AXIS_NAME);
    let name = AXIS_NAME.upward().anchor(Anchor::Middle);
    scene.text(down, (MARGIN + 14.0, y + (height / 2.0).max(30.0)), name);

    let color = |weight: &f32| level(*weight).map_or(NOT_A_NUMBER, rgb);
    let seen = rows
        .iter()
        .flat_map(|row| row.iter().map(|weight| Some(color(weight))).chain(std::iter::repeat(None)).take(s));
    scene.cells(Cells { x, y, width, height, columns: s, colors: seen.collect() });
    side.draw_beside(&mut scene, (x, y));
    top.draw_above(&mut scene, (x, y));
    bar.draw(&mut scene, (x + width, y), tall);
    Ok(scene)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::png::tests::{Picture, decode, provenance};
    use crate::picture::png::whole;
    use crate::picture::scene::Mark;
    use crate::text::tests::NASTY;
    use candle_core::{DType, Device};
    use serde_json::Value;

    fn tokens(n: usize) -> Vec<String> {
        (0..n).map(|i| format!(" t{i}\n")).collect()
    }

    /// The weights, which come before the color bar.
    fn cells(scene: &Scene) -> &Cells {
        let mut cells = scene.marks.iter().filter_map(|mark| match mark {
            Mark::Cells(cells) => Some(cells),
            _ => None,
        });
        cells.next().expect("cells")
    }

    #[test]
    fn each_cell_has_its_weights_color() -> Result<()> {
        let values = [[1f32, 9., 9.], [0.25, 0.75, 9.], [0., 0.01, f32::NAN]];
        let weights = Tensor::new(&values, &Device::Cpu)?;
        for caption in ["", "what made it"] {
            let provenance = provenance(caption, Value::Null);
            let scene = scene("a head", &weights, &tokens(3), &tokens(3), &provenance)?;
            let Cells { x, y, width, .. } = *cells(&scene);
            assert_eq!(whole(width), 120);
            let Picture { pixels, .. } = decode(&PictureFormat::Png.write(&scene, &provenance)?);
            for (i, row) in values.iter().enumerate() {
                for (j, weight) in row.iter().enumerate() {
                    let expected = match level(*weight) {
                        _ if j > i => (255, 255, 255),
                        Some(level) => rgb(level),
                        None => (160, 160, 160),
                    };
                    // The corners and the middle of a cell.
                    for (dx, dy) in [(0, 0), (39, 0), (20, 20), (0, 39), (39, 39)] {
                        let at = (whole(x) + j * 40 + dx, whole(y) + i * 40 + dy);
                        assert_eq!(pixels(at.0, at.1), expected, "weight {i}, {j}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn labels_never_overlap_and_stand_at_their_tokens() -> Result<()> {
        let hostile = |n: usize| (0..n).map(|i| NASTY[i % NASTY.len()].to_owned()).collect::<Vec<_>>();
        let long = provenance(&"z ".repeat(1000), Value::Null);
        for (t, s) in [(1, 1), (1, 12), (2, 2), (12, 12), (77, 77), (300, 300), (5, 300), (1024, 1024)] {
            let weights = Tensor::full(0.25f32, (t, s), &Device::Cpu)?;
            for (queries, keys) in [(tokens(t), tokens(s)), (hostile(t), hostile(s))] {
                let scene = scene(&"z".repeat(5000), &weights, &queries, &keys, &long)?;
                scene.assert_legible(false);
                let cells = cells(&scene);
                let cell = cells.width / s as f32;
                assert!(cell >= 1.0 && whole(cells.height) == t * whole(cell));
                let mut labeled = 0;
                for (text, (left, _, right, bottom)) in scene.texts() {
                    let place = text.split_once(' ').and_then(|(place, _)| place.parse::<usize>().ok());
                    let Some(place) = place.filter(|_| bottom <= cells.y) else { continue };
                    let middle = cells.x + (place as f32 + 0.5) * cell;
                    assert!((f32::midpoint(left, right) - middle).abs() < 3.0, "{text}");
                    labeled += 1;
                }
                assert!(labeled >= s.min(12) && labeled as f32 * 10.0 <= cells.width, "{labeled} of {s}");
            }
        }
        let wide: Vec<String> = (0..77).map(|i| "漢🙂W".repeat(i)).collect();
        let weights = Tensor::full(0.25f32, (77, 77), &Device::Cpu)?;
        scene("", &weights, &wide, &wide, &long)?.assert_legible(false);
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let weights = |t: usize, s: usize| Tensor::zeros((t, s), DType::F32, &Device::Cpu);
        for (t, s, queries, keys, said) in
            [(2, 3, 1, 3, "[2, 3]"), (3, 2, 3, 2, "3 queries"), (1, 20_000, 1, 20_000, "too large")]
        {
            let (queries, keys) = (tokens(queries), tokens(keys));
            for format in PictureFormat::ALL {
                let drawn =
                    head_picture(format, "", &weights(t, s)?, &queries, &keys, &Provenance::default());
                let error = drawn.unwrap_err().to_string();
                assert!(error.contains(said), "{error}");
            }
        }
        Ok(())
    }
}
