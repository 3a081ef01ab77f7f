//! A matrix of signed numbers, such as the effect of patching each head at each token.

use super::axes::{AXIS_NAME, AXIS_ROOM, Axis, ColorBar, MARGIN, NARROWEST};
use super::cell_numbers::{Scale, printed};
use super::frame::Frame;
use super::letters::Letters;
use super::scene::{Anchor, Cells, INK, Scene, TextStyle, WHITE};
use crate::palette::{diverging, wants_black};
use crate::text::{visible_text, visible_token};
use candle_core::{DType, Result, Tensor};

/// The longest side of the cells in pixels, unless one pixel per number needs more.
const LONGEST: usize = 1500;
/// The largest cell.
const WIDEST: usize = 60;
const TALLEST: usize = 34;
/// The least height of the cells together in a picture of a given width, unless all are as high as they can be.
const LEAST_HEIGHT: f32 = 160.0;
/// The map's name among several maps, and its room.
const NAME: TextStyle = TextStyle::new(18.0, INK);
const NAME_ROOM: f32 = 34.0;

/// A picture of a matrix of signed numbers, such as what it changes to patch each head at each token: rows and columns
/// with labels, colors from blue (below 0) through white to red (above), a color bar, and the numbers themselves
/// where cells are large enough.
///
/// The scale is as far below 0 as above, up to `end` or the largest number, unless it is to begin at 0. What is not finite is gray. Labels are shown like
/// tokens, with visible spaces, and where there is no room for all, every second, fifth, tenth and so on is.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gpt2_view::{Frame, NumberMap, PictureFormat, Provenance};
///
/// let names = |names: [&str; 2]| names.map(String::from);
/// let (rows, columns) = (names(["0", "1"]), names(["Hello", " world"]));
/// let map = NumberMap {
///     name: "",
///     row_axis: "layer",
///     column_axis: "token",
///     unit: "change of the logit",
///     rows: &rows,
///     columns: &columns,
///     ..NumberMap::default()
/// };
/// let values = Tensor::new(&[[0.5f32, -1.25], [0.0, 3.0]], &Device::Cpu)?; // (rows, columns)
/// let made_by = Provenance::default();
/// let svg = map.draw(&Frame::new(PictureFormat::Svg, "patching resid_pre", &made_by), &values)?;
/// assert!(String::from_utf8_lossy(&svg).contains(">-1.25</text>"));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct NumberMap<'a> {
    /// Above the map, to tell it from others in the picture; may be empty.
    pub name: &'a str,
    /// The rows' name.
    pub row_axis: &'a str,
    /// The columns' name.
    pub column_axis: &'a str,
    /// The numbers' name, for the color bar.
    pub unit: &'a str,
    /// The rows' labels, from the top.
    pub rows: &'a [String],
    /// The columns' labels, from the left.
    pub columns: &'a [String],
    /// The number at the end of the scale, where it is the same for other pictures: 1 for shares. Above 0; the largest number
    /// if there is none.
    pub end: Option<f32>,
    /// Whether the scale begins at 0, for numbers that are never below it, such as probabilities.
    pub from_zero: bool,
    /// The cells that have no number, row after row; none if it is empty. They stay white.
    pub absent: &'a [bool],
}

/// Several maps in one picture, each with its own colors: two side by side where the frame has room. The bytes of a file.
///
/// # Errors
/// When there is no map, and as for [`NumberMap::draw`].
pub fn number_maps(frame: &Frame, maps: &[(NumberMap, Tensor)]) -> Result<Vec<u8>> {
    if maps.is_empty() {
        candle_core::bail!("number maps: there is none to draw")
    }
    frame.write(maps.len(), |i, room| maps[i].0.body(&maps[i].1, room))
}

