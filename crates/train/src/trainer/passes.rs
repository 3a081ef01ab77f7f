//! The passes through the model that a step and a validation need, shared out over the ranks.
//!
//! What a batch holds and what dropout drops depend on the batch's number alone, so any rank can compute any batch. The
//! ranks add losses and gradients in the order of the batches: the bits do not depend on the number of ranks.

use super::{ADAPTER, Trainer, Tuned};
use crate::data::Repeats;
use crate::documents::{BatchSize, Draw};
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
        let group = &*self.exchange.group;
        let (rank, ranks) = (group.rank() as u64, group.size() as u64);
        let mut mean = 0.0;
        let mut sums = self.exchange.sums();
        let batches = self.batches(step);
        let mut first = batches.start;
        while first < batches.end {
            let senders = (batches.end - first).min(ranks);
            let mine = (rank < senders).then(|| self.gradients(first + rank)).transpose()?;
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

    /// What a batch holds.
    fn batch(&self, number: u64) -> Result<TrainingBatch> {
        let TrainOptions { seed, batch, repeat_fraction: fraction, .. } = self.settings.options;
        let repeats = Repeats { fraction, vocab_size: self.model.config().vocab_size };
        let size = BatchSize { rows: batch.into(), window: self.window };
        self.data.training_batch(Draw { seed, batch: number }, size, repeats, &self.device)
    }

    /// Loss and gradients of a batch.
    fn gradients(&self, number: u64) -> Result<(f32, GradStore)> {
        let batch = self.batch(number)?;
        let training = Some(Training { seed: self.settings.options.seed, step: number });
        if self.settings.options.recompute {
            return Ok(self.model.recomputed_gradients_of(&batch, training)?);
        }
        let loss = self.model.loss(&batch, ForwardArgs { training, ..ForwardArgs::default() })?;
        Ok((loss.to_scalar()?, loss.backward()?))
    }

    /// The gradients of all variables, in their order, contiguous.
    fn in_order(&self, mut gradients: GradStore) -> Result<Vec<Tensor>> {
        let take = |(name, var): &(String, Var)| match gradients.remove(var) {
            Some(gradient) => Ok(gradient.contiguous()?),
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
        let rows = self.settings.options.batch.into();
        let batches = self.data.validation_batches(BatchSize { rows, window: self.window });
        let group = &*self.exchange.group;
        let (rank, ranks) = (group.rank(), group.size());
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
