//! The passes through the model that a step and a validation need, shared out over the ranks.
//!
//! What a batch holds and what dropout drops depend on the batch's number alone, so any rank can compute any batch. The
//! ranks add losses and gradients in the order of the batches: the bits do not depend on the number of ranks.

use super::{ADAPTER, Trainer, Tuned};
use crate::error::{Result, TrainError};
use crate::exchange::Sums;
use crate::repeats::Repeats;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use candle_nn::VarBuilder;
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::hooks::Hooks;
use gpt2_model::training::{Training, TrainingBatch, add_gradients};

impl Trainer {
    /// The mean loss of the batches of a step, and the sums of gradients: of all variables or, in a group, of this rank's
    /// pieces.
    pub(super) fn summed_gradients(&self, step: u64) -> Result<(f32, Vec<Tensor>)> {
        if self.group.size() > 1 { self.sums_of_all_ranks(step) } else { self.sums_of_one_process(step) }
    }

    fn sums_of_one_process(&self, step: u64) -> Result<(f32, Vec<Tensor>)> {
        let mut mean = 0.0;
        let mut sum: Option<GradStore> = None;
        for number in self.batches(step) {
            let (loss, gradients) = self.gradients(number)?;
            mean = self.added(mean, loss, step, number)?;
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => add_gradients(sum, gradients, &self.variables)?,
            }
        }
        let none = || TrainError::Option { option: "accumulate", value: "0".into(), expected: "at least 1" };
        Ok((mean, self.in_order(sum.ok_or_else(none)?)?))
    }

    /// In each round, rank r computes the batch number r of those that are left.
    fn sums_of_all_ranks(&self, step: u64) -> Result<(f32, Vec<Tensor>)> {
        let (group, ranks) = (&*self.group, self.group.size() as u64);
        let mut mean = 0.0;
        let mut sums = Sums::new(group, &self.shares);
        let all = self.batches(step);
        let mut first = all.start;
        while first < all.end {
            let senders = (all.end - first).min(ranks);
            let number = first + group.rank() as u64;
            let mine = (number < all.end).then(|| self.gradients(number)).transpose()?;
            let losses = group.gather_one(mine.as_ref().map_or(0.0, |(loss, _)| *loss))?;
            for (number, loss) in (first..first + senders).zip(losses) {
                mean = self.added(mean, loss, step, number)?;
            }
            let gradients = mine.map(|(_, gradients)| self.in_order(gradients)).transpose()?;
            sums.add(gradients.as_deref(), usize::try_from(senders).map_err(TrainError::other)?)?;
            first += senders;
        }
        Ok((mean, sums.rows()?))
    }

    /// The numbers of a step's batches.
    fn batches(&self, step: u64) -> std::ops::Range<u64> {
        let batches = u64::from(self.options.accumulate);
        step * batches..(step + 1) * batches
    }

    /// The mean with one more loss; refuses one that is not finite.
    fn added(&self, mean: f32, loss: f32, step: u64, number: u64) -> Result<f32> {
        let mean = mean + loss / f32::from(self.options.accumulate);
        if mean.is_finite() {
            return Ok(mean);
        }
        Err(TrainError::Loss { step, loss: mean, inputs: self.batch(number)?.input_ids })
    }

    /// What a batch holds.
    fn batch(&self, number: u64) -> Result<TrainingBatch> {
        let fraction = self.options.repeat_fraction;
        let repeats = Repeats { fraction, vocab_size: self.model.config().vocab_size };
        let place = (self.options.seed, number);
        self.data.training_batch(place, self.options.batch.into(), self.window, repeats, &self.device)
    }

    /// Loss and gradients of a batch.
    fn gradients(&self, number: u64) -> Result<(f32, GradStore)> {
        let batch = self.batch(number)?;
        let training = Some(Training { seed: self.options.seed, step: number });
        if self.options.recompute {
            return Ok(self.model.recomputed_gradients_of(&batch, training)?);
        }
        let loss = self.model.loss_of_batch(&batch, None, training)?;
        Ok((loss.to_scalar()?, loss.backward()?))
    }

    /// The gradients of all variables, in their order.
    fn in_order(&self, mut gradients: GradStore) -> Result<Vec<Tensor>> {
        let take = |(name, var): &(String, Var)| match gradients.remove(var) {
            Some(gradient) => Ok(gradient),
            None => Err(candle_core::Error::msg(format!("{name} has no gradient")).into()),
        };
        self.variables.iter().map(take).collect()
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
    /// As for [`validation_loss`](Self::validation_loss), and errors from the hooks.
    pub fn validation_loss_under(&self, hooks: &dyn Hooks) -> Result<f64> {
        self.loss_under(Some(hooks))
    }

    fn loss_under(&self, hooks: Option<&dyn Hooks>) -> Result<f64> {
        let model = self.frozen()?;
        let batches = self.data.validation_batches(self.options.batch.into(), self.window);
        let (rank, ranks) = (self.group.rank(), self.group.size());
        // The sum of a batch's losses, and how many there are.
        let mut mine: Vec<[f64; 2]> = vec![];
        for batch in batches.iter().skip(rank).step_by(ranks) {
            let (batch, targets) = batch.load(self.window, &self.device)?;
            let loss = match hooks {
                Some(hooks) => model.loss_under(&batch, hooks)?,
                None => model.loss_of_batch(&batch, None, None)?,
            };
            mine.push([f64::from(loss.to_scalar::<f32>()?) * targets as f64, targets as f64]);
        }
        let all = self.group.gather_bytes(bytemuck::cast_slice(&mine))?;
        let parts: Vec<Vec<[f64; 2]>> = all.iter().map(|part| bytemuck::pod_collect_to_vec(part)).collect();
        let sums = (0..batches.len()).map(|i| parts[i % ranks][i / ranks]);
        let [sum, targets] = sums.fold([0.0; 2], |[a, b], [x, y]| [a + x, b + y]);
        Ok(sum / targets)
    }

    /// The model with its variables as constants, so that Candle keeps no operations for a backward pass.
    fn frozen(&self) -> Result<Gpt2LMHeadModel> {
        if let Some(Tuned { base, adapter, .. }) = &self.tuned {
            return Ok(base.clone().with_adapter(ADAPTER, &adapter.detached(), 1.0)?);
        }
        let constant = |(name, var): &(String, Var)| (name.clone(), var.as_detached_tensor());
        let constants = self.variables.iter().map(constant).collect();
        let vb = VarBuilder::from_tensors(constants, DType::F32, &self.device);
        Ok(Gpt2LMHeadModel::load(vb, self.model.config())?)
    }
}
