//! Hooks from a closure, and several hooks combined into one.

use super::hook::{At, Hooks, KnockOut};
use super::point::Point;
use candle_core::{Result, Tensor};

/// Hooks that call `hook` at each of `points`.
pub fn on<F>(points: impl IntoIterator<Item = Point>, hook: F) -> impl Hooks
where
    F: Fn(At, &Tensor) -> Result<Option<Tensor>>,
{
    On { points: points.into_iter().collect(), hook }
}

struct On<F> {
    points: Vec<Point>,
    hook: F,
}

impl<F: Fn(At, &Tensor) -> Result<Option<Tensor>>> Hooks for On<F> {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        (self.hook)(at, value)
    }
}

/// Several hooks in sequence: each gets the value after the previous ones have changed it.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a [&'a dyn Hooks]);

impl Hooks for Chain<'_> {
    fn wants(&self, point: Point) -> bool {
        self.0.iter().any(|hooks| hooks.wants(point))
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let mut replaced = None;
        for hooks in self.0.iter().filter(|hooks| hooks.wants(at.point)) {
            let current = replaced.as_ref().unwrap_or(value);
            replaced = hooks.at(at, current)?.or(replaced);
        }
        Ok(replaced)
    }

    fn knocked_out(&self, layer: usize) -> Vec<KnockOut> {
        self.0.iter().flat_map(|hooks| hooks.knocked_out(layer)).collect()
    }
}
