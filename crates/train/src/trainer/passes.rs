//! The passes through the model that a step and a validation need, shared out over the ranks.
//!
//! A batch's text and the numbers that dropout drops depend on the batch's number alone, so any rank can compute any batch.
//! The ranks add losses and gradients in the order of the batches: the bits do not depend on the number of ranks.

use super::{ADAPTER, Trainer, Tuned};
use crate::data::Repeats;
use crate::documents::{BatchDraw, BatchSize};
use crate::error::{Result, TrainError};
use crate::options::TrainOptions;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use candle_nn::VarBuilder;
use gpt2_model::hooks::Hooks;
use gpt2_model::training::{Training, TrainingBatch};
use gpt2_model::{ForwardArgs, Gpt2LMHeadModel};

impl Trainer {
    /// The mean loss of the batches of a step, and the sums of gradients of this rank's pieces. In each round, rank r computes
    /// the batch number r of those that are left.
    pub(super) fn summed_gradients(&self, step: u64) -> Result<(f32, Vec<Tensor>)> {
        let group = self.optimizer.group();
        let rank = group.rank() as u64;
        let ranks = group.size() as u64;
        let mut mean = 0.0;
        let mut sums = self.optimizer.sums();
        let batches = self.batches(step);
        let mut first = batches.start;
        while first < batches.end {
            let senders = (batches.end - first).min(ranks);
            let mine = (rank < senders).then(|| self.gradients(first + rank)).transpose()?;
            let losses = group.gather_one(mine.as_ref().map_or(0.0, |(loss, _)| *loss))?;
            for (number, loss) in (first..first + senders).zip(losses) {
                mean = self.added(mean, loss, step, number)?;
            }
            let gradients = mine.map(|(_, gradients)| self.optimizer.in_order(gradients)).transpose()?;
            sums.add(gradients, usize::try_from(senders).map_err(TrainError::other)?)?;
            first += senders;
        }
        Ok((mean, sums.rows()?))
    }

    /// The numbers of a step's batches.
    fn batches(&self, step: u64) -> std::ops::Range<u64> {
        let batches = u64::from(self.settings.options.accumulate);
        step * batches..(step + 1) * batches
    }

    /// The mean with one more loss; refuses one that is not finite.
    fn added(&self, mean: f32, loss: f32, step: u64, number: u64) -> Result<f32> {
        let mean = mean + loss / f32::from(self.settings.options.accumulate);
        if mean.is_finite() {
            return Ok(mean);
        }
        Err(TrainError::Loss { step, loss: mean, inputs: self.batch(number)?.input_ids })
    }

    /// Draws the text of a batch.
    fn batch(&self, number: u64) -> Result<TrainingBatch> {
        self.rows(number, self.settings.options.batch.into())
    }

    /// Draws the text of a batch of so many rows.
    pub(super) fn rows(&self, number: u64, rows: usize) -> Result<TrainingBatch> {
        let TrainOptions { seed, repeat_fraction: fraction, .. } = self.settings.options;
        let repeats = Repeats { fraction, vocab_size: self.model.config().vocab_size };
        let size = BatchSize { rows, window: self.window };
        self.data.training_batch(BatchDraw { seed, batch: number }, size, repeats, &self.device)
    }

    /// Loss and gradients of a batch.
    fn gradients(&self, number: u64) -> Result<(f32, GradStore)> {
        self.gradients_of(&self.batch(number)?, number)
    }

    /// Loss and gradients of these rows, which drop what batch `number` does.
    pub(super) fn gradients_of(&self, batch: &TrainingBatch, number: u64) -> Result<(f32, GradStore)> {
        let training = Some(Training { seed: self.settings.options.seed, step: number });
        if self.settings.options.recompute {
            return Ok(self.model.recomputed_gradients_of(batch, training)?);
        }
        let loss = self.model.loss(batch, ForwardArgs { training, ..ForwardArgs::default() })?;
        Ok((loss.to_scalar()?, loss.backward()?))
    }

    /// The mean loss over the validation part, in consecutive windows; tokens at the end that do not fill a window
    /// are left out; of documents, over all completions. Every rank of a group must call this together, and gets the same number.
    ///
    /// # Errors
    /// When the device fails.
    pub fn validation_loss(&self) -> Result<f64> {
        self.loss_under(None)
    }

    /// The validation loss with `hooks` in the model, such as heads ablated: how much it relies on them. All ranks of a group
    /// call it together.
    ///
    /// # Errors
    /// Same as [`validation_loss`](Self::validation_loss), and errors from the hooks.
    pub fn validation_loss_under(&self, hooks: &dyn Hooks) -> Result<f64> {
        self.loss_under(Some(hooks))
    }

