//! The labels of rows and columns: as many as have room, and none so long that it reaches another.

use super::letters::Letters;
use super::scene::{Anchor, INK, Scene, Style};

/// The size of labels, if they have room.
const LARGE: f32 = 14.0;
/// The smallest that people read.
const SMALL: f32 = 10.0;
/// The longest label, in pixels; what is longer is cut.
const LONGEST: f32 = 150.0;
/// The least distance between a label and its cell or its neighbor.
const GAP: f32 = 6.0;

/// The labels along one side of a heat map.
pub(super) struct Axis {
    /// By the index of the row or column.
    labels: Vec<(usize, String)>,
    cell: f32,
    style: Style,
    /// The longest label.
    longest: f32,
    /// Between a label and its cell.
    gap: f32,
    /// Whether a label fits above its column without being turned.
    flat: bool,
}

impl Axis {
    /// Labels for `count` cells with a side of `cell`. If there are too many, only those of which the `place` is a
    /// multiple of 2, 5, 10, 20 and so on.
    pub(super) fn new(
        letters: &Letters,
        count: usize,
        cell: f32,
        place: impl Fn(usize) -> usize,
        label: impl Fn(usize) -> String,
    ) -> Self {
        let line = letters.ascent() + letters.descent();
        let size = (cell / line).min(LARGE);
        let steps = (0u32..).flat_map(|power| [1, 2, 5].map(|n| n * 10usize.pow(power)));
        let (size, step) = if size >= SMALL {
            (size, 1)
        } else {
            let has_room = |step: &usize| *step as f32 * cell >= line * LARGE;
            (LARGE, steps.take(18).find(has_room).unwrap_or(usize::MAX))
        };
        let labels: Vec<(usize, String)> = (0..count)
            .filter(|&i| place(i).is_multiple_of(step))
            .map(|i| (i, letters.cut(&label(i), size, LONGEST)))
            .collect();
        let longest = labels.iter().map(|(_, label)| letters.width(label, size)).fold(0.0, f32::max);
        let flat = longest + GAP <= step as f32 * cell;
        // In the corner, the labels of small cells would reach those of the other axis.
        let gap = (0.6 * size - cell / 2.0).ceil().max(GAP);
        Self { labels, cell, style: Style::new(size, INK), longest: longest.ceil(), gap, flat }
    }

    /// How far the labels reach to the left of their rows.
    pub(super) fn beside(&self) -> f32 {
        if self.labels.is_empty() { 0.0 } else { self.longest + self.gap }
    }

    /// How far they reach above their columns.
    pub(super) fn above(&self) -> f32 {
        if self.flat { (1.2 * self.style.size).ceil() + self.gap } else { self.beside() }
    }

    /// Draws the labels to the left of rows that begin at (`x`, `y`).
    pub(super) fn draw_beside(&self, scene: &mut Scene, (x, y): (f32, f32)) {
        let style = self.style.anchor(Anchor::End);
        for (i, label) in &self.labels {
            scene.text(label, (x - self.gap, y + self.middle(*i) + style.to_baseline()), style);
        }
    }

    /// Draws the labels above columns that begin at (`x`, `y`): turned, unless each has room as it is.
    pub(super) fn draw_above(&self, scene: &mut Scene, (x, y): (f32, f32)) {
        let flat = self.style.anchor(Anchor::Middle);
        let turned = self.style.upward();
        for (i, label) in &self.labels {
            let middle = x + self.middle(*i);
            if self.flat {
                scene.text(label, (middle, y - self.gap), flat);
            } else {
                scene.text(label, (middle + turned.to_baseline(), y - self.gap), turned);
            }
        }
    }

    fn middle(&self, i: usize) -> f32 {
        (i as f32 + 0.5) * self.cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Result;

    fn places(count: usize, first: usize, cell: f32) -> Result<Vec<usize>> {
        let axis = Axis::new(&Letters::new()?, count, cell, |i| first + i, |i| format!("t{i}"));
        Ok(axis.labels.into_iter().map(|(i, _)| i).collect())
    }

    #[test]
    fn there_are_as_many_labels_as_have_room() -> Result<()> {
        assert_eq!(places(3, 4, 40.0)?, [0, 1, 2]);
        assert_eq!(places(4, 0, 12.0)?, [0, 1, 2, 3]);
        assert_eq!(places(5, 1, 11.0)?, [1, 3]);
        assert_eq!(places(300, 5, 3.5)?[..3], [0, 5, 10]);
        assert_eq!(places(1024, 0, 1.0)?.len(), 1024usize.div_ceil(20));
        assert_eq!(places(1024, 7, 1e-9)?, [0; 0]);
        Ok(())
    }

    #[test]
    fn short_labels_of_wide_columns_stay_flat() -> Result<()> {
        let letters = Letters::new()?;
        let axis = |cell, label: &str| Axis::new(&letters, 3, cell, |i| i, |_| label.to_owned());
        assert!(axis(40.0, "12").flat && !axis(40.0, "Capulet").flat && !axis(20.0, "12").flat);
        let cut = axis(40.0, &"y".repeat(10_000)).longest;
        assert!(cut <= LONGEST && cut > LONGEST - 10.0, "{cut}");
        Ok(())
    }
}
