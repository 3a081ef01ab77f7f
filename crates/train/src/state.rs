//! The losses of a run, and the file with everything it needs to resume as if it had never stopped: weights, the
//! optimizer's moments, the step and the losses. Data, dropout and learning rate follow from the step and the settings;
//! the settings are saved so that they can be compared.

use crate::error::{BoxError, Result, TrainError};
use candle_core::{Device, Tensor, Var};
use gpt2_files::{atomic, open_regular, write_safetensors};
use gpt2_parallel::Group;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

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

    /// The history of rank 0, on every rank.
    pub(crate) fn broadcast(&self, group: &dyn Group) -> gpt2_parallel::Result<Self> {
        let bits: Vec<[u64; 2]> =
            self.validation.iter().map(|(step, loss)| [*step, loss.to_bits()]).collect();
        let training = group.broadcast_bytes(bytemuck::cast_slice(&self.training).to_vec())?;
        let bits = group.broadcast_bytes(bytemuck::cast_slice(&bits).to_vec())?;
        let bits: Vec<[u64; 2]> = bytemuck::pod_collect_to_vec(&bits);
        Ok(Self {
            training: bytemuck::pod_collect_to_vec(&training),
            validation: bits.into_iter().map(|[step, loss]| (step, f64::from_bits(loss))).collect(),
        })
    }

    /// The tensors to save in a file.
    pub(crate) fn tensors(&self) -> candle_core::Result<[(&'static str, Tensor); 3]> {
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

/// A state that fits the run.
pub(crate) struct State {
    /// `p.NAME`, `m.NAME` and `v.NAME` of each variable, and others.
    pub(crate) tensors: BTreeMap<String, Tensor>,
    /// The number of steps taken.
    pub(crate) steps: u64,
}

/// Writes the state under a temporary name, then renames it. `others` are the moments, and what else the run needs.
pub(crate) fn save(
    path: &Path,
    settings: &impl Serialize,
    variables: &[(String, Var)],
    others: impl IntoIterator<Item = (String, Tensor)>,
    steps: u64,
) -> Result<()> {
    let mut tensors: BTreeMap<String, Tensor> = others.into_iter().collect();
    for (name, var) in variables {
        tensors.insert(format!("p.{name}"), var.as_tensor().clone());
    }
    let steps = u32::try_from(steps).map_err(TrainError::other)?;
    let settings = serde_json::to_vec(settings).map_err(TrainError::other)?;
    tensors.insert("steps".into(), Tensor::new(&[steps], &Device::Cpu)?);
    tensors.insert("settings".into(), Tensor::new(settings, &Device::Cpu)?);
    let tensors: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let version = [("gpt2", env!("CARGO_PKG_VERSION").to_owned())];
    Ok(atomic::write(path, |temporary| write_safetensors(temporary, &tensors, &version))?)
}

/// Reads a state, and refuses one that does not fit the settings, or lacks one of the tensors that are `expected` by name and shape.
pub(crate) fn read<'a>(
    path: &Path,
    settings: &impl Serialize,
    expected: impl Iterator<Item = (String, &'a Var)>,
) -> Result<State> {
    open_regular(path).map_err(|reason| TrainError::Io { path: path.to_path_buf(), reason })?;
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)
        .map_err(|source| TrainError::NotAState { path: path.to_path_buf(), source })?;
    let tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
    let part =
        |name: &str| tensors.get(name).ok_or_else(|| TrainError::damaged(path, format!("it lacks {name}")));
    compare(path, &part("settings")?.to_vec1::<u8>()?, settings)?;
    for (name, var) in expected {
        let value = part(&name)?;
        if (value.dims(), value.dtype()) != (var.dims(), var.dtype()) {
            let found = value.dims();
            let expected = var.dims();
            let reason =
                format!("{name} is {found:?} {:?}, expected {expected:?} {:?}", value.dtype(), var.dtype());
            return Err(TrainError::damaged(path, reason));
        }
    }
    let [steps] = part("steps")?.to_vec1::<u32>()?[..] else {
        return Err(TrainError::damaged(path, "its number of steps is damaged"));
    };
    Ok(State { tensors, steps: steps.into() })
}

/// Refuses settings that differ from the saved ones, and names the first that differs.
fn compare(path: &Path, saved: &[u8], settings: &impl Serialize) -> Result<()> {
    let saved: serde_json::Value =
        serde_json::from_slice(saved).map_err(|source| TrainError::damaged(path, source))?;
    // Convert to text and back, as the saved settings were: a number that is read back may differ in its last digit.
    let now = serde_json::to_vec(settings).and_then(|text| serde_json::from_slice(&text));
    let now: serde_json::Value = now.map_err(TrainError::other)?;
    let (Some(saved), Some(now)) = (saved.as_object(), now.as_object()) else { return Ok(()) };
    // Those on which the others' defaults depend come first.
    let is_first = |name: &str| ["model", "optimizer", "steps"].contains(&name);
    let (first, others): (Vec<_>, Vec<_>) = now.iter().partition(|(name, _)| is_first(name));
    for (name, value) in first.into_iter().chain(others) {
        // A state without one of these is of a run before there was a choice.
        let absent = match &name[..] {
            "repeat_fraction" => 0.0.into(),
            "optimizer" => "adamw".into(),
            "schedule" => "cosine".into(),
            "train_dtype" => "f32".into(),
            _ => serde_json::Value::Null,
        };
        let before = saved.get(name).unwrap_or(&absent);
        if before != value {
            let name = name.clone();
            let before = before.clone();
            let now = value.clone();
            return Err(TrainError::Setting { name, before, now });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_with_a_number_that_is_not_finite_leaves_the_one_before() -> std::result::Result<(), BoxError> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("state.safetensors");
        let var = Var::from_tensor(&Tensor::new(&[1f32, 2.], &Device::Cpu)?)?;
        let variables = [("ln_f.bias".to_string(), var)];
        let options = crate::TrainOptions::new(1);
        let settings = crate::options::RunSettings {
            config: gpt2_model::Config::gpt2(),
            data: 0,
            options,
            lora: None,
            base: None,
        };
        let write = |moment: f32| {
            let moments = [("v.ln_f.bias".to_string(), Tensor::new(&[0f32, moment], &Device::Cpu)?)];
            save(&path, &settings, &variables, moments, 1)
        };
        write(0.5)?;
        let before = std::fs::read(&path)?;
        for moment in [f32::NAN, f32::INFINITY] {
            let error = write(moment).expect_err("not finite").to_string();
            assert!(error.contains("v.ln_f.bias"), "{error}");
            assert_eq!(std::fs::read(&path)?, before);
        }
        Ok(())
    }

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
            assert_eq!(history.broadcast(&gpt2_parallel::Alone)?, history);
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
