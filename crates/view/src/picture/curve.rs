//! The loss of a training run over its steps.

use super::axes::{axis_number, round_numbers};
use super::frame::Frame;
use super::letters::Letters;
use super::scene::{Anchor, FAINT, GREY, INK, Mark, Scene, TextStyle, WHITE};
use crate::palette::Rgb;
use candle_core::Result;
use std::ops::Range;

/// Without the title.
const SIZE: (f32, f32) = (1200.0, 620.0);
/// The margins of the chart: numbers and names of the axes.
const LEFT: f32 = 96.0;
const RIGHT: f32 = 28.0;
const BOTTOM: f32 = 72.0;
const TOP: f32 = 8.0;
/// The most points in the line of the steps: with more than one in two pixels, it would not look like a line.
const POINTS: usize = 500;
/// Okabe and Ito's blue and vermilion (2008), which color-blind people can tell apart.
const TRAINING: Rgb = (0, 114, 178);
const VALIDATION: Rgb = (213, 94, 0);
/// A quarter of [`TRAINING`] on white.
const SPREAD: Rgb = (191, 220, 236);
const NUMBER: TextStyle = TextStyle::new(17.0, INK);
const NAME: TextStyle = TextStyle::new(19.0, INK);
/// A line of the key.
const LINE: f32 = 28.0;

/// The losses of a training run as a picture: a line of the steps' losses, and a point for each validation, with
/// a label on the lowest one.
///
/// If there are more steps than the picture has room for, each point of the line is the mean over several
/// neighbors, above a faint vertical line from the lowest to the highest of them. Losses that are not finite are
/// left out.
///
/// # Shapes
/// `training` (step, nats per token), `validation` the same, both by rising step -> the bytes of a file
///
/// # Errors
/// When there is no finite loss, or the picture cannot be drawn.
pub fn loss_curve(frame: &Frame, training: &[(u64, f32)], validation: &[(u64, f32)]) -> Result<Vec<u8>> {
    frame.write(1, |_, _| body(training, validation))
}

fn body(training: &[(u64, f32)], validation: &[(u64, f32)]) -> Result<Scene> {
    let finite = |points: &[(u64, f32)]| -> Vec<(f64, f64)> {
        let points = points.iter().filter(|(_, loss)| loss.is_finite());
        points.map(|&(step, loss)| (step as f64, f64::from(loss))).collect()
    };
    let training = finite(training);
    let validation = finite(validation);
    let all = || training.iter().chain(&validation);
    let Some(&(first, loss)) = all().next() else {
        candle_core::bail!("loss curve: none of the losses is a finite number")
    };
    let steps = all().fold(first..first + 1.0, |r, p| r.start.min(p.0)..r.end.max(p.0));
    let losses = all().fold(loss..loss, |r, p| r.start.min(p.1)..r.end.max(p.1));
    let margin = (0.05 * (losses.end - losses.start)).max(1e-3 * losses.end.abs()).max(1e-3);
    let losses = (losses.start - margin).max(0.0)..losses.end + margin;

    let mut scene = Scene::new(Letters::new()?, SIZE, "")?;
    let chart = Chart { steps, losses };
    chart.axes(&mut scene);
    let groups: Vec<StepGroup> =
        training.chunks(training.len().div_ceil(POINTS).max(1)).map(StepGroup::new).collect();
    for group in groups.iter().filter(|group| group.lowest < group.highest) {
        let ends = [group.lowest, group.highest].map(|loss| chart.place((group.step, loss)));
        scene.line(ends, 1.0, SPREAD);
    }
    let mean = |group: &StepGroup| chart.place((group.step, group.mean));
    match &groups[..] {
        [] => {}
        // A line from a point to itself shows nothing.
        [only] => scene.marks.push(Mark::Disc { center: mean(only), radius: 4.0, color: TRAINING }),
        _ => scene.line(groups.iter().map(mean).collect::<Vec<_>>(), 2.0, TRAINING),
    }
    scene.line(validation.iter().map(|&p| chart.place(p)).collect::<Vec<_>>(), 2.0, VALIDATION);
    for &point in &validation {
        scene.marks.push(Mark::Disc { center: chart.place(point), radius: 3.5, color: VALIDATION });
    }
    let lowest = validation.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let label = lowest.map(|&lowest| chart.label(&mut scene, lowest));
    let key =
        [(!groups.is_empty(), "training", TRAINING), (!validation.is_empty(), "validation", VALIDATION)];
    let key = key.into_iter().filter_map(|(shown, name, color)| shown.then_some((name, color)));
    let ends = groups.iter().flat_map(|g| [(g.step, g.lowest), (g.step, g.highest)]);
    let points: Vec<_> = ends.chain(validation).map(|point| chart.place(point)).collect();
    Chart::key(&mut scene, &key.collect::<Vec<_>>(), &points, label);
    Ok(scene)
}

