//! Joins a trainer to the processes of a group.

use super::Trainer;
use crate::error::{Result, TrainError};
use crate::optimiser::AdamW;
use crate::shares::Shares;
use candle_core::DeviceLocation;
use gpt2_parallel::{Fact, Group};
use std::sync::Arc;

impl Trainer {
    /// Shares the work out over the processes of a group, each of which has a trainer with the same model, data and
    /// options. A step's batches are computed by the ranks in turn, and each rank keeps the optimiser's moments and sums
    /// the gradients of a part of the variables. Losses and weights are those of one process, bit for bit.
    ///
    /// After an error on one rank, in any method, the others may wait for it: end the job with [`Group::abort`]. The memory
    /// for all moments, which a trainer alone needs, is given back here before it was touched.
    ///
    /// # Errors
    /// When a rank has other settings, data or weights than rank 0, or another version, device or instruction set, or when
    /// steps were already taken.
    pub fn in_group(mut self, group: Arc<dyn Group>) -> Result<Self> {
        if self.steps() > 0 {
            return Err(TrainError::other(
                "join the group before the first step, and before a run is resumed",
            ));
        }
        if group.size() > 1 {
            group.agree(&self.facts()?)?;
        }
        let lengths = self.variables.iter().map(|(_, var)| var.elem_count()).collect();
        self.shares = Shares::new(lengths, group.size());
        let mine = self.variables[self.shares.of(group.rank())].to_vec();
        self.optimiser = AdamW::new(mine, self.optimiser.params())?;
        self.group = group;
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
        let best = gpt2_kernels::Isa::best().as_str().to_owned();
        let isa = gpt2_kernels::Isa::current().as_str().to_owned();
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
}
