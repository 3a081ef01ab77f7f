//! [`Gpt2LMHeadModel::values_at`]: the values at some points of a pass that ends at the last of them.

use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::{At, Chain, Hooks, Point, Recorder};
use candle_core::{Result, Tensor};
use std::cell::Cell;
use std::collections::BTreeSet;

/// Records like [`Recorder`], and ends the pass with an error once it has all.
struct UntilRead {
    recorder: Recorder,
    left: Cell<usize>,
}

impl Hooks for UntilRead {
    fn wants(&self, point: Point) -> bool {
        self.recorder.wants(point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        self.recorder.at(at, value)?;
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            candle_core::bail!("every point has been read")
        }
        Ok(None)
    }
}

impl Gpt2LMHeadModel {
    /// The values at some points of a pass that goes no further than the last of them. `hooks` come first at each point.
    ///
    /// # Shapes
    /// `input_ids` (B, T) -> a tensor for each point, in order: see [`Point::shape`]
    ///
    /// # Errors
    /// When the ids are not (B, T) with 1 to N positions and ids below V, a point is not one of the model's, or a hook fails.
    pub fn values_at(
        &self,
        input_ids: &Tensor,
        points: &[Point],
        hooks: Option<&dyn Hooks>,
    ) -> Result<Vec<Tensor>> {
        let unique: BTreeSet<Point> = points.iter().copied().collect();
        let reading = UntilRead { left: Cell::new(unique.len()), recorder: Recorder::new(unique) };
        let all: Vec<&dyn Hooks> = hooks.into_iter().chain([&reading as &dyn Hooks]).collect();
        let chain = Chain(&all);
        let passed = self.forward(input_ids, ForwardArgs { hooks: Some(&chain), ..ForwardArgs::default() });
        if reading.left.get() > 0 || points.is_empty() {
            passed?;
        }
        points.iter().map(|&point| reading.recorder.value(point)).collect()
    }
}