impl NumberMap<'_> {
    /// The picture as the bytes of a file.
    ///
    /// # Shapes
    /// `values` (rows, columns)
    ///
    /// # Errors
    /// When `values` is empty or has another shape than the labels, or the picture cannot be drawn.
    pub fn draw(&self, frame: &Frame, values: &Tensor) -> Result<Vec<u8>> {
        number_maps(frame, &[(*self, values.clone())])
    }

    fn body(&self, values: &Tensor, room: Option<f32>) -> Result<Scene> {
        let values = self.checked(values)?;
        let letters = Letters::new()?;
        let drawn: Vec<f32> =
            (0..).zip(&values).filter(|(i, _)| !self.is_absent(*i)).map(|(_, x)| *x).collect();
        let scale = Scale::new(&drawn, self.end, self.from_zero);
        let bar = ColorBar {
            name: visible_text(self.unit),
            numbers: scale.numbers(),
            color: &|level| diverging(scale.start + (1.0 - scale.start) * level),
            has_nan: scale.has_nan,
        };
        let layout = self.layout(&bar, &letters, room);
        let mut scene = Scene::new(letters, layout.size, "")?;
        self.draw_names(&mut scene, &layout);
        let MapLayout { x, y, width, height, .. } = layout;
        let color = |(i, value): (usize, &f32)| (!self.is_absent(i)).then(|| scale.color(*value));
        let colors = values.iter().enumerate().map(color).collect();
        scene.cells(Cells { x, y, width, height, columns: self.columns.len(), colors });
        layout.beside.draw_beside(&mut scene, (x, y));
        layout.above.draw_above(&mut scene, (x, y));
        bar.draw(&mut scene, (x + width, y), layout.high);
        self.print_numbers(&mut scene, &values, &scale, &layout);
        Ok(scene)
    }

    /// The numbers, row after row, if there is one for each pair of labels.
    fn checked(&self, values: &Tensor) -> Result<Vec<f32>> {
        let rows = self.rows.len();
        let columns = self.columns.len();
        if values.dims() != [rows, columns] || rows * columns == 0 {
            candle_core::bail!(
                "number map: values have shape {:?}, with labels for {rows} rows and {columns} columns",
                values.dims()
            )
        }
        values.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    /// Whether the cell has no number.
    fn is_absent(&self, cell: usize) -> bool {
        self.absent.get(cell).is_some_and(|absent| *absent)
    }

    /// The height of the map's name.
    fn top(&self) -> f32 {
        if self.name.is_empty() { 0.0 } else { NAME_ROOM }
    }

    fn layout(&self, bar: &ColorBar, letters: &Letters, room: Option<f32>) -> MapLayout {
        let rows = self.rows.len();
        let columns = self.columns.len();
        let axis = |labels: &[String], cell: f32| {
            Axis::new(letters, (labels.len(), cell), room, |i| i, |i| visible_token(&labels[i]))
        };
        let side = |n: usize, largest: usize| (LONGEST / n).clamp(1, largest) as f32;
        let widest = side(columns, WIDEST);
        let tallest = side(rows, TALLEST);
        // Cells that are narrower than usual are lower too, as long as the map is not flat.
        let tall = |wide: f32| {
            let least = (LEAST_HEIGHT / rows as f32).min(tallest);
            (tallest * wide / widest).clamp(least, tallest)
        };
        let (beside, wide) = match room {
            Some(room) => {
                let room = room - MARGIN - AXIS_ROOM - bar.room(letters);
                Axis::filling(room, columns, |wide| axis(self.rows, tall(wide)))
            }
            None => (axis(self.rows, tallest), widest),
        };
        let tall = tall(wide);
        let above = axis(self.columns, wide);
        let width = wide * columns as f32;
        let height = tall * rows as f32;
        let x = MARGIN + AXIS_ROOM + beside.beside();
        let y = self.top() + AXIS_ROOM + above.above();
        let high = height.max(bar.least_height(letters));
        let least = if room.is_none() { NARROWEST } else { 0.0 };
        let size = ((x + width + bar.room(letters)).max(least), y + high + MARGIN);
        MapLayout { beside, above, wide, tall, x, y, width, height, high, size }
    }

    /// Draws the names of the map and of both axes.
    fn draw_names(&self, scene: &mut Scene, layout: &MapLayout) {
        let fit = |text: &str, style: TextStyle, room: f32| {
            scene.letters.cut(&visible_text(text), style.size, room)
        };
        let name = fit(self.name, NAME, scene.width - 2.0 * MARGIN);
        let across = fit(self.column_axis, AXIS_NAME, scene.width - 2.0 * MARGIN);
        let down = fit(self.row_axis, AXIS_NAME, layout.high);
        let half = scene.letters.width(&down, AXIS_NAME.size) / 2.0;
        let from = layout.x.min(scene.width - MARGIN - scene.letters.width(&across, AXIS_NAME.size));
        scene.text(name, (MARGIN, 24.0), NAME);
        scene.text(across, (from, self.top() + 16.0), AXIS_NAME);
        let upward = AXIS_NAME.upward().anchor(Anchor::Middle);
        scene.text(down, (MARGIN + 14.0, layout.y + (layout.height / 2.0).max(half)), upward);
    }

    /// Prints each number in its cell, if they have room.
    fn print_numbers(&self, scene: &mut Scene, values: &[f32], scale: &Scale, layout: &MapLayout) {
        let MapLayout { x, y, wide, tall, .. } = *layout;
        let most = if scale.largest > 0.0 { scale.largest } else { 1.0 };
        let Some((texts, size)) = printed(values, most, (wide, tall), &scene.letters) else { return };
        let columns = self.columns.len();
        for (i, (text, value)) in texts.into_iter().zip(values).enumerate() {
            if self.is_absent(i) {
                continue;
            }
            let ink = if wants_black(scale.color(*value)) { INK } else { WHITE };
            let style = TextStyle::new(size, ink).anchor(Anchor::Middle);
            let column = (i % columns) as f32;
            let row = (i / columns) as f32;
            let middle = (x + (column + 0.5) * wide, y + (row + 0.5) * tall + style.to_baseline());
            scene.text(text, middle, style);
        }
    }
}

