//! All heads as small heat maps: one row per layer, one column per head.

use super::axes::{Axis, ColorBar, MARGIN};
use super::frame::Frame;
use super::letters::Letters;
use super::scene::{Cells, NOT_A_NUMBER, Scene};
use crate::palette::{Rgb, level, rgb};
use crate::rows::lower_triangle;
use candle_core::{Result, Tensor};

/// The side of a head's picture in cells at most, and in pixels, unless the frame has a width or there are few heads.
const SIDE: usize = 120;
/// So many heads beside one another have twice that side.
const FEW: usize = 8;
/// The part of a head's room that its picture takes; the rest is between two of them.
const FILLED: f32 = 0.9375;

/// All heads of a model as one picture. Add one layer at a time, so that memory never has to hold more than one layer's
/// weights.
///
/// Each head is a square with the first query and key at its top left and colors as in
/// [`head_picture`](super::head_picture). If a pixel stands for several weights, its level on the scale is the mean of the
/// levels of the visible ones: the mean of the weights' square roots, not the root of their mean, so that one large
/// weight among zeros does not look like many small ones. It is gray if one of them is NaN, and white if none is
/// visible.
#[derive(Debug, Default)]
pub struct HeadGrid {
    rows: Vec<(usize, Vec<HeadThumbnail>)>,
}

#[derive(Debug)]
struct HeadThumbnail {
    head: usize,
    thumbnail: Thumbnail,
}

impl HeadGrid {
    /// Adds a row.
    ///
    /// # Shapes
    /// `weights` (H, T, S), `heads` the indices of these H heads in the model
    ///
    /// # Errors
    /// When the number of `heads` differs from that in `weights`, the heads differ from those of the first row, whose
    /// names stand above all, or `weights` has no query or more queries than keys.
    pub fn add(&mut self, layer: usize, heads: &[usize], weights: &Tensor) -> Result<()> {
        if weights.dims().first() != Some(&heads.len()) {
            candle_core::bail!(
                "head grid: weights of layer {layer} have shape {:?}, with {} heads named",
                weights.dims(),
                heads.len()
            )
        }
        let named =
            |(_, row): &(usize, Vec<HeadThumbnail>)| row.iter().map(|one| one.head).eq(heads.iter().copied());
        if !self.rows.first().is_none_or(named) {
            candle_core::bail!("head grid: layer {layer} has other heads than the first row")
        }
        let head = |(i, &head): (usize, &usize)| {
            Ok(HeadThumbnail { head, thumbnail: Thumbnail::new(&weights.get(i)?)? })
        };
        self.rows.push((layer, heads.iter().enumerate().map(head).collect::<Result<_>>()?));
        Ok(())
    }

    /// The picture as the bytes of a file, with a color bar.
    ///
    /// # Errors
    /// When there is no head, or the picture cannot be drawn.
    pub fn finish(&self, frame: &Frame) -> Result<Vec<u8>> {
        frame.write(1, |_, room| self.body(room))
    }

    fn body(&self, room: Option<f32>) -> Result<Scene> {
        let Some((_, first)) = self.rows.first().filter(|(_, heads)| !heads.is_empty()) else {
            candle_core::bail!("head grid: there is no head to draw")
        };
        let letters = Letters::new()?;
        let mut heads = self.rows.iter().flat_map(|(_, heads)| heads);
        let bar = ColorBar::of_weights("weight", heads.any(|head| head.thumbnail.has_nan));
        let layers = |cell: f32| {
            let label = |i: usize| format!("layer {}", self.rows[i].0);
            Axis::new(&letters, (self.rows.len(), cell), room, |i| i, label)
        };
        let (beside, cell) = if let Some(room) = room {
            Axis::filling(room - MARGIN - bar.room(&letters), first.len(), layers)
        } else {
            let side = if first.len() <= FEW { 2 * SIDE } else { SIDE };
            (layers(side as f32 / FILLED), side as f32 / FILLED)
        };
        let name = |i: usize| format!("head {}", first[i].head);
        let above = Axis::new(&letters, (first.len(), cell), room, |i| i, name);
        let side = FILLED * cell;
        let gap = (1.0 - FILLED) * cell;
        let x = MARGIN + beside.beside();
        let y = above.above();
        let place = |n: usize, from: f32| from + n as f32 * cell;
        let right = place(first.len(), x);
        let tall = (place(self.rows.len(), 0.0) - gap).max(bar.least_height(&letters));
        let wide = room.unwrap_or(right + bar.room(&letters));
        let mut scene = Scene::new(letters, (wide, y + tall + MARGIN), "")?;
        bar.draw(&mut scene, (right, y), tall);
        beside.draw_beside(&mut scene, (x, y - gap / 2.0));
        above.draw_above(&mut scene, (x - gap / 2.0, y));
        for (row, (_, heads)) in self.rows.iter().enumerate() {
            for (column, HeadThumbnail { thumbnail, .. }) in heads.iter().enumerate() {
                let x = place(column, x);
                let y = place(row, y);
                let columns = thumbnail.columns;
                let colors = thumbnail.colors.clone();
                scene.cells(Cells { x, y, width: side, height: side, columns, colors });
            }
        }
        Ok(scene)
    }
}

