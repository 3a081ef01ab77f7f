//! One head's weights: a row and a column for each token, and a color bar.

use super::axes::{AXIS_NAME, AXIS_ROOM, Axis, ColorBar, MARGIN};
use super::frame::Frame;
use super::letters::Letters;
use super::scene::{Anchor, Cells, NOT_A_NUMBER, Scene};
use crate::palette::{level, rgb};
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
/// long to label every token, every tenth, hundredth or so has a label. No pixel stands for more than one weight, unless the
/// frame has a width with too few of them: then its color is the mean of theirs.
///
/// In SVG and PDF, text can be searched and selected.
///
/// # Shapes
/// `weights` (T, S), `queries` T tokens, `keys` S tokens -> the bytes of a file
///
/// # Errors
/// When `weights` is not of rank 2, has no query or more queries than keys, the numbers of tokens differ from its rows
/// and columns, or the picture cannot be drawn.
pub fn head_picture(frame: &Frame, weights: &Tensor, queries: &[String], keys: &[String]) -> Result<Vec<u8>> {
    frame.write(1, |_, room| body(room, &OF_HEAD, weights, queries, keys))
}

/// Attention rollout as a picture, in the colors of [`head_picture`]: row i has how much of each token reaches position i.
///
/// # Shapes
/// `rollout` (T, T), `tokens` T tokens -> the bytes of a file
///
/// # Errors
/// Same as [`head_picture`].
pub fn rollout_picture(frame: &Frame, rollout: &Tensor, tokens: &[String]) -> Result<Vec<u8>> {
    frame.write(1, |_, room| body(room, &OF_ROLLOUT, rollout, tokens, tokens))
}

/// The names of rows, columns and colors.
struct MapLabels {
    rows: &'static str,
    columns: &'static str,
    color: &'static str,
}

const OF_HEAD: MapLabels =
    MapLabels { rows: "queries: what attends", columns: "keys: what is attended to", color: "weight" };
const OF_ROLLOUT: MapLabels =
    MapLabels { rows: "positions", columns: "tokens: what reaches a position", color: "share" };

fn body(
    room: Option<f32>,
    words: &MapLabels,
    weights: &Tensor,
    queries: &[String],
    keys: &[String],
) -> Result<Scene> {
    let rows = lower_triangle::<f32>(weights, "head_picture")?;
    let t = queries.len();
    let s = keys.len();
    if weights.dims() != [t, s] {
        candle_core::bail!(
            "head_picture: weights have shape {:?}, with tokens for {t} queries and {s} keys",
            weights.dims()
        )
    }
    let letters = Letters::new()?;
    let axis = |tokens: &[String], first: usize, cell: f32| {
        let label = |i: usize| format!("{} {}", first + i, visible_token(&tokens[i]));
        Axis::new(&letters, (tokens.len(), cell), room, |i| first + i, label)
    };
    let side = |cell: f32| axis(queries, s - t, cell);
    let bar = ColorBar::of_weights(words.color, rows.iter().flatten().any(|weight| weight.is_nan()));
    let around = MARGIN + AXIS_ROOM + bar.room(&letters);
    let (side, cell) = if let Some(room) = room {
        Axis::filling(room - around, s, side)
    } else {
        let cell = (LONGEST / s).clamp(1, LARGEST) as f32;
        (side(cell), cell)
    };
    let top = axis(keys, 0, cell);
    let width = s as f32 * cell;
    let height = t as f32 * cell;
    let x = MARGIN + AXIS_ROOM + side.beside();
    let y = AXIS_ROOM + top.above();
    // An axis name may be longer than the weights are high or wide.
    let tall = height.max(bar.least_height(&letters));
    let wide = room.unwrap_or_else(|| {
        (x + width + bar.room(&letters)).max(x + letters.width(words.columns, AXIS_NAME.size) + MARGIN)
    });
    let across = x.min(wide - MARGIN - letters.width(words.columns, AXIS_NAME.size));
    let half = letters.width(words.rows, AXIS_NAME.size) / 2.0;
    let mut scene = Scene::new(letters, (wide, y + tall + MARGIN), "")?;
    scene.text(words.columns, (across, 16.0), AXIS_NAME);
    let name = AXIS_NAME.upward().anchor(Anchor::Middle);
    scene.text(words.rows, (MARGIN + 14.0, y + (height / 2.0).max(half)), name);

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
    use crate::picture::PictureFormat;
    use crate::picture::png::tests::{DecodedPng, decode, provenance};
    use crate::picture::png::whole;
    use crate::picture::scene::Mark;
    use crate::provenance::Provenance;
    use crate::text::tests::NASTY;
    use candle_core::{DType, Device};
    use serde_json::Value;

    fn scene(frame: &Frame, weights: &Tensor, queries: &[String], keys: &[String]) -> Result<Scene> {
        frame.scene(1, |_, room| body(room, &OF_HEAD, weights, queries, keys))
    }

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
            let frame = Frame::new(PictureFormat::Png, "a head", &provenance);
            let scene = scene(&frame, &weights, &tokens(3), &tokens(3))?;
            let Cells { x, y, width, .. } = *cells(&scene);
            assert_eq!(whole(width), 120);
            let DecodedPng { pixels, .. } = decode(&PictureFormat::Png.write(&scene, &provenance)?);
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
                let title = "z".repeat(5000);
                let frame = Frame::new(PictureFormat::Svg, &title, &long);
                for width in ["300px", "8.5cm", "17cm", "2000px"] {
                    let frame = frame.with_width(Some(width.parse().unwrap()));
                    let scene = scene(&frame, &weights, &queries, &keys)?;
                    scene.assert_legible(false);
                    assert_eq!(Some(scene.width.round()), frame.room().map(f32::ceil), "{width}");
                }
                let scene = scene(&frame, &weights, &queries, &keys)?;
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
        let frame = Frame::new(PictureFormat::Svg, "", &long);
        scene(&frame, &weights, &wide, &wide)?.assert_legible(false);
        let frame = frame.with_width("8.5cm".parse().ok());
        scene(&frame, &weights, &wide, &wide)?.assert_legible(false);
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let weights = |t: usize, s: usize| Tensor::zeros((t, s), DType::F32, &Device::Cpu);
        for (t, s, queries, keys, said) in
            [(2, 3, 1, 3, "[2, 3]"), (3, 2, 3, 2, "3 queries"), (1, 20_000, 1, 20_000, "too large")]
        {
            let queries = tokens(queries);
            let keys = tokens(keys);
            for format in PictureFormat::ALL {
                let nothing = Provenance::default();
                let frame = Frame::new(format, "", &nothing);
                let drawn = head_picture(&frame, &weights(t, s)?, &queries, &keys);
                let error = drawn.unwrap_err().to_string();
                assert!(error.contains(said), "{error}");
            }
        }
        Ok(())
    }
}
