//! AdamW over the processes of a group: each rank keeps the moments of a share of the numbers, and sums their gradients.

use crate::error::Result;
use crate::exchange::{Exchange, GradientSums, VariablePiece};
use crate::optimizer::{AdamW, AdamWParams, ScaledStep, Slot, norm};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use gpt2_parallel::{Alone, Fact, Group};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The variables of a training run, and this rank's part in their optimizer.
#[derive(Debug)]
pub(crate) struct ShardedAdamW {
    /// Sorted by name.
    pub(crate) variables: Vec<(String, Var)>,
    pub(crate) exchange: Exchange,
    /// Of this rank's pieces of the variables.
    pub(crate) optimizer: AdamW,
    device: Device,
}

impl ShardedAdamW {
    /// That of a process alone; `variables` are on `device`.
    pub(crate) fn new(
        mut variables: Vec<(String, Var)>,
        params: AdamWParams,
        device: &Device,
    ) -> Result<Self> {
        variables.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let exchange = Exchange::new(Arc::new(Alone), &variables, device);
        let optimizer = optimizer(&exchange, &variables, params)?;
        Ok(Self { variables, exchange, optimizer, device: device.clone() })
    }

    /// Shares out moments and sums over a group, before the first step. The memory for all moments, which a process alone needs, is
    /// given back here before it was touched.
    pub(crate) fn join(&mut self, group: Arc<dyn Group>) -> Result<()> {
        let params = self.optimizer.params();
        self.optimizer = AdamW::from_slots(vec![], params);
        self.exchange = Exchange::new(group, &self.variables, &self.device);
        self.optimizer = optimizer(&self.exchange, &self.variables, params)?;
        Ok(())
    }

    pub(crate) fn group(&self) -> &dyn Group {
        &*self.exchange.group
    }

    /// Sums of gradients, to add to and to take a step with.
    pub(crate) fn sums(&self) -> GradientSums<'_> {
        self.exchange.sums()
    }

    /// The gradients of all variables by their places in the order, contiguous.
    pub(crate) fn in_order(&self, mut gradients: GradStore) -> Result<BTreeMap<usize, Tensor>> {
        let take = |(place, (name, var)): (usize, &(String, Var))| match gradients.remove(var) {
            Some(gradient) => Ok((place, gradient.contiguous()?)),
            None => Err(candle_core::Error::msg(format!("{name} has no gradient")).into()),
        };
        self.variables.iter().enumerate().map(take).collect()
    }

    /// Steps this rank's pieces along `scale` times the sums of their gradients, and collects those of the others; returns the norm
    /// of all scaled gradients.
    pub(crate) fn step(&mut self, sums: &[Tensor], lr: f64, scale: f64) -> Result<f64> {
        let norm = norm(&self.exchange.squares(sums)?, scale)?;
        let piece = |piece: VariablePiece| piece.cut_var(&self.variables[piece.variable].1);
        let own = self.exchange.own().into_iter().map(piece).collect::<Result<Vec<Var>>>()?;
        self.optimizer.apply(&own, sums, ScaledStep { lr, scale, norm })?;
        let own: Vec<Tensor> = own.iter().map(Var::as_detached_tensor).collect();
        self.exchange.gather(&own, |piece, values| piece.write(values, &self.variables[piece.variable].1))?;
        Ok(norm)
    }
}

impl ShardedAdamW {
    /// Both moments of every variable, as `m.NAME` and `v.NAME`: whole on rank 0, and nothing on the others. Every rank must call this
    /// together.
    pub(crate) fn moments(&self) -> Result<BTreeMap<String, Tensor>> {
        let writes = self.group().rank() == 0;
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
        Ok(moments)
    }

    /// Goes on after `steps` steps with the variables and moments of rank 0's `saved`: `p.NAME`, `m.NAME` and `v.NAME`, which this takes.
    /// Every rank must call this together; the others save nothing.
    pub(crate) fn restore(&mut self, saved: &mut BTreeMap<String, Tensor>, steps: u64) -> Result<()> {
        let pieces = self.exchange.own();
        let mut moments = BTreeMap::new();
        for (index, (name, var)) in self.variables.iter().enumerate() {
            let mut value = |kind: &str| {
                let value = saved.remove(&format!("{kind}.{name}"));
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
        Ok(self.optimizer.restore(&moments, steps)?)
    }
}

/// An optimizer of this rank's pieces.
fn optimizer(exchange: &Exchange, variables: &[(String, Var)], params: AdamWParams) -> Result<AdamW> {
    let slot = |piece: VariablePiece| {
        let (name, var) = &variables[piece.variable];
        Ok(Slot::new(name, var, &piece.cut_var(var)?)?)
    };
    Ok(AdamW::from_slots(exchange.own().into_iter().map(slot).collect::<Result<_>>()?, params))
}

/// Lists the facts that must be the same on every rank for the result to be that of one process, whatever is trained.
pub(crate) fn facts_of_program() -> Vec<Fact> {
    let fact = |what: &str, value: String, remedy| Fact { what: what.into(), value, remedy };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let libraries = format!("mkl {}, accelerate {}", cfg!(feature = "mkl"), cfg!(feature = "accelerate"));
    // Products of two factors that change take the fastest code of the processor, whatever GPT2_ISA says.
    let best = candle_fused::Isa::best().as_str().to_owned();
    let isa = candle_fused::Isa::current().as_str().to_owned();
    vec![
        fact("version", version, "install the same program on every machine"),
        fact("set of libraries", libraries, "install the same program on every machine"),
        fact("kind of processor (by its instruction set)", best, "use machines of one kind"),
        fact("instruction set", isa, "set GPT2_ISA to the same on every rank"),
    ]
}

/// The fact of a setting that the command and its files give.
pub(crate) fn setting(what: &str, value: &serde_json::Value) -> Fact {
    let remedy = "start every rank with the same command and the same files";
    Fact { what: what.to_owned(), value: value.to_string(), remedy }
}

/// The facts of settings, of those that have fields one for each: a difference in one of twenty is hard to see.
pub(crate) fn settings(all: &serde_json::Value) -> Vec<Fact> {
    let mut facts = vec![];
    for (name, value) in all.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(fields) => {
                facts.extend(fields.iter().map(|(field, value)| setting(&format!("{name}.{field}"), value)));
            }
            None => facts.push(setting(name, value)),
        }
    }
    facts
}
