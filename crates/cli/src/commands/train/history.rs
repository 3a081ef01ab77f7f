//! The losses of a run so far: which weights are the best, and the picture at its end.

use anyhow::{Context, bail};
use candle_core::{Device, Result, Tensor};
use gpt2_view::Provenance;
use std::collections::BTreeMap;
use std::path::Path;

/// A run's losses in nats a token.
#[derive(Debug, Default, PartialEq)]
pub(super) struct History {
    /// Of each step, from the first on.
    training: Vec<f32>,
    /// Step and loss of each validation.
    validation: Vec<(u64, f64)>,
}

/// A validation.
#[derive(Clone, Copy)]
pub(super) struct Best {
    pub(super) loss: f64,
    pub(super) step: u64,
}

impl History {
    pub(super) fn add_step(&mut self, loss: f32) {
        self.training.push(loss);
    }

    /// Whether this loss is lower than every one before.
    pub(super) fn add_validation(&mut self, step: u64, loss: f64) -> bool {
        let lowest = self.best().is_none_or(|best| loss < best.loss);
        self.validation.push((step, loss));
        lowest
    }

    /// The first validation with the lowest loss.
    pub(super) fn best(&self) -> Option<Best> {
        let best = self.validation.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        best.map(|&(step, loss)| Best { loss, step })
    }

    /// As tensors of a file.
    pub(super) fn tensors(&self) -> Result<[(&'static str, Tensor); 3]> {
        let (steps, losses): (Vec<i64>, Vec<f64>) =
            self.validation.iter().map(|&(step, loss)| (step.cast_signed(), loss)).unzip();
        Ok([
            ("history.training", Tensor::new(self.training.as_slice(), &Device::Cpu)?),
            ("history.validation", Tensor::new(losses, &Device::Cpu)?),
            ("history.validation_steps", Tensor::new(steps, &Device::Cpu)?),
        ])
    }

    /// From the tensors of a file that was written after `steps_done` steps.
    pub(super) fn from_tensors(tensors: &BTreeMap<String, Tensor>, steps_done: u64) -> anyhow::Result<Self> {
        let part = |name: &str| tensors.get(name).with_context(|| format!("it lacks {name}"));
        let steps = part("history.validation_steps")?.to_vec1::<i64>()?;
        let losses = part("history.validation")?.to_vec1::<f64>()?;
        let training: Vec<f32> = part("history.training")?.to_vec1()?;
        if training.len() as u64 != steps_done || steps.len() != losses.len() {
            bail!("its losses are damaged: {} of {steps_done} steps", training.len());
        }
        Ok(Self { training, validation: steps.into_iter().map(i64::cast_unsigned).zip(losses).collect() })
    }

    /// Draws `loss.png` into `out`.
    pub(super) fn draw(&self, out: &Path, made_by: &Provenance) -> anyhow::Result<()> {
        let training: Vec<(u64, f32)> = (1..).zip(self.training.iter().copied()).collect();
        #[allow(clippy::cast_possible_truncation)] // a picture
        let validation: Vec<(u64, f32)> =
            self.validation.iter().map(|&(step, loss)| (step, loss as f32)).collect();
        let picture = gpt2_view::loss_curve(&title(out), &training, &validation, made_by)?;
        Ok(gpt2_files::atomic::write_bytes(&out.join("loss.png"), &picture)?)
    }
}

/// The folder's own name, as far as it has one.
fn title(out: &Path) -> String {
    let path = std::path::absolute(out).unwrap_or_else(|_| out.to_path_buf());
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written() -> anyhow::Result<()> {
        let mut history = History::default();
        for (step, validation) in [(1, None), (2, Some(3.0)), (3, Some(2.5)), (4, Some(2.5)), (5, Some(2.75))]
        {
            let read = |steps| {
                let tensors = history.tensors()?.map(|(name, tensor)| (name.to_string(), tensor));
                History::from_tensors(&tensors.into(), steps)
            };
            assert_eq!(read(step - 1)?, history);
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
