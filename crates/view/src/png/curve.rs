//! The loss of a training run over its steps.

use super::canvas::{FAINT, FONT, GREY, INK, draw};
use super::caption::Caption;
use crate::provenance::Provenance;
use candle_core::Result;
use plotters::prelude::{
    ChartBuilder, Circle, Color, IntoFont, LineSeries, PathElement, RGBColor, SeriesLabelPosition, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{ShapeStyle, TextStyle};

const SIZE: (u32, u32) = (1200, 700);
/// The most points in the line of the steps: with more than one in two pixels, it would not look like a line.
const POINTS: usize = 500;
/// Okabe and Ito's blue and vermilion (2008), which colour-blind people can tell apart.
const TRAINING: RGBColor = RGBColor(0, 114, 178);
const VALIDATION: RGBColor = RGBColor(213, 94, 0);

/// The losses of a training run as a PNG: a line of the steps' losses, and a point for each validation, with
/// a label on the lowest one.
///
/// If there are more steps than the picture has room for, each point of the line is the mean over several
/// neighbours, above a faint vertical line from the lowest to the highest of them. Losses that are not finite are
/// left out. The caption of `provenance` goes below the title, and its facts into a text chunk.
///
/// # Shapes
/// `training` (step, nats per token), `validation` the same, both by rising step -> the bytes of a file
///
/// # Errors
/// When there is no finite loss, or the picture cannot be drawn.
pub fn loss_curve(
    title: &str,
    training: &[(u64, f32)],
    validation: &[(u64, f32)],
    provenance: &Provenance,
) -> Result<Vec<u8>> {
    let finite = |points: &[(u64, f32)]| -> Vec<(f64, f64)> {
        let points = points.iter().filter(|(_, loss)| loss.is_finite());
        points.map(|&(step, loss)| (step as f64, f64::from(loss))).collect()
    };
    let (training, validation) = (finite(training), finite(validation));
    let all = || training.iter().chain(&validation);
    let Some(&(first, loss)) = all().next() else {
        candle_core::bail!("loss curve: none of the losses is a finite number")
    };
    let steps = all().fold(first..first + 1.0, |r, p| r.start.min(p.0)..r.end.max(p.0));
    let losses = all().fold(loss..loss, |r, p| r.start.min(p.1)..r.end.max(p.1));
    let margin = (0.05 * (losses.end - losses.start)).max(1e-3 * losses.end.abs()).max(1e-3);
    let losses = (losses.start - margin).max(0.0)..losses.end + margin;

    let digits = if losses.end - losses.start < 0.1 { 4 } else { 2 };

    let groups: Vec<Group> = training.chunks(training.len().div_ceil(POINTS).max(1)).map(Group::of).collect();
    draw(SIZE, provenance, |area| {
        let text = |size: i32| TextStyle::from((FONT, size).into_font()).color(&INK);
        let below =
            area.margin(20, 20, 20, 20).titled(&crate::fit(&crate::visible_text(title), 90), text(26))?;
        let below = Caption::of(provenance).draw_centred(below)?;
        let mut chart = ChartBuilder::on(&below)
            .x_label_area_size(50)
            .y_label_area_size(64)
            .build_cartesian_2d(steps, losses)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(FAINT)
            .light_line_style(plotters::style::TRANSPARENT)
            .axis_style(GREY)
            .label_style(text(18))
            .axis_desc_style(text(20))
            .x_labels(8)
            .y_labels(8)
            .x_label_formatter(&|step| if step.fract() == 0.0 { format!("{step}") } else { String::new() })
            .y_label_formatter(&|loss| format!("{loss:.digits$}"))
            .x_desc("optimiser steps")
            .y_desc("loss, nats per token")
            .draw()?;

        let range =
            |g: &Group| PathElement::new([(g.step, g.lowest), (g.step, g.highest)], TRAINING.mix(0.25));
        chart.draw_series(groups.iter().filter(|g| g.lowest < g.highest).map(range))?;
        let swatch = |colour: RGBColor| {
            move |(x, y)| PathElement::new([(x, y), (x + 24, y)], ShapeStyle::from(colour).stroke_width(3))
        };
        if !groups.is_empty() {
            let line = groups.iter().map(|g| (g.step, g.mean));
            chart
                .draw_series(LineSeries::new(line, ShapeStyle::from(TRAINING).stroke_width(2)))?
                .label("training")
                .legend(swatch(TRAINING));
        }
        if let Some(&lowest) = validation.iter().min_by(|a, b| a.1.total_cmp(&b.1)) {
            let thick = ShapeStyle::from(VALIDATION).stroke_width(2);
            chart
                .draw_series(LineSeries::new(validation.iter().copied(), thick))?
                .label("validation")
                .legend(swatch(VALIDATION));
            chart.draw_series(validation.iter().map(|&p| Circle::new(p, 3, VALIDATION.filled())))?;
            chart.draw_series([Circle::new(lowest, 7, thick)])?;
            let label = format!("{:.4} at step {:.0}", lowest.1, lowest.0);
            let place = area.strip_coord_spec().get_pixel_range();
            let (x, y) = chart.backend_coord(&lowest);
            let left = x > i32::midpoint(place.0.start, place.0.end);
            let style = text(18).pos(Pos::new(if left { HPos::Right } else { HPos::Left }, VPos::Bottom));
            area.draw(&Text::new(label, (if left { x } else { x + 12 }, y - 12), style))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(text(20))
            .background_style(plotters::style::WHITE)
            .border_style(FAINT)
            .margin(14)
            .draw()?;
        Ok(())
    })
}

/// Neighbouring steps, drawn as one point.
struct Group {
    step: f64,
    mean: f64,
    lowest: f64,
    highest: f64,
}

impl Group {
    fn of(points: &[(f64, f64)]) -> Self {
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
    use crate::png::canvas::tests::provenance;
    use serde_json::Value;

    fn curve(title: &str, training: &[(u64, f32)], validation: &[(u64, f32)]) -> Result<Vec<u8>> {
        loss_curve(title, training, validation, &Provenance::default())
    }

    /// How many pixels have this colour.
    fn count(file: &[u8], colour: RGBColor) -> usize {
        let picture = crate::png::canvas::tests::decode(file);
        assert_eq!((picture.width, picture.height), (1200, 700));
        let places = (0..picture.height).flat_map(|y| (0..picture.width).map(move |x| (x, y)));
        places.filter(|&(x, y)| (picture.pixels)(x, y) == (colour.0, colour.1, colour.2)).count()
    }

    #[test]
    fn both_losses_are_drawn() -> Result<()> {
        let training: Vec<(u64, f32)> = (1..=100).map(|i| (i, 5.0 - 0.03 * i as f32)).collect();
        let validation = [(50, 4.0), (100, f32::NAN)];
        let file = curve("a run", &training, &validation)?;
        let (train, val) = (count(&file, TRAINING), count(&file, VALIDATION));
        assert!(train > 1000 && val > 50 && train > val, "{train} and {val} pixels");
        // Without one of them, its colour is gone.
        assert_eq!(count(&curve("a run", &training, &[])?, VALIDATION), 0);
        assert_eq!(count(&curve("a run", &[], &validation)?, TRAINING), 0);
        assert_eq!(file, curve("a run", &training, &validation)?);
        // The caption is drawn, and takes no more than one line from the chart.
        let made_by =
            |caption: &str| loss_curve("a run", &training, &validation, &provenance(caption, Value::Null));
        let (single, half) = (made_by("f32 on cpu")?, made_by("f16 on cpu")?);
        assert!(single != file && single != half, "the caption is not in the picture");
        assert!(count(&single, TRAINING) > train / 2, "the chart is still there");
        Ok(())
    }

    #[test]
    fn short_long_and_wild_runs_are_drawn() -> Result<()> {
        let wild = [(1, f32::INFINITY), (2, f32::NAN), (3, 1e30), (4, 0.0)];
        let long: Vec<(u64, f32)> = (0..100_000).map(|i| (i, (i % 7) as f32)).collect();
        for training in [&[(1, 2.5)][..], &wild, &long] {
            assert!(count(&curve("", training, &[])?, TRAINING) > 20, "{} steps", training.len());
        }
        assert!(curve("", &wild[..2], &[]).unwrap_err().to_string().contains("none of the losses"));
        Ok(())
    }
}