/// The axes of a map, and the places of its parts.
struct MapLayout {
    beside: Axis,
    above: Axis,
    /// The sides of a cell.
    wide: f32,
    tall: f32,
    /// The upper left corner of the cells.
    x: f32,
    y: f32,
    /// The sides of all cells together.
    width: f32,
    height: f32,
    /// The height of the cells with the color bar beside them.
    high: f32,
    /// The size of the picture.
    size: (f32, f32),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::Rgb;
    use crate::picture::PictureFormat;
    use crate::picture::png::tests::{decode, provenance};
    use crate::picture::png::whole;
    use crate::picture::scene::Mark;
    use crate::provenance::Provenance;
    use crate::text::tests::NASTY;
    use candle_core::Device;
    use serde_json::Value;

    fn scene(frame: &Frame, map: &NumberMap, values: &Tensor) -> Result<Scene> {
        frame.scene(1, |_, room| map.body(values, room))
    }

    fn names(n: usize) -> Vec<String> {
        (0..n).map(|i| i.to_string()).collect()
    }

    #[test]
    fn a_scale_from_0_has_no_numbers_below_it() -> Result<()> {
        let rows = names(1);
        let columns = names(3);
        let values = Tensor::new(&[[0f32, 0.25, 0.5]], &Device::Cpu)?;
        let shown = |from_zero: bool| -> Result<Vec<String>> {
            let map = NumberMap {
                rows: &rows,
                columns: &columns,
                end: Some(1.0),
                from_zero,
                ..NumberMap::default()
            };
            let made_by = provenance("", Value::Null);
            let frame = Frame::new(PictureFormat::Svg, "", &made_by);
            Ok(scene(&frame, &map, &values)?.texts().into_iter().map(|(text, _)| text.to_owned()).collect())
        };
        let negative = |texts: &[String]| texts.iter().filter(|text| text.starts_with('-')).count();
        let from_zero = shown(true)?;
        let both = shown(false)?;
        assert_eq!(negative(&from_zero), 0, "{from_zero:?}");
        assert!(from_zero.iter().any(|text| text == "0.0") && from_zero.iter().any(|text| text == "1.0"));
        assert!(negative(&both) > 1, "{both:?}");
        Ok(())
    }

    #[test]
    fn each_number_has_its_color_and_its_text() -> Result<()> {
        let rows = names(2);
        let columns = names(3);
        let map = NumberMap { rows: &rows, columns: &columns, unit: "nats", ..NumberMap::default() };
        let values = Tensor::new(&[[0f32, 2., -1.], [f32::NAN, -0.004, 1.]], &Device::Cpu)?;
        let provenance = provenance("what made it", Value::Null);
        let frame = Frame::new(PictureFormat::Png, "", &provenance);
        let scene = scene(&frame, &map, &values)?;
        scene.assert_legible(true);
        let mut cells = scene.marks.iter().filter_map(|mark| match mark {
            Mark::Cells(cells) => Some(cells),
            _ => None,
        });
        let Cells { x, y, width, height, .. } = *cells.next().expect("cells");
        let picture = decode(&map.draw(&frame, &values)?);
        let wide = width / 3.0;
        let tall = height / 2.0;
        let expected: [(&str, Rgb); 6] = [
            (".00", (247, 247, 247)),
            ("2.00", (103, 0, 31)),
            ("-1.00", diverging(-0.5)),
            ("NaN", (160, 160, 160)),
            (".00", diverging(-0.002)),
            ("1.00", diverging(0.5)),
        ];
        let texts = scene.texts();
        for (i, (text, color)) in expected.into_iter().enumerate() {
            let left = x + (i % 3) as f32 * wide;
            let top = y + (i / 3) as f32 * tall;
            assert_eq!((picture.pixels)(whole(left) + 2, whole(top) + 2), color, "{text}");
            let inside = |(l, t, r, b): (f32, f32, f32, f32)| {
                l >= left && t >= top && r <= left + wide && b <= top + tall
            };
            let found: Vec<&str> =
                texts.iter().filter(|(_, at)| inside(*at)).map(|(text, _)| *text).collect();
            assert_eq!(found, [text]);
        }
        for text in ["nats", "what made it", "0", "1", "2", "-2"] {
            assert!(texts.iter().any(|(shown, _)| *shown == text), "{text}");
        }
        Ok(())
    }

