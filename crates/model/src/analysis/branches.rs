//! Runs of one text that differ from some layer on, several at a time.

use super::Metric;
use crate::hooks::{At, Chain, Hooks, Interventions, KnockOut, PassHooks, Point};
use crate::{Gpt2LMHeadModel, Pass};
use candle_core::{Module, Result, Tensor};

/// The number of positions to run at a time, over all copies of the text: enough to keep the matrix products
/// busy, few enough for memory.
const POSITIONS: usize = 1024;

/// A text, whose copies run from some layer on, each with its own change. The layers below run once.
pub(super) struct Branches<'a> {
    pub(super) model: &'a Gpt2LMHeadModel,
    pub(super) metric: Metric,
    /// Hooks for the text itself and all of its copies.
    pub(super) hooks: Option<&'a dyn Hooks>,
}

impl Branches<'_> {
    /// The metric without a change, and that with each of a layer's changes: `changes` gives those of a layer. Calls
    /// `done` with the number of changes that have run, after each group of them.
    ///
    /// `input_ids` (1, T)
    pub(super) fn run(
        &self,
        input_ids: &Tensor,
        changes: impl Fn(usize) -> Result<Vec<Interventions>>,
        done: &mut dyn FnMut(usize),
    ) -> Result<(f64, Vec<Vec<f64>>)> {
        let mut x = self.model.transformer.embedded(
            input_ids,
            None,
            None,
            PassHooks { hooks: self.hooks, ..PassHooks::default() },
        )?; // (1, T, C)
        let at_once = (POSITIONS / x.dim(1)?).max(1);
        let mut found = vec![];
        for layer in 0..self.model.transformer.h.len() {
            let mut of_layer = vec![];
            for some in changes(layer)?.chunks(at_once) {
                let copies = x.repeat((some.len(), 1, 1))?;
                let change = ByRow(some);
                let copies = self.block(layer, &copies, Some(&change))?;
                of_layer.extend(self.finish(layer + 1, copies)?);
                done(some.len());
            }
            found.push(of_layer);
            x = self.block(layer, &x, None)?;
        }
        let plain = self.finish(self.model.transformer.h.len(), x)?;
        Ok((plain.first().copied().unwrap_or(f64::NAN), found))
    }

    /// The metric at the end of each copy, from the stream before block `layer`: (copies, T, C) -> copies
    fn finish(&self, layer: usize, mut x: Tensor) -> Result<Vec<f64>> {
        let transformer = &self.model.transformer;
        let blocks = transformer.h.len();
        for layer in layer..blocks {
            // Nothing reads the other positions after the last block.
            let last_position_only = self.hooks.is_none() && layer + 1 == blocks;
            x = if last_position_only {
                transformer.h[layer].forward(&x, Pass { last_position_only, ..Pass::default() })?.hidden_state
            } else {
                self.block(layer, &x, None)?
            };
        }
        let t = x.dim(1)?;
        let last = x.narrow(1, t - 1, 1)?.contiguous()?;
        let hooks = PassHooks { hooks: self.hooks, past: t - 1, ..PassHooks::default() };
        let normed = self.model.transformer.ln_f.forward_hooked(&last, Point::LN_F, hooks)?;
        let logits = hooks.pass(Point::Logits, self.model.lm_head.forward(&normed)?)?;
        self.metric.at_end(&logits)
    }

    fn block(&self, layer: usize, x: &Tensor, change: Option<&ByRow>) -> Result<Tensor> {
        let all: Vec<&dyn Hooks> =
            self.hooks.into_iter().chain(change.map(|change| change as &dyn Hooks)).collect();
        let chain = Chain(&all);
        let hooks: Option<&dyn Hooks> = if all.is_empty() { None } else { Some(&chain) };
        Ok(self.model.transformer.h[layer].forward(x, Pass { hooks, ..Pass::default() })?.hidden_state)
    }
}

/// A change for each row of the batch.
struct ByRow<'a>(&'a [Interventions]);

impl Hooks for ByRow<'_> {
    fn wants(&self, point: Point) -> bool {
        self.0.iter().any(|change| change.wants(point))
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let rows = self.0.iter().enumerate().map(|(i, change)| {
            let row = value.narrow(0, i, 1)?;
            if !change.wants(at.point) {
                return Ok(row);
            }
            Ok(change.at(at, &row)?.unwrap_or(row))
        });
        Ok(Some(Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?))
    }

    fn knocked_out(&self, _: usize) -> Vec<KnockOut> {
        vec![] // The changes that this module is given act on values.
    }
}
