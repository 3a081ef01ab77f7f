//! A training step that keeps only one block's activations at a time (gradient checkpointing, Chen et al. 2016).
//!
//! The forward pass keeps only the input of each block; the backward pass runs each block again before it
//! differentiates it. Dropout draws the same masks again. Memory for activations falls from L blocks to one
//! block and L inputs, at the cost of running the blocks' forward passes twice.

use super::attention::pass::Pass;
use super::checked_inputs::check_targets;
use super::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::PassHooks;
use crate::learn::training::{Training, TrainingBatch, add_gradients};
use candle_core::backprop::GradStore;
use candle_core::{Module, Result, Tensor, Var};

impl Gpt2LMHeadModel {
    /// The mean cross-entropy of predicting `targets` and the gradients of all variables, running each block
    /// twice. The numbers are the same as from [`loss`](Self::loss) and `backward`.
    ///
    /// # Shapes
    /// `input_ids` (B, T), `targets` (B, T): the token that follows each
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward), weights that are not variables, and a model with cross-attention.
    pub fn recomputed_gradients(
        &self,
        input_ids: &Tensor,
        targets: &Tensor,
        training: Option<Training>,
    ) -> Result<(f32, GradStore)> {
        self.recomputed_gradients_of(&TrainingBatch::new(input_ids.clone(), targets.clone()), training)
    }

    /// [`recomputed_gradients`](Self::recomputed_gradients) over a batch that may hold several documents in a row, and targets
    /// that are not learned.
    ///
    /// # Errors
    /// Returns the errors of [`recomputed_gradients`](Self::recomputed_gradients).
    pub fn recomputed_gradients_of(
        &self,
        batch: &TrainingBatch,
        training: Option<Training>,
    ) -> Result<(f32, GradStore)> {
        check_targets(&batch.input_ids, &batch.targets)?;
        if self.config().add_cross_attention {
            candle_core::bail!(
                "recomputed_gradients: there is no encoder, without which the parameters of cross-attention get no gradient; \
                 use Gpt2LMHeadModel::loss with an encoder"
            )
        }
        let variables = &self.named_variables()?;
        let model = &self.transformer;
        let pass = || Pass { training, document_starts: batch.starts(), ..Pass::default() };
        let embedded = model.embedded(&batch.input_ids, batch.starts(), training, PassHooks::default())?; // (B, T, C)
        let mut x = embedded.detach();
        let mut inputs = Vec::with_capacity(model.h.len());
        for block in &model.h {
            let output = block.forward_with(&x, pass())?.hidden_state.detach();
            inputs.push(std::mem::replace(&mut x, output));
        }

        let last = Var::from_tensor(&x)?;
        let (loss, mut gradients) = {
            let normed = model.ln_f.forward(&last)?;
            let (x, targets) = batch.learned(&normed)?;
            let loss = self.lm_head.cross_entropy(&x, &targets)?;
            (loss.to_scalar::<f32>()?, loss.backward()?)
        };
        let mut grad = taken(&mut gradients, &last)?;
        for (block, input) in model.h.iter().zip(inputs).rev() {
            let input = Var::from_tensor(&input)?;
            let output = block.forward_with(&input, pass())?.hidden_state;
            let mut more = (output * grad.detach())?.sum_all()?.backward()?;
            grad = taken(&mut more, &input)?;
            add_gradients(&mut gradients, more, variables)?;
        }
        let more = (embedded * grad.detach())?.sum_all()?.backward()?;
        add_gradients(&mut gradients, more, variables)?;
        Ok((loss, gradients))
    }
}

/// Takes the gradient of a block's input out of `gradients`.
fn taken(gradients: &mut GradStore, var: &Var) -> Result<Tensor> {
    match gradients.remove(var) {
        Some(gradient) => Ok(gradient),
        None => candle_core::bail!("no gradient reaches the input of a block: are the weights variables?"),
    }
}