    #[test]
    fn maps_of_any_size_are_legible() -> Result<()> {
        let nasty = |n: usize| -> Vec<String> { (0..n).map(|i| NASTY[i % NASTY.len()].into()).collect() };
        let long = "a very long name ".repeat(100);
        for (r, c) in [(1, 1), (12, 12), (12, 64), (144, 20), (2, 300), (12, 1024)] {
            for value in [0.0, 1e-30, -1.0, 3.4e38, f32::NAN, f32::NEG_INFINITY] {
                let values = Tensor::full(value, (r, c), &Device::Cpu)?;
                let rows = nasty(r);
                let columns = nasty(c);
                let short = NumberMap { rows: &rows, columns: &columns, ..NumberMap::default() };
                let named =
                    NumberMap { name: &long, row_axis: &long, column_axis: &long, unit: &long, ..short };
                let nothing = Provenance::default();
                for (map, title) in [(short, ""), (named, long.as_str())] {
                    let frame = Frame::new(PictureFormat::Svg, title, &nothing);
                    for width in [None, Some("300px"), Some("8.5cm"), Some("1500px")] {
                        let width = width.map(|width| width.parse().unwrap());
                        scene(&frame.with_width(width), &map, &values)?.assert_legible(true);
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn several_maps_have_their_own_names_and_colors() -> Result<()> {
        let rows = names(2);
        let columns = names(3);
        let nothing = Provenance::default();
        let map = |name| NumberMap { name, rows: &rows, columns: &columns, ..NumberMap::default() };
        let values = |most: f64| Tensor::full(most, (2, 3), &Device::Cpu);
        let maps = [(map("the first"), values(1.0)?), (map("the second"), values(-40.0)?)];
        let frame = Frame::new(PictureFormat::Svg, "both", &nothing);
        let scene = frame.scene(2, |i, room| maps[i].0.body(&maps[i].1, room))?;
        scene.assert_legible(true);
        let texts = scene.texts();
        for text in ["both", "the first", "the second", "1.00", "-40.0", "0.5", "40"] {
            assert!(texts.iter().any(|(shown, _)| *shown == text), "{text}");
        }
        assert!(number_maps(&frame, &maps).is_ok());
        // With an end, the same number has the same color in both.
        let colors = |end: Option<f32>| -> Result<Vec<Option<Rgb>>> {
            let scene = NumberMap { end, ..map("") }.body(&values(0.25)?, None)?;
            let cells = scene.marks.into_iter().find_map(|mark| match mark {
                Mark::Cells(cells) => Some(cells.colors),
                _ => None,
            });
            Ok(cells.expect("cells"))
        };
        assert_eq!(colors(Some(1.0))?[0], Some(diverging(0.25)));
        assert_eq!(colors(None)?[0], Some(diverging(1.0)));
        Ok(())
    }

    #[test]
    fn a_cell_without_a_number_is_white_and_empty() -> Result<()> {
        let rows = names(2);
        let values = Tensor::new(&[[1f32, 0.5], [9., 0.25]], &Device::Cpu)?;
        let absent = [false, false, true, false];
        let map = NumberMap { rows: &rows, columns: &rows, absent: &absent, ..NumberMap::default() };
        let scene = map.body(&values, None)?;
        let texts = scene.texts();
        assert!(
            texts.iter().any(|(text, _)| *text == ".25")
                && !texts.iter().any(|(text, _)| text.starts_with('9'))
        );
        let cells = scene.marks.iter().find_map(|mark| match mark {
            Mark::Cells(cells) => Some(&cells.colors),
            _ => None,
        });
        let drawn: Vec<bool> = cells.expect("cells").iter().map(Option::is_some).collect();
        assert_eq!(drawn, [true, true, false, true]);
        Ok(())
    }

    #[test]
    fn another_shape_than_the_labels_is_refused() -> Result<()> {
        let rows = names(2);
        let columns = names(3);
        let map = NumberMap { rows: &rows, columns: &columns, ..NumberMap::default() };
        let values = Tensor::zeros((3, 2), DType::F32, &Device::Cpu)?;
        let nothing = Provenance::default();
        let frame = Frame::new(PictureFormat::Pdf, "", &nothing);
        let error = map.draw(&frame, &values).unwrap_err().to_string();
        assert!(error.contains("[3, 2]") && error.contains("2 rows and 3 columns"), "{error}");
        let empty = Tensor::zeros((0, 0), DType::F32, &Device::Cpu)?;
        assert!(NumberMap::default().draw(&frame, &empty).is_err());
        assert!(number_maps(&frame, &[]).is_err());
        Ok(())
    }
}
