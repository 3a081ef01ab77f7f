//! All heads as small heat maps: one row per layer, one column per head.

use super::canvas::{FONT, INK, bitmap, checked_size, draw};
use super::caption::Caption;
use crate::palette::{level, rgb};
use crate::provenance::Provenance;
use crate::text::{fit, visible_text};
use crate::triangle::lower_triangle;
use candle_core::{Result, Tensor};
use plotters::prelude::{IntoFont, Text};
use plotters::style::TextStyle;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The side of a head's picture, in pixels.
const SIDE: usize = 120;
const GAP: usize = 8;
const LEFT: usize = 90;
const TOP: usize = 90;

/// All heads of a model as one PNG. Add one layer at a time, so that memory never has to hold more than one layer's
/// weights.
///
/// Each head is a square with the first query and key at its top left and colours as in
/// [`head_png`](super::head_png). If a pixel stands for several weights, its level on the scale is the mean of the levels
/// of the visible ones: the mean of the weights' square roots, not the root of their mean, so that
/// one large weight among zeros does not look like many small ones. It is grey if one of them is NaN, and white
/// if none is visible.
#[derive(Debug, Default)]
pub struct HeadGrid {
    rows: Vec<(usize, Vec<Cell>)>,
}

#[derive(Debug)]
struct Cell {
    head: usize,
    /// RGB, (SIDE, SIDE)
    picture: Vec<u8>,
}

impl HeadGrid {
    /// Adds a row.
    ///
    /// # Shapes
    /// `weights` (H, T, S), `heads` the indices of these H heads in the model
    ///
    /// # Errors
    /// When the number of `heads` differs from that in `weights`, or `weights` has no query or more queries than keys.
    pub fn add(&mut self, layer: usize, heads: &[usize], weights: &Tensor) -> Result<()> {
        if weights.dims().first() != Some(&heads.len()) {
            candle_core::bail!(
                "head grid: weights of layer {layer} have shape {:?}, with {} heads named",
                weights.dims(),
                heads.len()
            )
        }
        let cell = |(i, &head)| Ok(Cell { head, picture: thumbnail(&weights.get(i)?)? });
        self.rows.push((layer, heads.iter().enumerate().map(cell).collect::<Result<_>>()?));
        Ok(())
    }

    /// The picture as the bytes of a file, with the caption of `provenance` below the title and its facts in a text
    /// chunk.
    ///
    /// # Errors
    /// When there is no head, or the picture cannot be drawn.
    pub fn finish(&self, title: &str, provenance: &Provenance) -> Result<Vec<u8>> {
        let columns = self.rows.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
        if columns == 0 {
            candle_core::bail!("head grid: there is no head to draw")
        }
        let place = |n: usize, from: usize| i32::try_from(from + n * (SIDE + GAP)).unwrap_or(i32::MAX);
        let caption = Caption::of(provenance);
        let top = TOP + caption.height();
        let size = checked_size(place(columns, LEFT).max(600), place(self.rows.len(), top))?;
        draw(size, provenance, |area| {
            let text = |size: i32| TextStyle::from((FONT, size).into_font()).color(&INK);
            area.draw(&Text::new(fit(&visible_text(title), 70), (16, 16), text(22)))?;
            caption.draw(area, (16, 46))?;
            let middle = i32::try_from(SIDE / 2).unwrap_or_default();
            let side = text(16).pos(Pos::new(HPos::Right, VPos::Center));
            let above = text(16).pos(Pos::new(HPos::Center, VPos::Bottom));
            for (row, (layer, cells)) in self.rows.iter().enumerate() {
                let y = place(row, top);
                let label =
                    Text::new(format!("layer {layer}"), (place(0, LEFT) - 8, y + middle), side.clone());
                area.draw(&label)?;
                for (column, cell) in cells.iter().enumerate() {
                    let x = place(column, LEFT);
                    if row == 0 {
                        let label =
                            Text::new(format!("head {}", cell.head), (x + middle, y - 6), above.clone());
                        area.draw(&label)?;
                    }
                    bitmap(area, (x, y), (SIDE, SIDE), 1, &cell.picture)?;
                }
            }
            Ok(())
        })
    }
}