    fn loss_under(&self, hooks: Option<&dyn Hooks>) -> Result<f64> {
        let model = self.frozen()?;
        let rows = self.settings.options.batch.into();
        let batches = self.data.validation_batches(BatchSize { rows, window: self.window });
        let group = self.optimizer.group();
        let rank = group.rank();
        let ranks = group.size();
        // The sum of a batch's losses, and how many there are.
        let mut mine: Vec<[f64; 2]> = vec![];
        for batch in batches.iter().skip(rank).step_by(ranks) {
            let (batch, targets) = batch.load(self.window, &self.device)?;
            let loss = model.loss(&batch, ForwardArgs { hooks, ..ForwardArgs::default() })?;
            mine.push([f64::from(loss.to_scalar::<f32>()?) * targets as f64, targets as f64]);
        }
        let all = group.gather_bytes(bytemuck::cast_slice(&mine))?;
        let parts: Vec<Vec<[f64; 2]>> = all.iter().map(|part| bytemuck::pod_collect_to_vec(part)).collect();
        let sums = (0..batches.len()).map(|i| parts[i % ranks][i / ranks]);
        let [sum, targets] = sums.fold([0.0; 2], |[a, b], [x, y]| [a + x, b + y]);
        Ok(sum / targets)
    }

    /// The model in its present state with its variables as constants, so that Candle keeps no operations for a backward pass.
    ///
    /// # Errors
    /// When a weight has another shape than the config says.
    pub fn frozen(&self) -> Result<Gpt2LMHeadModel> {
        if let Some(Tuned { base, adapter, .. }) = &self.tuned {
            return Ok(base.clone().with_adapter(ADAPTER, &adapter.detached(), 1.0)?);
        }
        let constant = |(name, var): &(String, Var)| (name.clone(), var.as_detached_tensor());
        let constants = self.optimizer.variables.iter().map(constant).collect();
        let vb = VarBuilder::from_tensors(constants, DType::F32, &self.device);
        Ok(Gpt2LMHeadModel::load(vb, self.model.config())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, batch};
    use candle_core::Device;
    use gpt2_model::Config;
    use std::borrow::Cow;

    const WINDOW: usize = 4;

    fn options(batch: u16) -> TrainOptions {
        TrainOptions { batch, ..TrainOptions::new(1000) }
    }

    fn trainer(options: TrainOptions, dropout: f64) -> Result<Trainer> {
        let config = Config {
            vocab_size: 7,
            n_positions: WINDOW,
            n_embd: 8,
            n_layer: 1,
            n_head: 2,
            // Large, so that the windows' losses differ.
            initializer_range: 0.5,
            attn_pdrop: dropout,
            resid_pdrop: dropout,
            embd_pdrop: dropout,
            ..Config::gpt2()
        };
        Trainer::new(&config, data(), options, &Device::Cpu)
    }

    /// Five windows for validation, and a few more tokens that do not fill one.
    fn data() -> Dataset {
        let val = (0..23).map(|i| (i * i * 5 + i) % 7).collect();
        Dataset { train: vec![3; 20], val, documents: None }
    }

    impl Trainer {
        fn loss_of(&self, ids: &[u32], training: Option<Training>) -> Result<f64> {
            let batch = batch(&[Cow::Borrowed(&ids[..=WINDOW])], &self.device)?;
            let args = ForwardArgs { training, ..ForwardArgs::default() };
            Ok(self.model.loss(&batch, args)?.to_scalar::<f32>()?.into())
        }
    }

    #[track_caller]
    fn assert_close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-5, "{got}, not {expected}");
    }

    #[test]
    fn every_validation_window_weighs_the_same_in_batches_of_any_size() -> Result<()> {
        let data = data();
        for size in [1, 2, 3, 4, 5, 8] {
            let trainer = trainer(options(size), 0.0)?;
            let window = |i: usize| trainer.loss_of(&data.val[i * WINDOW..=(i + 1) * WINDOW], None);
            let windows = (0..5).map(window).collect::<Result<Vec<_>>>()?;
            let mean = windows.iter().sum::<f64>() / 5.0;
            assert!((windows[4] - mean).abs() > 0.1, "the last window weighs nothing: {windows:?}");
            assert_close(trainer.validation_loss()?, mean);
        }
        Ok(())
    }

    #[test]
    fn nothing_is_dropped_in_validation() -> Result<()> {
        let data = data();
        let with = trainer(options(2), 0.5)?;
        let without = trainer(options(2), 0.0)?;
        let training = Some(Training { seed: 0, step: 0 });
        let dropped = with.loss_of(&data.val, training)?;
        let plain = without.loss_of(&data.val, training)?;
        assert!((dropped - plain).abs() > 1e-3, "dropout changes nothing: {dropped} {plain}");
        assert_close(with.validation_loss()?, without.validation_loss()?);
        Ok(())
    }

    /// All windows of the training part are the same, so that batches differ only in their dropout.
    #[test]
    fn every_batch_of_a_step_drops_other_numbers() -> Result<()> {
        let data = data();
        for recompute in [false, true] {
            let options = TrainOptions { accumulate: 2, seed: 5, recompute, ..options(1) };
            let mut trainer = trainer(options, 0.5)?;
            for step in 0..2 {
                let loss = |number| trainer.loss_of(&data.train, Some(Training { seed: 5, step: number }));
                let first = loss(2 * step)?;
                let second = loss(2 * step + 1)?;
                assert!((first - second).abs() > 1e-3, "{first} {second}");
                let mean = trainer.step()?.loss;
                assert_close(mean.into(), f64::midpoint(first, second));
            }
        }
        Ok(())
    }
}