/// A head in at most SIDE by SIDE cells.
#[derive(Debug)]
struct Thumbnail {
    columns: usize,
    /// Nothing where no weight is visible.
    colors: Vec<Option<Rgb>>,
    has_nan: bool,
}

impl Thumbnail {
    /// Each cell shows one weight, or the mean level of those that it covers.
    fn new(weights: &Tensor) -> Result<Self> {
        let rows = lower_triangle::<f32>(weights, "head grid")?;
        let (t, s) = weights.dims2()?;
        let height = t.min(SIDE);
        let width = s.min(SIDE);
        let mut has_nan = false;
        let mut colors = Vec::with_capacity(height * width);
        for y in 0..height {
            for x in 0..width {
                let keys = x * s / width..(x + 1) * s / width;
                let queries = &rows[y * t / height..(y + 1) * t / height];
                let seen = queries.iter().flat_map(|row| row.iter().take(keys.end).skip(keys.start));
                let (mut sum, mut count) = (0.0, 0);
                for weight in seen {
                    sum += level(*weight).unwrap_or(f32::NAN);
                    count += 1;
                }
                has_nan |= sum.is_nan();
                colors.push(match count {
                    0 => None,
                    _ if sum.is_nan() => Some(NOT_A_NUMBER),
                    _ => Some(rgb(sum / count as f32)),
                });
            }
        }
        Ok(Self { columns: width, colors, has_nan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::PictureFormat;
    use crate::picture::png::tests::{decode, provenance};
    use crate::picture::png::whole;
    use crate::picture::scene::Mark;
    use crate::provenance::Provenance;
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
        for (caption, width) in
            [("", None), ("what made it", None), ("", Some("1500px")), ("", Some("300px"))]
        {
            let provenance = provenance(caption, Value::Null);
            let width = width.map(|width: &str| width.parse().unwrap());
            let frame = Frame::new(PictureFormat::Png, "all heads", &provenance).with_width(width);
            let scene = frame.scene(1, |_, room| grid.body(room))?;
            scene.assert_legible(false);
            let heads: Vec<&Cells> = scene
                .marks
                .iter()
                .filter_map(|mark| match mark {
                    Mark::Cells(cells) if cells.columns == 4 => Some(cells),
                    _ => None,
                })
                .collect();
            assert_eq!(heads.len(), 4);
            assert!(width.is_some() || whole(heads[0].width) == 2 * SIDE);
            let texts = scene.texts();
            let picture = decode(&grid.finish(&frame)?);
            for (n, (cells, back)) in heads.into_iter().zip([0, 1, 2, 0]).enumerate() {
                let cell = |i: usize, j: usize| {
                    let at = |k: usize, from: f32| whole(from + (k as f32 + 0.5) * cells.width / 4.0);
                    (picture.pixels)(at(j, cells.x), at(i, cells.y))
                };
                for i in 0..4usize {
                    for j in 0..=i {
                        let level = if j == i.saturating_sub(back) { 1.0 } else { 0.0 };
                        assert_eq!(cell(i, j), rgb(level), "{n} {i} {j}");
                    }
                    assert!((i + 1..4).all(|j| cell(i, j) == (255, 255, 255)));
                }
                // Its names stand at the middles of its sides.
                let layer = ["layer 3", "layer 4"][n / 2];
                let head = ["head 0", "head 5"][n % 2];
                let middle = |name: &str| {
                    let (_, at) = texts.iter().find(|(text, _)| *text == name).expect(name);
                    (f32::midpoint(at.0, at.2), f32::midpoint(at.1, at.3))
                };
                assert!((middle(head).0 - cells.x - cells.width / 2.0).abs() < 3.0, "{head}");
                assert!((middle(layer).1 - cells.y - cells.height / 2.0).abs() < 3.0, "{layer}");
            }
        }
        Ok(())
    }

    /// Forty layers of thirty heads leave no room for most names, and a cell is smaller than its weights.
    #[test]
    fn narrow_pictures_of_many_heads_are_legible() -> Result<()> {
        let heads: Vec<usize> = (0..30).collect();
        let mut grid = HeadGrid::default();
        for layer in 0..40 {
            grid.add(layer, &heads, &Tensor::full(0.1f32, (30, 9, 9), &Device::Cpu)?)?;
        }
        for width in ["5.3cm", "8.5cm", "17cm", "2000px"] {
            let nothing = Provenance::default();
            let frame = Frame::new(PictureFormat::Png, "", &nothing).with_width(width.parse().ok());
            let scene = frame.scene(1, |_, room| grid.body(room))?;
            scene.assert_legible(false);
            assert!(scene.texts().iter().filter(|(text, _)| text.starts_with("layer")).count() > 1);
        }
        Ok(())
    }

    /// The color at x, y of a head in SIDE by SIDE cells.
    fn pixel(picture: &Thumbnail, x: usize, y: usize) -> Rgb {
        picture.colors[y * SIDE + x].unwrap_or((255, 255, 255))
    }

    #[test]
    fn a_pixel_of_many_weights_has_the_mean_of_their_levels() -> Result<()> {
        // Four by four weights per pixel; every fourth is 1, all others are 0.
        let t = 4 * SIDE;
        let weights =
            Tensor::from_iter((0..t * t).map(|n| if n % 4 == 0 { 1f32 } else { 0. }), &Device::Cpu)?;
        let picture = Thumbnail::new(&weights.reshape((t, t))?)?;
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
    fn one_weight_that_is_not_a_number_makes_its_pixel_gray() -> Result<()> {
        let t = 2 * SIDE;
        let weights = (0..t * t).map(|n| if n == 100 * t + 21 { f32::NAN } else { 0.25 });
        let picture = Thumbnail::new(&Tensor::from_iter(weights, &Device::Cpu)?.reshape((t, t))?)?;
        assert!(picture.has_nan);
        assert_eq!(pixel(&picture, 10, 50), (160, 160, 160));
        assert!(
            [(9, 50), (11, 50), (10, 49), (10, 51)].iter().all(|&(x, y)| pixel(&picture, x, y) == rgb(0.5))
        );
        Ok(())
    }

    #[test]
    fn a_short_text_has_a_cell_for_each_weight() -> Result<()> {
        let picture = Thumbnail::new(&Tensor::new(&[[1f32, 0., 9.], [0.25, 0.5, 0.25]], &Device::Cpu)?)?;
        let color = |weight: f32| (weight <= 1.0).then(|| rgb(level(weight).unwrap()));
        assert_eq!((picture.columns, picture.has_nan), (3, false));
        assert_eq!(picture.colors, [1.0, 0.0, 9.0, 0.25, 0.5, 0.25].map(color));
        Ok(())
    }

    #[test]
    fn no_heads_and_heads_without_a_name_are_refused() -> Result<()> {
        let weights = Tensor::full(0.25f32, (2, 3, 3), &Device::Cpu)?;
        let nothing = Provenance::default();
        assert!(HeadGrid::default().finish(&Frame::new(PictureFormat::Svg, "", &nothing)).is_err());
        assert!(HeadGrid::default().add(0, &[1], &weights).is_err());
        let mut grid = HeadGrid::default();
        grid.add(0, &[1, 4], &weights)?;
        assert!(grid.add(1, &[1, 3], &weights).is_err(), "its column would have the name of head 4");
        assert!(grid.add(1, &[1], &weights.narrow(0, 0, 1)?).is_err());
        grid.add(1, &[1, 4], &weights)?;
        Ok(())
    }
}
