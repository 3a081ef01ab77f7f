//! A trainer among the processes of a group: how it joins them, and where a run's state is while many ranks hold it.

use super::Trainer;
use crate::error::{Result, TrainError};
use crate::sharded::{facts_of_program, setting, settings};
use crate::state::{self, History};
use candle_core::{Device, DeviceLocation, Tensor};
use gpt2_parallel::{Fact, Group};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

impl Trainer {
    /// Shares the work out over the processes of a group, each of which has a trainer with the same model, data and
    /// options. A step's batches are computed by the ranks in turn, and each rank keeps the optimizer's moments and sums
    /// the gradients of a share of the parameters. Losses and weights are those of one process, bit for bit.
    ///
    /// After an error on one rank, in any method, the others may wait for it: end the job with [`Group::abort`]. The memory
    /// for all moments, which a trainer alone needs, is given back here before it was touched.
    ///
    /// # Errors
    /// When a rank has other settings, data or weights than rank 0, or another version, device or instruction set, or when
    /// steps were already taken.
    pub fn in_group(mut self, group: Arc<dyn Group>) -> Result<Self> {
        if self.steps() > 0 {
            let reason = "join the group before the first step, and before a run is resumed";
            return Err(TrainError::other(reason));
        }
        group.agree(|| self.facts())?;
        self.adam.join(group)?;
        Ok(self)
    }

    /// Lists the facts that must be the same on every rank for the result to be that of one process.
    fn facts(&self) -> Result<Vec<Fact>> {
        let device = match self.device.location() {
            DeviceLocation::Cpu => "cpu",
            DeviceLocation::Cuda { .. } => "cuda",
            DeviceLocation::Metal { .. } => "metal",
        };
        let mut facts = facts_of_program();
        let remedy = "name one with --device";
        facts.push(Fact { what: "kind of device".into(), value: device.into(), remedy });
        for mut fact in settings(&serde_json::to_value(&self.settings).map_err(TrainError::other)?) {
            if fact.what == "data" {
                fact.what = "training text (by its fingerprint)".into();
            }
            facts.push(fact);
        }
        let weights = self.model.fingerprint()?;
        facts.push(setting("set of weights (by its fingerprint)", &weights.into()));
        Ok(facts)
    }

    /// Writes everything that a run needs to resume to a file, whole or not at all. The file does not depend on the number
    /// of ranks; rank 0 writes it, and every rank must call this together.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_state(&self, path: &Path) -> Result<()> {
        let writes = self.adam.exchange.group.rank() == 0;
        let own = self.adam.optimizer.state();
        let mut moments = BTreeMap::new();
        for kind in ["m", "v"] {
            let name = |variable: usize| format!("{kind}.{}", self.adam.variables[variable].0);
            for (variable, (_, var)) in self.adam.variables.iter().enumerate().filter(|_| writes) {
                let whole = own.get(&name(variable)).filter(|own| own.dims() == var.dims());
                let whole = whole.map_or_else(
                    || Tensor::zeros(var.shape(), var.dtype(), &Device::Cpu),
                    |whole| Ok(whole.clone()),
                )?;
                moments.insert(name(variable), whole);
            }
            let pieces = self.adam.exchange.own();
            let own: Vec<Tensor> = pieces.iter().map(|piece| own[&name(piece.variable)].clone()).collect();
            self.adam.exchange.gather(&own, |piece, values| {
                moments.get(&name(piece.variable)).map_or(Ok(()), |whole| piece.write(values, whole))
            })?;
        }
        if !writes {
            return Ok(());
        }
        state::save(path, &self.settings, &self.adam.variables, moments, self.steps(), &self.history)
    }

    /// Resumes from the state in a file: the run continues exactly as if it had not stopped, on any number of ranks. Rank
    /// 0 reads the file, and every rank must call this together.
    ///
    /// # Errors
    /// When the file is not the state of a run with these settings.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        let group = self.adam.group();
        let reads = group.rank() == 0;
        let mut read = reads.then(|| state::read(path, &self.settings, &self.adam.variables)).transpose()?;
        let history = read.as_ref().map_or_else(History::default, |state| state.history.clone());
        let history = history.broadcast(group)?;
        let pieces = self.adam.exchange.own();
        let mut moments = BTreeMap::new();
        for (index, (name, var)) in self.adam.variables.iter().enumerate() {
            let mut value = |kind: &str| {
                let value = read.as_mut().and_then(|state| state.tensors.remove(&format!("{kind}.{name}")));
                // The other ranks need room for rank 0's numbers.
                self.adam.exchange.broadcast(&value.unwrap_or_else(|| var.as_detached_tensor()))
            };
            var.set(&value("p")?.to_device(var.device())?)?;
            for kind in ["m", "v"] {
                let whole = value(kind)?;
                if let Some(piece) = pieces.iter().find(|piece| piece.variable == index) {
                    moments.insert(format!("{kind}.{name}"), piece.cut(&whole)?);
                }
            }
        }
        self.adam.optimizer.restore(&moments, history.training().len() as u64)?;
        self.history = history;
        Ok(())
    }
}