/// A head in SIDE by SIDE pixels. Each pixel shows the mean level of the weights that it covers, or is part of the
/// square of a single one.
fn thumbnail(weights: &Tensor) -> Result<Vec<u8>> {
    let rows = lower_triangle::<f32>(weights, "head grid")?;
    let (t, s) = weights.dims2()?;
    let range = |pixel: usize, n: usize| {
        let start = pixel * n / SIDE;
        start..((pixel + 1) * n / SIDE).max(start + 1)
    };
    let mut picture = Vec::with_capacity(SIDE * SIDE * 3);
    for y in 0..SIDE {
        for x in 0..SIDE {
            let keys = range(x, s);
            let seen = rows[range(y, t)].iter().flat_map(|row| row.iter().take(keys.end).skip(keys.start));
            let (mut sum, mut count) = (0.0, 0);
            for weight in seen {
                sum += level(*weight).unwrap_or(f32::NAN);
                count += 1;
            }
            let (r, g, b) = match count {
                0 => (255, 255, 255),
                _ if sum.is_nan() => (160, 160, 160),
                _ => rgb(sum / count as f32),
            };
            picture.extend([r, g, b]);
        }
    }
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::png::canvas::tests::{decode, provenance};
    use candle_core::Device;
    use serde_json::Value;

    #[test]
    fn every_head_is_in_its_place() -> Result<()> {
        // Head h of layer l puts all weight on the key 0, 1 or 2 tokens back.
        let back = |n: usize| {
            let one = |(i, j): (usize, usize)| if j == i.saturating_sub(n) { 1f32 } else { 0. };
            Tensor::from_iter((0..16).map(|i| one((i / 4, i % 4))), &Device::Cpu)?.reshape((4, 4))
        };
        let mut grid = HeadGrid::default();
        grid.add(3, &[0, 5], &Tensor::stack(&[back(0)?, back(1)?], 0)?)?;
        grid.add(4, &[0, 5], &Tensor::stack(&[back(2)?, back(0)?], 0)?)?;
        for (caption, down) in [("", 0), ("what made it", super::super::caption::HEIGHT)] {
            let picture = decode(&grid.finish("all heads", &provenance(caption, Value::Null))?);
            assert_eq!(picture.height, TOP + down + 2 * (SIDE + GAP));
            let cell = |row: usize, column: usize, i: usize, j: usize| {
                let at = |n: usize, from: usize, k: usize| from + n * (SIDE + GAP) + k * SIDE / 4 + SIDE / 8;
                (picture.pixels)(at(column, LEFT, j), at(row, TOP + down, i))
            };
            for (row, column, n) in [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 0)] {
                for i in 0..4usize {
                    for j in 0..=i {
                        let level = if j == i.saturating_sub(n) { 1.0 } else { 0.0 };
                        assert_eq!(cell(row, column, i, j), rgb(level), "{row} {column} {i} {j}");
                    }
                    assert!((i + 1..4).all(|j| cell(row, column, i, j) == (255, 255, 255)));
                }
            }
        }
        Ok(())
    }

    /// The colour at x, y of a head with these weights.
    fn pixel(picture: &[u8], x: usize, y: usize) -> (u8, u8, u8) {
        let pixel = &picture[(y * SIDE + x) * 3..];
        (pixel[0], pixel[1], pixel[2])
    }

    #[test]
    fn a_pixel_of_many_weights_has_the_mean_of_their_levels() -> Result<()> {
        // Four by four weights per pixel; every fourth is 1, all others are 0.
        let t = 4 * SIDE;
        let weights =
            Tensor::from_iter((0..t * t).map(|n| if n % 4 == 0 { 1f32 } else { 0. }), &Device::Cpu)?;
        let picture = thumbnail(&weights.reshape((t, t))?)?;
        let mean_of_levels = rgb(0.25);
        let level_of_mean = rgb(level(0.25).unwrap());
        assert_ne!(mean_of_levels, level_of_mean, "the two rules are told apart");
        for (x, y) in [(0, 1), (0, SIDE - 1), (50, 70), (SIDE - 2, SIDE - 1)] {
            assert_eq!(pixel(&picture, x, y), mean_of_levels, "{x}, {y}");
        }
        // On the diagonal the four queries see 1 + 2 + 3 + 4 keys, and the first of each four is the 1.
        assert_eq!(pixel(&picture, 9, 9), rgb(0.4));
        assert_eq!(pixel(&picture, SIDE - 1, 0), (255, 255, 255));
        Ok(())
    }

    #[test]
    fn one_weight_that_is_not_a_number_makes_its_pixel_grey() -> Result<()> {
        let t = 2 * SIDE;
        let weights = (0..t * t).map(|n| if n == 100 * t + 21 { f32::NAN } else { 0.25 });
        let picture = thumbnail(&Tensor::from_iter(weights, &Device::Cpu)?.reshape((t, t))?)?;
        assert_eq!(pixel(&picture, 10, 50), (160, 160, 160));
        assert!(
            [(9, 50), (11, 50), (10, 49), (10, 51)].iter().all(|&(x, y)| pixel(&picture, x, y) == rgb(0.5))
        );
        Ok(())
    }

    #[test]
    fn no_heads_and_heads_without_a_name_are_refused() -> Result<()> {
        let weights = Tensor::full(0.25f32, (2, 3, 3), &Device::Cpu)?;
        assert!(HeadGrid::default().finish("", &Provenance::default()).is_err());
        assert!(HeadGrid::default().add(0, &[1], &weights).is_err());
        Ok(())
    }
}
