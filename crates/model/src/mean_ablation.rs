//! Mean ablation for a text that a cache splits into several passes: the means are computed beforehand.

use crate::hooks::{At, Hooks, Intervention, Interventions, KnockOut, Point, mean};
use crate::{ForwardArgs, Gpt2LMHeadModel};
use candle_core::{Result, Tensor};
use std::cell::RefCell;
use std::collections::BTreeMap;

impl Interventions {
    /// Replaces each mean ablation by a fixed mean, computed now in a run over `input_ids` (B, T) without padding.
    /// Passes with a cache need this.
    ///
    /// # Errors
    /// The errors of the model's forward pass.
    pub fn with_means_of(mut self, model: &Gpt2LMHeadModel, input_ids: &Tensor) -> Result<Self> {
        if !self.list.iter().any(|one| matches!(one, Intervention::MeanAblate(_))) {
            return Ok(self);
        }
        let means = Means { of: &self, t: input_ids.dim(1)?, found: RefCell::default() };
        model.transformer.forward(input_ids, ForwardArgs { hooks: Some(&means), ..Default::default() })?;
        for (i, mean) in means.found.into_inner() {
            if let Some(head) = self.list[i].head() {
                self.list[i] = Intervention::Replace(head, mean.flatten_all()?);
            }
        }
        Ok(self)
    }
}

/// A run under interventions that records the mean for each mean ablation when it comes to it.
struct Means<'a> {
    of: &'a Interventions,
    /// The text has positions 0..t so far; later positions come with generation.
    t: usize,
    /// The means, (1, 1, 1, D), by their index in the list.
    found: RefCell<BTreeMap<usize, Tensor>>,
}

impl Hooks for Means<'_> {
    fn wants(&self, point: Point) -> bool {
        self.of.wants(point)
    }

    fn at(&self, at: At, z: &Tensor) -> Result<Option<Tensor>> {
        self.of.change(at, z, |i, z| {
            if matches!(self.of.list[i], Intervention::MeanAblate(_)) {
                self.found.borrow_mut().insert(i, mean(z, at)?);
            }
            Ok(())
        })
    }

    fn knocked_out(&self, layer: usize) -> Vec<KnockOut> {
        self.of.knocked_out(layer).into_iter().filter(|pair| pair.query < self.t).collect()
    }
}
