//! Everything a run needs to resume as if it had never stopped: weights, the optimizer's moments, the step and the
//! losses. Data, dropout and learning rate follow from the step and the settings; the settings are saved so that they
//! can be compared.

use crate::error::{Result, TrainError};
use crate::history::History;
use crate::settings::Settings;
use crate::write;
use candle_core::{Device, Tensor, Var};
use std::collections::BTreeMap;
use std::path::Path;

/// A state that fits the run.
pub(crate) struct State {
    /// `p.NAME`, `m.NAME` and `v.NAME` of each variable, and others.
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) history: History,
}

/// Writes the state under a temporary name, then renames it.
pub(crate) fn save(
    path: &Path,
    settings: &Settings,
    variables: &[(String, Var)],
    moments: BTreeMap<String, Tensor>,
    steps: u64,
    history: &History,
) -> Result<()> {
    let mut tensors = moments;
    for (name, var) in variables {
        tensors.insert(format!("p.{name}"), var.as_tensor().clone());
    }
    for (name, tensor) in history.tensors()? {
        tensors.insert(name.into(), tensor);
    }
    let too_many = |e: std::num::TryFromIntError| TrainError::other(e);
    let steps = u32::try_from(steps).map_err(too_many)?;
    let settings = serde_json::to_vec(settings).map_err(TrainError::other)?;
    tensors.insert("steps".into(), Tensor::new(&[steps], &Device::Cpu)?);
    tensors.insert("settings".into(), Tensor::new(settings, &Device::Cpu)?);
    write::tensors(path, &tensors, ("gpt2", env!("CARGO_PKG_VERSION")))
}

/// Reads a state, and refuses one that does not fit the settings or the variables.
pub(crate) fn read(path: &Path, settings: &Settings, variables: &[(String, Var)]) -> Result<State> {
    write::open_regular(path).map_err(|reason| TrainError::Io { path: path.to_path_buf(), reason })?;
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)
        .map_err(|source| TrainError::NotAState { path: path.to_path_buf(), source })?;
    let tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
    let part =
        |name: &str| tensors.get(name).ok_or_else(|| TrainError::damaged(path, format!("it lacks {name}")));
    compare(path, &part("settings")?.to_vec1::<u8>()?, settings)?;
    for (name, var) in variables {
        for name in [format!("p.{name}"), format!("m.{name}"), format!("v.{name}")] {
            let value = part(&name)?;
            if (value.dims(), value.dtype()) != (var.dims(), var.dtype()) {
                let (found, expected) = (value.dims(), var.dims());
                let reason = format!(
                    "{name} is {found:?} {:?}, expected {expected:?} {:?}",
                    value.dtype(),
                    var.dtype()
                );
                return Err(TrainError::damaged(path, reason));
            }
        }
    }
    let [steps] = part("steps")?.to_vec1::<u32>()?[..] else {
        return Err(TrainError::damaged(path, "its number of steps is damaged"));
    };
    let history =
        History::from_tensors(&tensors, steps.into()).map_err(|reason| TrainError::damaged(path, reason))?;
    Ok(State { tensors, history })
}

/// Refuses settings that differ from the saved ones, and names the first that differs.
fn compare(path: &Path, saved: &[u8], settings: &Settings) -> Result<()> {
    let saved: serde_json::Value =
        serde_json::from_slice(saved).map_err(|source| TrainError::damaged(path, source))?;
    // Convert to text and back, as the saved settings were: a number that is read back may differ in its last digit.
    let now = serde_json::to_vec(settings).and_then(|text| serde_json::from_slice(&text));
    let now: serde_json::Value = now.map_err(TrainError::other)?;
    let (Some(saved), Some(now)) = (saved.as_object(), now.as_object()) else { return Ok(()) };
    for (name, value) in now {
        // A state without this one is of a run that had none.
        let absent = if name == "repeat_fraction" { 0.0.into() } else { serde_json::Value::Null };
        let before = saved.get(name).unwrap_or(&absent);
        if before != value {
            let (name, before, now) = (name.clone(), before.clone(), value.clone());
            return Err(TrainError::Setting { name, before, now });
        }
    }
    Ok(())
}
