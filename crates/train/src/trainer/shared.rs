//! A trainer among the processes of a group: how it joins them, and where a run's state is while many ranks hold it.

use super::{Trainer, optimizer};
use crate::error::{Result, TrainError};
use crate::exchange::Exchange;
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
        let writes = self.exchange.group.rank() == 0;
        let own = self.optimizer.state();
        let mut moments = BTreeMap::new();
        for kind in ["m", "v"] {
            let name = |variable: usize| format!("{kind}.{}", self.variables[variable].0);
            for (variable, (_, var)) in self.variables.iter().enumerate().filter(|_| writes) {
                let whole = own.get(&name(variable)).filter(|own| own.dims() == var.dims());
                let whole = whole.map_or_else(
                    || Tensor::zeros(var.shape(), var.dtype(), &Device::Cpu),
                    |whole| Ok(whole.clone()),
                )?;
                moments.insert(name(variable), whole);
            }
            let pieces = self.exchange.own();
            let own: Vec<Tensor> = pieces.iter().map(|piece| own[&name(piece.variable)].clone()).collect();
            self.exchange.gather(&own, |piece, values| {
                moments.get(&name(piece.variable)).map_or(Ok(()), |whole| piece.write(values, whole))
            })?;
        }
        if !writes {
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
        let reads = group.rank() == 0;
        let mut read = reads.then(|| state::read(path, &self.settings, &self.variables)).transpose()?;
        let history = read.as_ref().map_or_else(History::default, |state| state.history.clone());
        let history = history.broadcast(group)?;
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
                    moments.insert(format!("{kind}.{name}"), piece.cut(&whole)?);
                }
            }
        }
        self.optimizer.restore(&moments, history.training().len() as u64)?;
        self.history = history;
        Ok(())
    }
}
