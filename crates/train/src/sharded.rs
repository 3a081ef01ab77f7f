//! The optimizer over the processes of a group: each rank keeps the moments of a share of the numbers, and sums their gradients.
//!
//! Muon makes whole matrices orthogonal, and a share ends within one: each rank collects the updates of the matrices of which it has
//! a part, and computes those alone. The bits do not depend on the number of ranks.

use crate::error::Result;
use crate::exchange::{Exchange, GradientSums, VariablePiece};
use crate::muon::{HiddenMatrices, MuonStep};
use crate::optimizer::{AdamW, AdamWParams, ScaledStep, Slot, norm};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use gpt2_parallel::{Alone, Fact, Group};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The variables of a training run, and this rank's part in their optimizer.
#[derive(Debug)]
pub(crate) struct ShardedOptimizer {
    /// Sorted by name.
    pub(crate) variables: Vec<(String, Var)>,
    exchange: Exchange,
    /// Of this rank's pieces of the variables that Muon does not step. It counts the steps.
    adamw: AdamW,
    muon: Muon,
    device: Device,
}

/// The variables that Muon steps, by their places in the order.
#[derive(Debug, Default)]
struct Muon {
    matrices: BTreeMap<usize, HiddenMatrices>,
    /// The running means of this rank's pieces: of a variable, it has one at most.
    means: BTreeMap<usize, Var>,
}

/// The decay of Muon's running mean of gradients.
const MOMENTUM: f64 = 0.95;

/// The learning rates of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) adamw: f64,
    pub(crate) muon: f64,
}

impl ShardedOptimizer {
    /// That of a process alone; `variables` are on `device`. Muon steps those for which `matrices` has an answer.
    pub(crate) fn new(
        mut variables: Vec<(String, Var)>,
        params: AdamWParams,
        matrices: impl Fn(&str, &Var) -> Option<HiddenMatrices>,
        device: &Device,
    ) -> Result<Self> {
        variables.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let exchange = Exchange::new(Arc::new(Alone), &variables, device);
        let found = (0..).zip(&variables).filter_map(|(i, (name, var))| Some((i, matrices(name, var)?)));
        let muon = Muon { matrices: found.collect(), means: BTreeMap::new() };
        let adamw = AdamW::from_slots(vec![], params);
        let mut optimizer = Self { variables, exchange, adamw, muon, device: device.clone() };
        optimizer.make_room()?;
        Ok(optimizer)
    }

    /// Shares out moments and sums over a group, before the first step. The memory for all moments, which a process alone needs, is
    /// given back here before it was touched.
    pub(crate) fn join(&mut self, group: Arc<dyn Group>) -> Result<()> {
        self.adamw = AdamW::from_slots(vec![], self.adamw.params());
        self.muon.means.clear();
        self.exchange = Exchange::new(group, &self.variables, &self.device);
        self.make_room()
    }

    /// Makes the moments of this rank's pieces.
    fn make_room(&mut self) -> Result<()> {
        let mut slots = vec![];
        for piece in self.exchange.own() {
            let (name, var) = &self.variables[piece.variable];
            let own = piece.cut_var(var)?;
            if self.muon.matrices.contains_key(&piece.variable) {
                let zeros = Var::zeros(own.shape(), own.dtype(), own.device())?;
                self.muon.means.insert(piece.variable, zeros);
            } else {
                slots.push(Slot::new(name, var, &own)?);
            }
        }
        self.adamw = AdamW::from_slots(slots, self.adamw.params());
        Ok(())
    }

    /// The number of steps taken.
    pub(crate) fn steps(&self) -> u64 {
        self.adamw.steps()
    }

    /// The numbers of this rank's moments, and those of its sums of gradients.
    pub(crate) fn kept(&self) -> (usize, usize) {
        let slots = self.adamw.state().values().map(Tensor::elem_count).sum::<usize>();
        let means = self.muon.means.values().map(|mean| mean.elem_count()).sum::<usize>();
        (slots + means, slots / 2 + means)
    }

