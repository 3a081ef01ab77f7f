//! A trainer among the processes of a group: how it joins them, and where a run's state is while many ranks hold it.

use super::{Trainer, optimizer};
use crate::error::{Result, TrainError};
use crate::exchange::{Exchange, Piece};
use crate::optimizer::AdamW;
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
        let params = self.optimizer.params();
        self.optimizer = AdamW::from_slots(vec![], params);
        self.exchange = Exchange::new(group, &self.variables, &self.device);
        self.optimizer = optimizer(&self.exchange, &self.variables, params)?;
        Ok(self)
    }

    /// What must be the same on every rank for the result to be that of one process.
    fn facts(&self) -> Result<Vec<Fact>> {
        let fact = |what: &str, value: String, remedy| Fact { what: what.into(), value, remedy };
        let same = "start every rank with the same command and the same files";
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let device = match self.device.location() {
            DeviceLocation::Cpu => "cpu",
            DeviceLocation::Cuda { .. } => "cuda",
            DeviceLocation::Metal { .. } => "metal",
        };
        let libraries = format!("mkl {}, accelerate {}", cfg!(feature = "mkl"), cfg!(feature = "accelerate"));
        // Products of two factors that change take the fastest code of the processor, whatever GPT2_ISA says.
        let best = candle_fused::Isa::best().as_str().to_owned();
        let isa = candle_fused::Isa::current().as_str().to_owned();
        let mut facts = vec![
            fact("version", version, "install the same program on every machine"),
            fact("kind of device", device.to_owned(), "name one with --device"),
            fact("set of libraries", libraries, "install the same program on every machine"),
            fact("kind of processor (by its instruction set)", best, "use machines of one kind"),
            fact("instruction set", isa, "set GPT2_ISA to the same on every rank"),
        ];
        let settings = serde_json::to_value(&self.settings).map_err(TrainError::other)?;
        for (name, value) in settings.as_object().into_iter().flatten() {
            // The config's fields one by one: a difference in one of twenty is hard to see.
            for (field, value) in value.as_object().into_iter().flatten() {
                facts.push(fact(&format!("{name}.{field}"), value.to_string(), same));
            }
            if !value.is_object() {
                let what = if name == "data" { "training text (by its fingerprint)" } else { name };
                facts.push(fact(what, value.to_string(), same));
            }
        }
        let weights = self.model.fingerprint()?.to_string();
        facts.push(fact("set of weights (by its fingerprint)", weights, same));
        Ok(facts)
    }

    /// Writes everything that a run needs to resume to a file, whole or not at all. The file does not depend on the number
    /// of ranks; rank 0 writes it, and every rank must call this together.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_state(&self, path: &Path) -> Result<()> {
        let is_first = self.exchange.group.rank() == 0;
        let own = self.optimizer.state();
        // Rank 0 needs those variables as a whole of which it has no piece, or only a part.
        let mut moments = if is_first { own.clone() } else { BTreeMap::new() };
        for kind in ["m", "v"] {
            let moment = |piece: Piece| own[&format!("{kind}.{}", self.variables[piece.variable].0)].clone();
            let own: Vec<Tensor> = self.exchange.own().into_iter().map(moment).collect();
            self.exchange.gather(&own, |variable, values| {
                let (name, var) = &self.variables[variable];
                if is_first {
                    let whole = Tensor::from_vec(values, var.dims(), &Device::Cpu)?;
                    moments.insert(format!("{kind}.{name}"), whole);
                }
                Ok(())
            })?;
        }
        if !is_first {
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
        let group = &*self.exchange.group;
        let is_first = group.rank() == 0;
        let mut read = is_first.then(|| state::read(path, &self.settings, &self.variables)).transpose()?;
        let history = read.as_ref().map_or(vec![], |state| state.history.to_bytes());
        let history = History::from_bytes(&group.broadcast_bytes(history)?);
        let history = history.ok_or_else(|| TrainError::damaged(path, "its losses did not arrive"))?;
        let pieces = self.exchange.own();
        let mut moments = BTreeMap::new();
        for (index, (name, var)) in self.variables.iter().enumerate() {
            let mut value = |kind: &str| {
                let value = read.as_mut().and_then(|state| state.tensors.remove(&format!("{kind}.{name}")));
                // The other ranks need room for rank 0's numbers.
                self.exchange.broadcast(&value.unwrap_or_else(|| var.as_detached_tensor()))
            };
            var.set(&value("p")?.to_device(var.device())?)?;
            for kind in ["m", "v"] {
                let whole = value(kind)?;
                if let Some(piece) = pieces.iter().find(|piece| piece.variable == index) {
                    moments.insert(format!("{kind}.{name}"), piece.of(&whole)?);
                }
            }
        }
        self.optimizer.restore(&moments, history.training().len() as u64)?;
        self.history = history;
        Ok(())
    }
}
