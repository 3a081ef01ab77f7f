//! The state of a run, from and into a file, wherever its parts are in the group.

use super::Trainer;
use crate::error::{Result, TrainError};
use crate::exchange::broadcast;
use crate::history::History;
use crate::state;
use candle_core::Tensor;
use std::path::Path;

impl Trainer {
    /// Writes everything that a run needs to resume to a file, whole or not at all. The file does not depend on the number
    /// of ranks; rank 0 writes it, and every rank must call this together.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_state(&self, path: &Path) -> Result<()> {
        let mut moments = self.optimiser.state();
        if self.group.size() > 1 {
            for (index, (name, var)) in self.variables.iter().enumerate() {
                let owner = self.shares.owner(index);
                for key in [format!("m.{name}"), format!("v.{name}")] {
                    // Those who do not own it need room for the owner's numbers.
                    let mine = moments.get(&key).cloned().unwrap_or_else(|| var.as_detached_tensor());
                    let value = broadcast(&*self.group, owner, &mine)?;
                    if self.group.rank() == 0 {
                        moments.insert(key, value);
                    }
                }
            }
        }
        if self.group.rank() > 0 {
            return Ok(());
        }
        state::save(path, &self.settings, &self.variables, moments, self.steps(), &self.history)
    }

    /// Resumes from the state in a file: the run continues exactly as if it had not stopped, on any number of ranks. Rank
    /// 0 reads the file, and every rank must call this together.
    ///
    /// # Errors
    /// When the file is not the state of a run with these settings.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        let is_first = self.group.rank() == 0;
        let mut read = is_first.then(|| state::read(path, &self.settings, &self.variables)).transpose()?;
        let history = read.as_ref().map_or(vec![], |state| state.history.to_bytes());
        let history = History::from_bytes(&self.group.broadcast_bytes(history)?);
        let damaged = || TrainError::damaged(path, "its losses did not arrive");
        let history = history.ok_or_else(damaged)?;
        let mut received = std::collections::BTreeMap::new();
        for (index, (name, var)) in self.variables.iter().enumerate() {
            let is_mine = self.shares.owner(index) == self.group.rank();
            for key in [format!("p.{name}"), format!("m.{name}"), format!("v.{name}")] {
                let value = read.as_mut().and_then(|state| state.tensors.remove(&key));
                let value: Tensor = match value {
                    Some(value) if self.group.size() == 1 => value,
                    value => {
                        let value = value.unwrap_or_else(|| var.as_detached_tensor());
                        broadcast(&*self.group, 0, &value)?
                    }
                };
                if key.starts_with("p.") {
                    var.set(&value.to_device(var.device())?)?;
                } else if is_mine {
                    received.insert(key, value);
                }
            }
        }
        self.optimiser.restore(&received, history.training().len() as u64)?;
        self.history = history;
        Ok(())
    }
}