    /// The time that the orthogonal matrices of one step take a rank, measured on one weight of each shape.
    pub(crate) fn matrices_take(&self) -> Result<Duration> {
        let mut of_shapes: BTreeMap<&[usize], (usize, u32)> = BTreeMap::new();
        for &variable in self.muon.matrices.keys() {
            of_shapes.entry(self.variables[variable].1.dims()).or_insert((variable, 0)).1 += 1;
        }
        let mut all = Duration::ZERO;
        for (variable, number) in of_shapes.into_values() {
            let begun = Instant::now();
            self.muon.matrices[&variable].direction(&self.variables[variable].1.as_detached_tensor())?;
            all += begun.elapsed() * number;
        }
        Ok(all / u32::try_from(self.group().size()).unwrap_or(1))
    }

    /// The moments that a variable has.
    fn moments_of(&self, variable: usize) -> &'static [&'static str] {
        if self.muon.matrices.contains_key(&variable) { &["m"] } else { &["m", "v"] }
    }

    /// The names of the tensors that a state holds of every variable: its numbers, `p.NAME`, and its moments.
    pub(crate) fn saved(&self) -> impl Iterator<Item = (String, &Var)> {
        let variables = self.variables.iter().enumerate();
        variables.flat_map(|(i, (name, var))| {
            let kinds = ["p"].iter().chain(self.moments_of(i));
            kinds.map(move |kind| (format!("{kind}.{name}"), var))
        })
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
    pub(crate) fn step(&mut self, sums: &[Tensor], rates: Rates, scale: f64) -> Result<f64> {
        let norm = norm(&self.exchange.squares(sums)?, scale)?;
        let step = ScaledStep { lr: rates.adamw, scale, norm };
        let pieces = self.exchange.own();
        let piece = |piece: &VariablePiece| piece.cut_var(&self.variables[piece.variable].1);
        let own = pieces.iter().map(piece).collect::<Result<Vec<Var>>>()?;
        let is_muons = |i: usize| self.muon.matrices.contains_key(&pieces[i].variable);
        let (of_muon, of_adamw): (Vec<usize>, Vec<usize>) = (0..pieces.len()).partition(|i| is_muons(*i));
        let vars: Vec<Var> = of_adamw.iter().map(|i| own[*i].clone()).collect();
        let gradients: Vec<Tensor> = of_adamw.iter().map(|i| sums[*i].clone()).collect();
        let gradient_scale = self.adamw.gradient_scale(step);
        self.adamw.apply(&vars, &gradients, step)?;
        // Every rank takes part in the exchange, pieces or not.
        if !self.muon.matrices.is_empty() {
            let AdamWParams { weight_decay, .. } = self.adamw.params();
            let step = MuonStep { lr: rates.muon, momentum: MOMENTUM, weight_decay, gradient_scale };
            let rows = of_muon.iter().map(|i| (&pieces[*i], &own[*i], &sums[*i]));
            self.step_matrices(step, &rows.collect::<Vec<_>>())?;
        }
        let own: Vec<Tensor> = own.iter().map(Var::as_detached_tensor).collect();
        self.exchange.gather(
            &own,
            |_| true,
            |piece, values| piece.write(values, &self.variables[piece.variable].1),
        )?;
        Ok(norm)
    }

    /// Takes a step of Muon of this rank's pieces, each with its own numbers and the sums of their gradients.
    fn step_matrices(&self, step: MuonStep, rows: &[(&VariablePiece, &Var, &Tensor)]) -> Result<()> {
        let Muon { matrices, means } = &self.muon;
        let mut updates = vec![];
        let mut wholes = BTreeMap::new();
        for (piece, own, sum) in rows {
            let update = step.momentum(&sum.reshape(own.shape())?, &means[&piece.variable])?;
            let var = &self.variables[piece.variable].1;
            let is_whole = update.dims() == var.dims();
            let whole = if is_whole {
                update.clone()
            } else {
                Tensor::zeros(var.shape(), var.dtype(), var.device())?
            };
            wholes.insert(piece.variable, whole);
            updates.push(update);
        }
        self.exchange.gather(
            &updates,
            |variable| matrices.contains_key(&variable),
            |piece, values| wholes.get(&piece.variable).map_or(Ok(()), |whole| piece.write(values, whole)),
        )?;
        for (piece, own, _) in rows {
            let direction = matrices[&piece.variable].direction(&wholes[&piece.variable])?;
            step.change(own, &piece.cut(&direction)?)?;
        }
        Ok(())
    }
}