/// The axes: the ranges of steps and losses.
struct Chart {
    steps: Range<f64>,
    losses: Range<f64>,
}

impl Chart {
    const RIGHT: f32 = SIZE.0 - RIGHT;
    const BOTTOM: f32 = SIZE.1 - BOTTOM;

    #[allow(clippy::cast_possible_truncation)] // in the picture
    fn place(&self, (step, loss): (f64, f64)) -> (f32, f32) {
        let part =
            |value: f64, range: &Range<f64>| ((value - range.start) / (range.end - range.start)) as f32;
        let right = part(step, &self.steps) * (Self::RIGHT - LEFT);
        (LEFT + right, Self::BOTTOM - part(loss, &self.losses) * (Self::BOTTOM - TOP))
    }

    fn axes(&self, scene: &mut Scene) {
        let (losses, digits) = round_numbers(self.losses.start, self.losses.end, 8);
        let beside = NUMBER.anchor(Anchor::End);
        for loss in losses {
            let y = self.place((self.steps.start, loss)).1.round() + 0.5;
            scene.line([(LEFT, y), (Self::RIGHT, y)], 1.0, FAINT);
            scene.text(axis_number(loss, digits), (LEFT - 10.0, y + beside.to_baseline()), beside);
        }
        let (steps, digits) = round_numbers(self.steps.start, self.steps.end, 8);
        let below = NUMBER.anchor(Anchor::Middle);
        for step in steps.into_iter().filter(|step| step.fract() == 0.0) {
            let x = self.place((step, self.losses.start)).0.round() + 0.5;
            scene.line([(x, Self::BOTTOM), (x, Self::BOTTOM + 6.0)], 1.0, GREY);
            // Steps are whole numbers, and nobody reads them with an exponent.
            let text = if digits == 0 && step < 1e12 { format!("{step}") } else { axis_number(step, 0) };
            scene.text(text, (x, Self::BOTTOM + 24.0), below);
        }
        let left = LEFT + 0.5;
        let bottom = Self::BOTTOM + 0.5;
        scene.line([(left, TOP), (left, bottom)], 1.0, GREY);
        scene.line([(left, bottom), (Self::RIGHT, bottom)], 1.0, GREY);
        let name = NAME.anchor(Anchor::Middle);
        let across = f32::midpoint(LEFT, Self::RIGHT);
        let down = f32::midpoint(TOP, Self::BOTTOM);
        scene.text("optimizer steps", (across, SIZE.1 - 18.0), name);
        scene.text("loss, nats per token", (28.0, down), name.upward());
    }

    /// The lowest point of the validation; returns the room of its label.
    fn label(&self, scene: &mut Scene, lowest: (f64, f64)) -> Room {
        let (x, y) = self.place(lowest);
        scene.marks.push(Mark::Ring { center: (x, y), radius: 7.0, width: 2.0, color: VALIDATION });
        let text = format!("{:.4} at step {:.0}", lowest.1, lowest.0);
        let left = x > f32::midpoint(LEFT, Self::RIGHT);
        let style = NUMBER.anchor(if left { Anchor::End } else { Anchor::Start });
        let width = scene.letters.width(&text, style.size);
        let (place, from) = if left { (x - 6.0, x - 6.0 - width) } else { (x + 12.0, x + 12.0) };
        let y = if y < TOP + 40.0 { y + 28.0 } else { y - 14.0 };
        // White below the letters, since lines may pass there.
        let room = Room { x: from - 3.0, y: y - 17.0, width: width + 6.0, height: 22.0 };
        room.fill(scene, WHITE);
        scene.text(text, (place, y), style);
        room
    }

