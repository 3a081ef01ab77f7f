//! Hooks that record the values they see.

use super::hook::{At, Hooks};
use super::point::Point;
use candle_core::{Result, Tensor};
use std::cell::RefCell;

/// Records the values at some points, from the latest pass.
#[derive(Debug, Default)]
pub struct Recorder {
    points: Vec<Point>,
    found: RefCell<Vec<(Point, Tensor)>>,
}

impl Recorder {
    /// A recorder for `points`.
    #[must_use]
    pub fn new(points: impl IntoIterator<Item = Point>) -> Self {
        Self { points: points.into_iter().collect(), found: RefCell::default() }
    }

    /// The value at a point.
    ///
    /// # Errors
    /// When no pass has reached the point.
    pub fn value(&self, point: Point) -> Result<Tensor> {
        match self.found.borrow().iter().find(|(at, _)| *at == point) {
            Some((_, value)) => Ok(value.clone()),
            None => candle_core::bail!("Recorder: nothing was recorded at {point}"),
        }
    }
}

impl Hooks for Recorder {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let mut found = self.found.borrow_mut();
        found.retain(|(point, _)| *point != at.point);
        found.push((at.point, value.clone()));
        Ok(None)
    }
}
