//! Joins a trainer to the processes of a group.

use super::Trainer;
use crate::error::{Result, TrainError};
use crate::exchange::{collect, own_rows};
use crate::optimizer::{AdamW, decays, norm};
use crate::shares::Shares;
use candle_core::{Device, DeviceLocation, Tensor, Var};
use candle_fused::adamw::{CHUNK, squares_of_chunks};
use gpt2_parallel::{Fact, Group};
use std::sync::Arc;

impl Trainer {
    /// Shares the work out over the processes of a group, each of which has a trainer with the same model, data and
    /// options. A step's batches are computed by the ranks in turn, and each rank keeps the optimizer's moments and sums
    /// the gradients of a share of the parameters, on the CPU. Losses and weights are those of one process, bit for bit.
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
        self.group = group;
        if self.group.size() > 1 {
            self.shares = Shares::new(&self.lengths(), self.group.size(), CHUNK);
            let mine = self.shares.of(self.group.rank());
            let parts =
                mine.iter().map(|piece| (piece.part.len(), decays(&self.variables[piece.variable].1)));
            self.optimizer = AdamW::of_parts(parts, self.optimizer.params())?;
        }
        Ok(self)
    }

    /// How many numbers each variable has.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.variables.iter().map(|(_, var)| var.elem_count()).collect()
    }

    /// Steps this rank's pieces with the sums of their gradients, and collects those of the others; returns the norm of all
    /// gradients.
    pub(super) fn step_of_all_ranks(&mut self, gradients: &[Tensor], lr: f64, scale: f64) -> Result<f64> {
        let step = self.steps();
        let failed = |source| TrainError::Step { step, source };
        let squares = gradients.iter().map(squares_of_chunks).collect::<candle_core::Result<Vec<_>>>();
        let squares = squares.map_err(failed)?.concat();
        let all = self.group.gather_bytes(bytemuck::cast_slice(&squares))?.concat();
        let squares = self.shares.over_variables(&bytemuck::pod_collect_to_vec(&all));
        let norm = norm(&squares, scale).map_err(failed)?;
        let mine = own_rows(&*self.group, &self.shares, |variable| self.variables[variable].1.as_tensor())?;
        // Copies: the variables change when all ranks have their pieces.
        let mine: Vec<Var> = mine.iter().map(Var::from_tensor).collect::<candle_core::Result<_>>()?;
        self.optimizer.apply(&mine, gradients, lr, scale, norm).map_err(failed)?;
        let mine: Vec<Tensor> = mine.iter().map(Var::as_detached_tensor).collect();
        collect(&*self.group, &self.shares, &self.lengths(), &mine, |variable, values| {
            let var = &self.variables[variable].1;
            let values = Tensor::from_vec(values, var.dims(), &Device::Cpu)?;
            Ok(var.set(&values.to_device(var.device())?)?)
        })?;
        Ok(norm)
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
}