    /// Draws the key of the colors in the corner in which it hides the least: on the right if losses fall.
    fn key(scene: &mut Scene, entries: &[(&str, Rgb)], points: &[(f32, f32)], label: Option<Room>) {
        let widest = entries.iter().map(|(name, _)| scene.letters.width(name, NAME.size)).fold(0.0, f32::max);
        let width = (widest + 62.0).ceil();
        let height = entries.len() as f32 * LINE + 12.0;
        let right = (Self::RIGHT - width - 12.0).floor();
        let left = LEFT + 12.0;
        let upper = (TOP + 12.0).floor();
        let lower = Self::BOTTOM - height - 12.0;
        let corners = [(right, upper), (right, lower), (left, lower), (left, upper)];
        let hidden = |room: &Room| {
            let on_label = label.as_ref().is_some_and(|label| room.meets(label));
            (on_label, points.iter().filter(|point| room.holds(**point)).count())
        };
        let rooms = corners.map(|(x, y)| Room { x, y, width, height });
        let Some(room) = rooms.into_iter().min_by_key(hidden) else { return };
        let Room { x, y, .. } = room;
        room.fill(scene, FAINT);
        Room { x: x + 1.0, y: y + 1.0, width: width - 2.0, height: height - 2.0 }.fill(scene, WHITE);
        for (i, (name, color)) in entries.iter().enumerate() {
            let middle = y + 6.0 + (i as f32 + 0.5) * LINE;
            scene.line([(x + 12.0, middle), (x + 40.0, middle)], 3.0, *color);
            scene.text(*name, (x + 50.0, middle + NAME.to_baseline()), NAME);
        }
    }
}

/// A part of the picture.
struct Room {
    x: f32,
    y: f32,
    width: f32,
    height: f32,
}

impl Room {
    fn fill(&self, scene: &mut Scene, color: Rgb) {
        let Self { x, y, width, height } = *self;
        scene.marks.push(Mark::Box { x, y, width, height, color });
    }

    fn holds(&self, (x, y): (f32, f32)) -> bool {
        x >= self.x && x <= self.x + self.width && y >= self.y && y <= self.y + self.height
    }

    fn meets(&self, other: &Self) -> bool {
        let meet = |a: f32, b: f32, c: f32, d: f32| a < c + d && c < a + b;
        meet(self.x, self.width, other.x, other.width) && meet(self.y, self.height, other.y, other.height)
    }
}

/// Neighboring steps, drawn as one point.
struct StepGroup {
    step: f64,
    mean: f64,
    lowest: f64,
    highest: f64,
}

