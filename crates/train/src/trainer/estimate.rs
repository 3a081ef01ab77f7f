//! An estimate of the time and memory of a run, before it begins.

use super::Trainer;
use crate::documents::BatchSize;
use crate::error::Result;
use crate::report::Estimate;
use std::time::{Duration, Instant};

/// A row is measured by itself first; whole batches that take no longer are measured, too.
const SHORT: Duration = Duration::from_millis(500);
/// The share of a gradient's time that the pass forward takes.
const FORWARD: f64 = 0.33;
/// The numbers that a block keeps of a position for the pass backward, in widths of the residual stream.
const KEPT_BY_BLOCK: usize = 20;
/// The numbers beside the blocks: of the pass backward through one of them, and of the ends of the model.
const KEPT_BESIDE: usize = 36;
/// The positions whose logits exist at a time: the loss computes them in chunks.
const LOGITS: usize = 512;
/// The numbers in memory for each of these logits: itself, and its copy for a product. The copy of the output table that products
/// pack on AVX2, in portable code and in bf16 is not counted.
const OF_LOGITS: usize = 2;
/// The bytes of the program itself.
const PROGRAM: usize = 88 << 20;

impl Trainer {
    /// Measures the gradients of some rows on this machine, which changes nothing, and counts the numbers that a step keeps. Other ranks
    /// need not call it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn estimate(&self) -> Result<Estimate> {
        let options = &self.settings.options;
        let ranks = self.group().size();
        let batch = usize::from(options.batch);
        self.time_of(1)?; // the first pass also wakes threads and memory
        let row = self.time_of(1)?;
        let of_batch = if row * options.batch.into() < SHORT {
            self.time_of(batch)?
        } else {
            row * options.batch.into()
        };
        let of_batch = of_batch.as_secs_f64();
        let rounds = usize::from(options.accumulate).div_ceil(ranks) as f64;
        let steps = u64::from(options.steps).saturating_sub(self.steps());
        let of_step = of_batch * rounds + self.optimizer.matrices_take()?.as_secs_f64();
        let validations = steps.div_ceil(options.eval_every.into()) as f64;
        let size = BatchSize { rows: batch, window: self.window };
        let rounds = self.data.validation_batches(size).len().div_ceil(ranks);
        let of_validation = FORWARD * of_batch * rounds as f64;
        Ok(Estimate { seconds: of_step * steps as f64 + of_validation * validations, bytes: self.bytes() })
    }

    /// The time of the gradients of so many rows.
    fn time_of(&self, rows: usize) -> Result<Duration> {
        let batch = self.rows(0, rows)?;
        let begun = Instant::now();
        self.gradients_of(&batch, 0)?;
        Ok(begun.elapsed())
    }

    /// The bytes of weights, gradients, sums, moments and what a batch keeps for the pass backward.
    fn bytes(&self) -> u64 {
        let config = self.model.config();
        let options = &self.settings.options;
        let learned: usize = self.optimizer.variables.iter().map(|(_, var)| var.elem_count()).sum();
        let frozen = self.tuned.as_ref().and_then(|_| config.parameter_count().ok()).unwrap_or(0);
        let frozen = usize::try_from(frozen).unwrap_or(usize::MAX);
        let (moments, own) = self.optimizer.kept();
        let sums = if options.accumulate > 1 || self.group().size() > 1 { own } else { 0 };
        let blocks = if options.recompute { 1 } else { config.n_layer };
        let inputs = if options.recompute { config.n_layer } else { 0 };
        let of_position = config.n_embd * (blocks * KEPT_BY_BLOCK + inputs + KEPT_BESIDE);
        let positions = usize::from(options.batch) * self.window;
        let logits = positions.min(LOGITS) * config.vocab_size * OF_LOGITS;
        let numbers = frozen + 2 * learned + moments + sums + positions * of_position + logits;
        (PROGRAM + numbers * size_of::<f32>()) as u64
    }
}
