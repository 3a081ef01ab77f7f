//! A trainer among the processes of a group: how it joins them, and where a run's state is while many ranks hold it.

use super::Trainer;
use crate::error::{Result, TrainError};
use crate::sharded::{facts_of_program, setting, settings};
use crate::state::{self, History};
use candle_core::DeviceLocation;
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
        self.optimizer.join(group)?;
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
        let moments = self.optimizer.moments()?;
        if self.optimizer.group().rank() > 0 {
            return Ok(());
        }
        let history = self.history.tensors()?.map(|(name, tensor)| (name.to_owned(), tensor));
        state::save(
            path,
            &self.settings,
            &self.optimizer.variables,
            moments.into_iter().chain(history),
            self.steps(),
        )
    }

    /// Resumes from the state in a file: the run continues exactly as if it had not stopped, on any number of ranks. Rank
    /// 0 reads the file, and every rank must call this together.
    ///
    /// # Errors
    /// When the file is not the state of a run with these settings.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        let group = self.optimizer.group();
        let reads = group.rank() == 0;
        let read = || state::read(path, &self.settings, self.optimizer.saved());
        let (mut tensors, history) = match reads.then(read).transpose()? {
            Some(saved) => {
                let history = History::from_tensors(&saved.tensors, saved.steps);
                (saved.tensors, history.map_err(|reason| TrainError::damaged(path, reason))?)
            }
            None => (BTreeMap::new(), History::default()),
        };
        let history = history.broadcast(group)?;
        self.optimizer.restore(&mut tensors, history.training().len() as u64)?;
        self.history = history;
        Ok(())
    }
}