impl StepGroup {
    fn new(points: &[(f64, f64)]) -> Self {
        let mean = |values: &dyn Fn(&(f64, f64)) -> f64| {
            points.iter().map(values).sum::<f64>() / points.len() as f64
        };
        Self {
            step: mean(&|p| p.0),
            mean: mean(&|p| p.1),
            lowest: points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min),
            highest: points.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::PictureFormat;
    use crate::picture::png::tests::{decode, provenance};
    use crate::provenance::Provenance;
    use serde_json::Value;

    fn curve(title: &str, training: &[(u64, f32)], validation: &[(u64, f32)]) -> Result<Vec<u8>> {
        loss_curve(&Frame::new(PictureFormat::Png, title, &Provenance::default()), training, validation)
    }

    fn scene(title: &str, training: &[(u64, f32)], validation: &[(u64, f32)]) -> Result<Scene> {
        let nothing = Provenance::default();
        Frame::new(PictureFormat::Png, title, &nothing).scene(1, |_, _| body(training, validation))
    }

    /// The number of pixels of this color.
    fn count(file: &[u8], color: Rgb) -> usize {
        let picture = decode(file);
        assert!(picture.width == 1200 && picture.height >= 620);
        let places = (0..picture.height).flat_map(|y| (0..picture.width).map(move |x| (x, y)));
        places.filter(|&(x, y)| (picture.pixels)(x, y) == color).count()
    }

    #[test]
    fn both_losses_are_drawn() -> Result<()> {
        let training: Vec<(u64, f32)> = (1..=100).map(|i| (i, 5.0 - 0.03 * i as f32)).collect();
        let validation = [(50, 4.0), (100, f32::NAN)];
        let file = curve("a run", &training, &validation)?;
        let train = count(&file, TRAINING);
        let val = count(&file, VALIDATION);
        assert!(train > 1000 && val > 50 && train > val, "{train} and {val} pixels");
        // Without one of them, its color is gone.
        assert_eq!(count(&curve("a run", &training, &[])?, VALIDATION), 0);
        assert_eq!(count(&curve("a run", &[], &validation)?, TRAINING), 0);
        assert_eq!(file, curve("a run", &training, &validation)?);
        // The caption is drawn, and takes no more than one line from the chart.
        let made_by = |caption: &str| {
            let provenance = provenance(caption, Value::Null);
            loss_curve(&Frame::new(PictureFormat::Png, "a run", &provenance), &training, &validation)
        };
        let single = made_by("f32 on cpu")?;
        let half = made_by("f16 on cpu")?;
        assert!(single != file && single != half, "the caption is not in the picture");
        assert!(count(&single, TRAINING) > train / 2, "the chart is still there");
        Ok(())
    }

    #[test]
    fn short_long_and_wild_runs_are_drawn() -> Result<()> {
        let wild = [(1, f32::INFINITY), (2, f32::NAN), (3, 1e30), (4, 0.0)];
        let long: Vec<(u64, f32)> = (0..100_000).map(|i| (i, (i % 7) as f32)).collect();
        for training in [&[(1, 2.5)][..], &wild, &long] {
            let validation = &training[..training.len().min(20)];
            scene(&"z".repeat(5000), training, validation)?.assert_legible(false);
            assert!(count(&curve("", training, &[])?, TRAINING) > 20, "{} steps", training.len());
        }
        assert!(curve("", &wild[..2], &[]).unwrap_err().to_string().contains("none of the losses"));
        Ok(())
    }

    #[test]
    fn the_key_hides_neither_the_label_nor_the_curve() -> Result<()> {
        let falling: Vec<(u64, f32)> = (0..100).map(|i| (i, 10.0 - 0.1 * i as f32)).collect();
        let rising: Vec<(u64, f32)> = (0..100).map(|i| (i, 0.1 * i as f32)).collect();
        for (training, validation, right, upper) in [
            (&falling, vec![(99, 0.2)], true, true),
            (&falling, vec![(99, 10.0)], false, false),
            (&rising, vec![(0, 0.1)], true, false),
            (&rising, vec![], true, false),
        ] {
            let scene = scene("", training, &validation)?;
            scene.assert_legible(false);
            let texts = scene.texts();
            let (_, (x, y, ..)) = texts.iter().find(|(text, _)| *text == "training").expect("a key");
            assert_eq!((*x > 600.0, *y < 350.0), (right, upper), "{validation:?}");
        }
        Ok(())
    }

    #[test]
    fn points_lie_where_the_axes_say() -> Result<()> {
        let scene = scene("", &[(0, 4.0), (100, 2.0)], &[(50, 3.0)])?;
        scene.assert_legible(false);
        let texts = scene.texts();
        let middle = |text: &str| {
            let (_, (left, top, right, bottom)) = texts.iter().find(|(t, _)| *t == text).expect("a label");
            (f32::midpoint(*left, *right), f32::midpoint(*top, *bottom))
        };
        let disc = scene.marks.iter().find_map(|mark| match mark {
            Mark::Disc { center, .. } => Some(*center),
            _ => None,
        });
        let (x, y) = disc.expect("a validation");
        assert!((x - f32::midpoint(middle("40").0, middle("60").0)).abs() < 2.0, "{x}");
        assert!((y - middle("3.0").1).abs() < 3.0, "{y} and {:?}", middle("3.0"));
        assert_eq!(texts.iter().filter(|(text, _)| *text == "3.0000 at step 50").count(), 1);
        Ok(())
    }
}