impl ShardedOptimizer {
    /// The moments of this rank's pieces, as `m.NAME` and `v.NAME`.
    fn own_moments(&self) -> BTreeMap<String, Tensor> {
        let mut own = self.adamw.state();
        for (variable, mean) in &self.muon.means {
            own.insert(format!("m.{}", self.variables[*variable].0), mean.as_tensor().clone());
        }
        own
    }

    /// The moments of every variable, as `m.NAME` and `v.NAME`: whole on rank 0, and nothing on the others. Every rank must call this
    /// together.
    pub(crate) fn moments(&self) -> Result<BTreeMap<String, Tensor>> {
        let writes = self.group().rank() == 0;
        let own = self.own_moments();
        let mut moments = BTreeMap::new();
        for kind in ["m", "v"] {
            let has = |variable: usize| self.moments_of(variable).contains(&kind);
            let name = |variable: usize| format!("{kind}.{}", self.variables[variable].0);
            for (variable, (_, var)) in self.variables.iter().enumerate().filter(|(i, _)| writes && has(*i)) {
                let whole = own.get(&name(variable)).filter(|own| own.dims() == var.dims());
                let whole = whole.map_or_else(
                    || Tensor::zeros(var.shape(), var.dtype(), &Device::Cpu),
                    |whole| Ok(whole.clone()),
                )?;
                moments.insert(name(variable), whole);
            }
            let pieces = self.exchange.own().into_iter().filter(|piece| has(piece.variable));
            let own: Vec<Tensor> = pieces.map(|piece| own[&name(piece.variable)].clone()).collect();
            self.exchange.gather(&own, has, |piece, values| {
                moments.get(&name(piece.variable)).map_or(Ok(()), |whole| piece.write(values, whole))
            })?;
        }
        Ok(moments)
    }

    /// Goes on after `steps` steps with the variables and moments of rank 0's `saved`: those of [`saved`](Self::saved), which this takes.
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
            for kind in self.moments_of(index) {
                let whole = value(kind)?;
                if let Some(piece) = pieces.iter().find(|piece| piece.variable == index) {
                    moments.insert(format!("{kind}.{name}"), piece.cut(&whole)?);
                }
            }
        }
        for (variable, mean) in &self.muon.means {
            let value = &moments[&format!("m.{}", self.variables[*variable].0)];
            mean.set(&value.to_device(mean.device())?)?;
        }
        Ok(self.adamw.restore(&moments, steps)?)
    }
}

/// Lists the facts that must be the same on every rank for the result to be that of one process, whatever is trained.
pub(crate) fn facts_of_program() -> Vec<Fact> {
    let fact = |what: &str, value: String, remedy| Fact { what: what.into(), value, remedy };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let libraries = format!("mkl {}, accelerate {}", cfg!(feature = "mkl"), cfg!(feature = "accelerate"));
    // Products of two factors that change take the fastest code of the processor, whatever the environment says.
    let best = candle_fused::Isa::best().as_str().to_owned();
    let isa = candle_fused::Isa::current().as_str().to_owned();
    vec![
        fact("version", version, "install the same program on every machine"),
        fact("set of libraries", libraries, "install the same program on every machine"),
        fact("kind of processor (by its instruction set)", best, "use machines of one kind"),
        fact("instruction set", isa, "set CANDLE_FUSED_ISA, or else GPT2_ISA, to the same on every rank"),
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
