//! The state of a run, from and into a file, wherever its parts are in the group.

use super::Trainer;
use crate::error::{Result, TrainError};
use crate::exchange::{broadcast, collect};
use crate::history::History;
use crate::state;
use candle_core::{Device, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

impl Trainer {
    /// Writes everything that a run needs to resume to a file, whole or not at all. The file does not depend on the number
    /// of ranks; rank 0 writes it, and every rank must call this together.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_state(&self, path: &Path) -> Result<()> {
        let moments = if self.group.size() > 1 { self.collected()? } else { self.optimizer.state() };
        if self.group.rank() > 0 {
            return Ok(());
        }
        state::save(path, &self.settings, &self.variables, moments, self.steps(), &self.history)
    }

    /// The moments of all variables, on rank 0.
    fn collected(&self) -> Result<BTreeMap<String, Tensor>> {
        let (group, mut moments) = (&*self.group, BTreeMap::new());
        for (kind, mine) in ["m", "v"].into_iter().zip(self.optimizer.moments()) {
            collect(group, &self.shares, &self.lengths(), &mine, |variable, values| {
                let (name, var) = &self.variables[variable];
                if group.rank() == 0 {
                    let whole = Tensor::from_vec(values, var.dims(), &Device::Cpu)?;
                    moments.insert(format!("{kind}.{name}"), whole);
                }
                Ok(())
            })?;
        }
        Ok(moments)
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
        let steps = history.training().len() as u64;
        if let Some(state) = read.as_ref().filter(|_| self.group.size() == 1) {
            self.optimizer.restore(&state.tensors, steps)?;
        }
        let mine = self.shares.of(self.group.rank());
        let mut moments = [vec![], vec![]];
        for (index, (name, var)) in self.variables.iter().enumerate() {
            let mut value = |kind: &str| {
                let value = read.as_mut().and_then(|state| state.tensors.remove(&format!("{kind}.{name}")));
                // The other ranks need room for rank 0's numbers.
                broadcast(&*self.group, &value.unwrap_or_else(|| var.as_detached_tensor()))
            };
            var.set(&value("p")?.to_device(var.device())?)?;
            if self.group.size() == 1 {
                continue;
            }
            for (kind, kept) in ["m", "v"].into_iter().zip(&mut moments) {
                let row = value(kind)?.flatten_all()?;
                for piece in mine.iter().filter(|piece| piece.variable == index) {
                    kept.push(row.narrow(0, piece.part.start, piece.part.len())?.copy()?);
                }
            }
        }
        if self.group.size() > 1 {
            self.optimizer.restore_moments(moments, steps)?;
        }
        self.history = history;
        Ok(())
    }
}
