//! The losses of a run so far, and its best validation.

use crate::error::BoxError;
use candle_core::{Device, Result, Tensor};
use std::collections::BTreeMap;

/// A run's losses in nats a token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// The loss of each step, starting with the first.
    training: Vec<f32>,
    /// Step and loss of each validation.
    validation: Vec<(u64, f64)>,
}

/// The best validation of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Best {
    /// Mean loss in nats a token.
    pub loss: f64,
    /// Steps done before it.
    pub step: u64,
}

impl History {
    pub(crate) fn add_step(&mut self, loss: f32) {
        self.training.push(loss);
    }

    /// Whether this loss is lower than all before it.
    pub(crate) fn add_validation(&mut self, step: u64, loss: f64) -> bool {
        let lowest = self.best().is_none_or(|best| loss < best.loss);
        self.validation.push((step, loss));
        lowest
    }

    /// The loss of each step, from the first on.
    #[must_use]
    pub fn training(&self) -> &[f32] {
        &self.training
    }

    /// Step and loss of each validation.
    #[must_use]
    pub fn validation(&self) -> &[(u64, f64)] {
        &self.validation
    }

    /// The first validation with the lowest loss.
    #[must_use]
    pub fn best(&self) -> Option<Best> {
        let best = self.validation.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        best.map(|&(step, loss)| Best { loss, step })
    }

    /// All losses as bytes, for other ranks.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = (self.training.len() as u64).to_le_bytes().to_vec();
        bytes.extend(self.training.iter().flat_map(|loss| loss.to_le_bytes()));
        bytes.extend(
            self.validation.iter().flat_map(|(step, loss)| [step.to_le_bytes(), loss.to_le_bytes()].concat()),
        );
        bytes
    }

    /// Reads [`to_bytes`](Self::to_bytes).
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let steps = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (training, rest) = rest.split_at_checked(steps.checked_mul(4)?)?;
        let (pairs, left) = rest.as_chunks::<16>();
        let pair = |pair: &[u8; 16]| {
            let (step, loss) = pair.split_first_chunk::<8>()?;
            Some((u64::from_le_bytes(*step), f64::from_le_bytes(loss.try_into().ok()?)))
        };
        let training = training.as_chunks().0.iter().map(|loss| f32::from_le_bytes(*loss)).collect();
        let validation = pairs.iter().map(pair).collect::<Option<_>>()?;
        left.is_empty().then_some(Self { training, validation })
    }

    /// The tensors to save in a file.
    pub(crate) fn tensors(&self) -> Result<[(&'static str, Tensor); 3]> {
        let (steps, losses): (Vec<i64>, Vec<f64>) =
            self.validation.iter().map(|&(step, loss)| (step.cast_signed(), loss)).unzip();
        Ok([
            ("history.training", Tensor::new(self.training.as_slice(), &Device::Cpu)?),
            ("history.validation", Tensor::new(losses, &Device::Cpu)?),
            ("history.validation_steps", Tensor::new(steps, &Device::Cpu)?),
        ])
    }

    /// Rebuilds the history from the tensors of a file saved after `steps_done` steps.
    pub(crate) fn from_tensors(
        tensors: &BTreeMap<String, Tensor>,
        steps_done: u64,
    ) -> std::result::Result<Self, BoxError> {
        let part = |name: &str| tensors.get(name).ok_or_else(|| format!("it lacks {name}"));
        let steps = part("history.validation_steps")?.to_vec1::<i64>()?;
        let losses = part("history.validation")?.to_vec1::<f64>()?;
        let training: Vec<f32> = part("history.training")?.to_vec1()?;
        if training.len() as u64 != steps_done || steps.len() != losses.len() {
            return Err(format!("its losses are damaged: {} of {steps_done} steps", training.len()).into());
        }
        Ok(Self { training, validation: steps.into_iter().map(i64::cast_unsigned).zip(losses).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written() -> std::result::Result<(), BoxError> {
        let mut history = History::default();
        for (step, validation) in [(1, None), (2, Some(3.0)), (3, Some(2.5)), (4, Some(2.5)), (5, Some(2.75))]
        {
            let read = |steps| {
                let tensors = history.tensors()?.map(|(name, tensor)| (name.to_string(), tensor));
                History::from_tensors(&tensors.into(), steps)
            };
            assert_eq!(read(step - 1)?, history);
            assert_eq!(History::from_bytes(&history.to_bytes()).as_ref(), Some(&history));
            assert!(read(step).is_err(), "a step that is not there");
            history.add_step(step as f32);
            if let Some(loss) = validation {
                assert_eq!(history.add_validation(step, loss), [3.0, 2.5].contains(&loss) && step < 4);
            }
        }
        assert_eq!(history.best().map(|best| best.step), Some(3), "the first of the lowest");
        Ok(())
    }
}
