//! The losses of training steps that all read the same batch.

use crate::open::Opened;
use anyhow::bail;
use candle_core::{DType, Tensor};
use candle_nn::VarMap;
use gpt2_model::training::{TrainingBatch, variables_of};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
use gpt2_train::{AdamW, AdamWParams};

/// Steps on one batch of `rows` texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steps {
    /// The number of steps.
    pub count: usize,
    /// The texts of the batch.
    pub rows: usize,
    /// The tokens of each.
    pub columns: usize,
    /// The learning rate of each step.
    pub learning_rate: f64,
}

/// The loss before each step, in nats a token, of a copy of the model: the first `rows` times `columns` tokens are read, and each is to
/// predict the one behind it. AdamW has its usual settings, without dropout; only matrices decay.
///
/// # Errors
/// When there are fewer tokens, a text does not fit the model, or the observer of the caller ends it through `step`.
pub fn losses(
    opened: &Opened,
    ids: &[u32],
    steps: &Steps,
    mut step: impl FnMut(usize) -> candle_core::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    let &Steps { count, rows, columns, learning_rate } = steps;
    let wanted = rows * columns + 1;
    if ids.len() < wanted {
        bail!("the text has {} tokens, and {wanted} are needed for {rows} rows of {columns}", ids.len());
    }
    let device = opened.model.device();
    let table = |ids: &[u32]| Tensor::from_slice(ids, (rows, columns), device);
    let batch = TrainingBatch::new(table(&ids[..wanted - 1])?, table(&ids[1..wanted])?);
    let variables = VarMap::new();
    let config = opened.model.config().clone();
    let config = Config { tie_word_embeddings: opened.model.is_tied(), ..config };
    let model = Gpt2LMHeadModel::load(init::seeded_variables(0, &variables, DType::F32, device), &config)?;
    let held = variables_of(&variables)?;
    for (name, values) in opened.model.named_parameters() {
        let Some((_, variable)) = held.iter().find(|(held, _)| *held == name) else {
            bail!("the copy of the model has no parameter {name}");
        };
        variable.set(&values.tensor()?.to_dtype(DType::F32)?)?;
    }
    let mut adam = AdamW::new(held, AdamWParams::default())?;
    let mut found = vec![];
    for number in 0..count {
        let loss = model.loss(&batch, ForwardArgs::default())?;
        found.push(f64::from(loss.to_scalar::<f32>()?));
        if number + 1 < count {
            adam.step(&loss.backward()?, learning_rate, 1.0)?;
        }
        step(number + 1)?;
    }
    Ok(found)
}
