//! All heads as small heat maps: one row per layer, one column per head.

use super::format::PictureFormat;
use super::guides::{ColorBar, Heading, NARROWEST};
use super::letters::Letters;
use super::scene::{Anchor, Cells, INK, NOT_A_NUMBER, Scene, Style};
use crate::palette::{Rgb, level, rgb};
use crate::provenance::Provenance;
use crate::rows::lower_triangle;
use candle_core::{Result, Tensor};

/// The side of a head's picture, in pixels.
const SIDE: usize = 120;
const GAP: usize = 8;
const LEFT: f32 = 90.0;
/// The room of the heads' names.
const TOP: f32 = 30.0;
const MARGIN: f32 = 16.0;
const LABEL: Style = Style::new(16.0, INK);

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
    rows: Vec<(usize, Vec<Head>)>,
}

#[derive(Debug)]
struct Head {
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
        let named = |(_, row): &(usize, Vec<Head>)| row.iter().map(|one| one.head).eq(heads.iter().copied());
        if !self.rows.first().is_none_or(named) {
            candle_core::bail!("head grid: layer {layer} has other heads than the first row")
        }
        let head =
            |(i, &head): (usize, &usize)| Ok(Head { head, thumbnail: Thumbnail::new(&weights.get(i)?)? });
        self.rows.push((layer, heads.iter().enumerate().map(head).collect::<Result<_>>()?));
        Ok(())
    }

    /// The picture as the bytes of a file, with a color bar, the caption of `provenance` below the title, and its facts
    /// in the file's metadata.
    ///
    /// # Errors
    /// When there is no head, or the picture cannot be drawn.
    pub fn finish(&self, format: PictureFormat, title: &str, provenance: &Provenance) -> Result<Vec<u8>> {
        format.write(&self.scene(title, provenance)?, provenance)
    }

    fn scene(&self, title: &str, provenance: &Provenance) -> Result<Scene> {
        let columns = self.rows.iter().map(|(_, heads)| heads.len()).max().unwrap_or(0);
        if columns == 0 {
            candle_core::bail!("head grid: there is no head to draw")
        }
        let (letters, heading) = (Letters::new()?, Heading::new(title, provenance));
        let heads = || self.rows.iter().flat_map(|(_, heads)| heads);
        let bar = ColorBar::of_weights(heads().any(|head| head.thumbnail.has_nan));
        let top = heading.height() + TOP;
        let place = |n: usize, from: f32| from + (n * (SIDE + GAP)) as f32;
        let side = SIDE as f32;
        let (right, tall) = (place(columns - 1, LEFT) + side, place(self.rows.len() - 1, 0.0) + side);
        let tall = tall.max(bar.least_height(&letters));
        let width = (right + bar.room(&letters)).max(heading.width(&letters, NARROWEST));
        let mut scene = Scene::new(letters, (width, top + tall + MARGIN), heading.title())?;
        heading.draw(&mut scene);
        bar.draw(&mut scene, (right, top), tall);
        let beside = LABEL.anchor(Anchor::End);
        for (row, (layer, heads)) in self.rows.iter().enumerate() {
            let y = place(row, top);
            let middle = y + side / 2.0 + beside.to_baseline();
            scene.text(format!("layer {layer}"), (LEFT - 8.0, middle), beside);
            for (column, Head { head, thumbnail }) in heads.iter().enumerate() {
                let x = place(column, LEFT);
                if row == 0 {
                    let above = LABEL.anchor(Anchor::Middle);
                    scene.text(format!("head {head}"), (x + side / 2.0, y - 8.0), above);
                }
                let (columns, colors) = (thumbnail.columns, thumbnail.colors.clone());
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
        let (height, width) = (t.min(SIDE), s.min(SIDE));
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
    use crate::picture::png::tests::{decode, provenance};
    use crate::picture::png::whole;
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
        for caption in ["", "what made it"] {
            let provenance = provenance(caption, Value::Null);
            let picture = decode(&grid.finish(PictureFormat::Png, "all heads", &provenance)?);
            grid.scene("all heads", &provenance)?.assert_legible(false);
            let (left, top) = (whole(LEFT), whole(Heading::new("", &provenance).height() + TOP));
            assert!(picture.height >= top + 2 * (SIDE + GAP));
            let cell = |row: usize, column: usize, i: usize, j: usize| {
                let at = |n: usize, from: usize, k: usize| from + n * (SIDE + GAP) + k * SIDE / 4 + SIDE / 8;
                (picture.pixels)(at(column, left, j), at(row, top, i))
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
        assert!(HeadGrid::default().finish(PictureFormat::Svg, "", &Provenance::default()).is_err());
        assert!(HeadGrid::default().add(0, &[1], &weights).is_err());
        let mut grid = HeadGrid::default();
        grid.add(0, &[1, 4], &weights)?;
        assert!(grid.add(1, &[1, 3], &weights).is_err(), "its column would have the name of head 4");
        assert!(grid.add(1, &[1], &weights.narrow(0, 0, 1)?).is_err());
        grid.add(1, &[1, 4], &weights)?;
        Ok(())
    }
}
