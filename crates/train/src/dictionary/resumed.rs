//! The file with everything that the training of a dictionary needs to go on as if it had never stopped.

use super::DictionaryTrainer;
use crate::error::{Result, TrainError};
use crate::state;
use candle_core::{Device, Tensor};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The name of the tensor that says for how many positions each feature has been silent.
const SILENT: &str = "silent";

impl DictionaryTrainer {
    /// Writes the state to a file, whole or not at all. `given` says in the user's words what the values of the steps depend on. Rank 0
    /// writes, and every rank must call this together.
    ///
    /// # Errors
    /// When the file cannot be written, or a rank does not answer.
    pub fn save_state(&self, path: &Path, given: &Value) -> Result<()> {
        let moments = self.optimizer.moments()?;
        if self.group().rank() > 0 {
            return Ok(());
        }
        let silent: Vec<i64> = self.silent.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
        let silent = (SILENT.to_owned(), Tensor::new(silent, &Device::Cpu)?);
        let others = moments.into_iter().chain([silent]);
        state::save(path, &self.settings(given), &self.optimizer.variables, others, self.optimizer.steps())
    }

    /// Goes on from the state in a file, exactly as if the run had not stopped, on any number of ranks. Rank 0 reads, and every rank must
    /// call this together. Returns the number of steps that were taken: the next one gets the values after theirs.
    ///
    /// # Errors
    /// When the file is not the state of a run with the same options, sample and `given`.
    pub fn resume(&mut self, path: &Path, given: &Value) -> Result<usize> {
        let reads = self.group().rank() == 0;
        let read = || state::read(path, &self.settings(given), self.optimizer.saved());
        let (mut tensors, steps) = match reads.then(read).transpose()? {
            Some(saved) => (saved.tensors, saved.steps),
            None => (BTreeMap::new(), 0),
        };
        let mut numbers: Vec<u64> = vec![steps];
        if let Some(silent) = tensors.get(SILENT) {
            numbers.extend(silent.to_vec1::<i64>()?.into_iter().map(|n| u64::try_from(n).unwrap_or(0)));
        }
        let bytes = self.group().broadcast_bytes(bytemuck::cast_slice(&numbers).to_vec())?;
        let numbers: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
        let as_size = |n: u64| usize::try_from(n).map_err(TrainError::other);
        let Some((&steps, silent)) = numbers.split_first().filter(|(_, of)| of.len() == self.silent.len())
        else {
            return Err(TrainError::damaged(path, "it does not say how long each feature has been silent"));
        };
        self.optimizer.restore(&mut tensors, steps)?;
        self.silent = silent.iter().map(|&n| as_size(n)).collect::<Result<_>>()?;
        as_size(steps)
    }

    /// The settings that must be as they were when the state was saved.
    fn settings(&self, given: &Value) -> Value {
        let all = [&self.begun, given].into_iter().filter_map(Value::as_object).flatten();
        Value::Object(all.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
    }
}
