//! AdamW with a state that can be saved.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};
use candle_fused::adamw::{AdamWStep, sum_of_squares};
use std::collections::BTreeMap;

/// The settings of [`AdamW`]; their names are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWParams {
    /// The decay of the running mean of gradients.
    pub beta1: f64,
    /// The decay of the running mean of their squares.
    pub beta2: f64,
    /// Added to the square root of that second mean.
    pub eps: f64,
    /// The weight decay of matrices and embeddings, multiplied by the learning rate; biases and layer norms do not
    /// decay.
    pub weight_decay: f64,
    /// The largest norm of all gradients together; if theirs is larger, they are all scaled down to it.
    pub max_grad_norm: Option<f64>,
}

impl Default for AdamWParams {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, max_grad_norm: None }
    }
}

/// AdamW (Loshchilov & Hutter 2019) with a state that can be saved; candle-nn's AdamW keeps its moments private.
#[derive(Debug)]
pub struct AdamW {
    params: AdamWParams,
    step: u64,
    /// Empty if the caller keeps them.
    variables: Vec<Var>,
    slots: Vec<Slot>,
}

/// The optimizer's state for a variable, or for a piece of one.
#[derive(Debug)]
pub(crate) struct Slot {
    name: String,
    decays: bool,
    m: Var,
    v: Var,
}

impl Slot {
    /// The slot of a piece of the variable `name`. Weight decay applies to matrices and embeddings.
    pub(crate) fn new(name: &str, variable: &Var, piece: &Var) -> Result<Self> {
        let zero = || Var::zeros(piece.shape(), piece.dtype(), piece.device());
        Ok(Self { name: name.into(), decays: variable.rank() >= 2, m: zero()?, v: zero()? })
    }
}

impl AdamW {
    /// An optimizer of these variables, such as those that
    /// [`variables_of`](gpt2_model::training::variables_of) lists. It sorts them by name: the norm of all
    /// gradients is a sum over variables, and its last bits depend on their order.
    ///
    /// # Errors
    /// When two variables have the same name, or the device has no room for two moments of each.
    pub fn new(variables: impl IntoIterator<Item = (String, Var)>, params: AdamWParams) -> Result<Self> {
        let mut variables: Vec<_> = variables.into_iter().collect();
        variables.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if let Some(pair) = variables.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            candle_core::bail!("AdamW: two variables are called {}; give each a name of its own", pair[0].0)
        }
        let slots = variables.iter().map(|(name, var)| Slot::new(name, var, var)).collect::<Result<_>>()?;
        let variables = variables.into_iter().map(|(_, var)| var).collect();
        Ok(Self { variables, ..Self::from_slots(slots, params) })
    }

    /// An optimizer of pieces of variables, which [`apply`](Self::apply) gets each time.
    pub(crate) fn from_slots(slots: Vec<Slot>, params: AdamWParams) -> Self {
        Self { params, step: 0, variables: vec![], slots }
    }

    /// Takes one step at learning rate `lr`, with `gradients` times `scale` (1 / the number of summed batches);
    /// returns the norm of the scaled gradients before clipping.
    ///
    /// # Errors
    /// When a variable has no gradient, or one is not finite; then nothing changes.
    pub fn step(&mut self, gradients: &GradStore, lr: f64, scale: f64) -> Result<f64> {
        let found = |(var, slot): (&Var, &Slot)| match gradients.get(var) {
            Some(gradient) => Ok(gradient.clone()),
            None => candle_core::bail!("AdamW: {} has no gradient", slot.name),
        };
        let gradients = self.variables.iter().zip(&self.slots).map(found).collect::<Result<Vec<_>>>()?;
        let squares = gradients.iter().map(sum_of_squares).collect::<Result<Vec<_>>>()?;
        let norm = norm(&squares, scale)?;
        self.apply(&self.variables.clone(), &gradients, ScaledStep { lr, scale, norm })?;
        Ok(norm)
    }

    /// The factor of the gradients of a step: the mean over its batches, scaled down if their norm is too large.
    pub(crate) fn gradient_scale(&self, step: ScaledStep) -> f64 {
        let ScaledStep { scale, norm, .. } = step;
        let clip = self.params.max_grad_norm.filter(|max| norm > *max).map_or(1.0, |max| max / norm);
        scale * clip
    }

    /// Takes a step of these variables along their gradients.
    pub(crate) fn apply(&mut self, variables: &[Var], gradients: &[Tensor], step: ScaledStep) -> Result<()> {
        let lr = step.lr;
        let gradient_scale = self.gradient_scale(step);
        self.step += 1;
        let AdamWParams { beta1, beta2, eps, weight_decay, .. } = self.params;
        for ((slot, var), gradient) in self.slots.iter().zip(variables).zip(gradients) {
            let weight_decay = if slot.decays { weight_decay } else { 0.0 };
            AdamWStep { lr, beta1, beta2, eps, weight_decay, step: self.step, gradient_scale }.apply(
                var,
                &gradient.reshape(var.shape())?,
                &slot.m,
                &slot.v,
            )?;
        }
        Ok(())
    }

    /// The settings.
    pub(crate) fn params(&self) -> AdamWParams {
        self.params
    }

    /// The number of steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Both moments of each variable, as `m.NAME` and `v.NAME`.
    #[must_use]
    pub fn state(&self) -> BTreeMap<String, Tensor> {
        let moments = |slot: &Slot| {
            [(format!("m.{}", slot.name), &slot.m), (format!("v.{}", slot.name), &slot.v)]
                .map(|(name, var)| (name, var.as_tensor().clone()))
        };
        self.slots.iter().flat_map(moments).collect()
    }

    /// Resumes from a [`state`](Self::state) saved after `steps` steps.
    ///
    /// # Errors
    /// When a moment is missing or has another shape; then nothing changes.
    pub fn restore(&mut self, state: &BTreeMap<String, Tensor>, steps: u64) -> Result<()> {
        let mut values = vec![];
        for slot in &self.slots {
            for (moment, var) in [("m", &slot.m), ("v", &slot.v)] {
                let name = format!("{moment}.{}", slot.name);
                let Some(saved) = state.get(&name) else {
                    candle_core::bail!("the optimizer's state lacks {name}")
                };
                if saved.dims() != var.dims() {
                    candle_core::bail!(
                        "{name} is {:?} in the optimizer's state, expected {:?}",
                        saved.dims(),
                        var.dims()
                    )
                }
                values.push((var, saved.to_dtype(var.dtype())?.to_device(var.device())?));
            }
        }
        for (var, value) in values {
            var.set(&value)?;
        }
        self.step = steps;
        Ok(())
    }
}

/// The numbers that decide how far a step goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScaledStep {
    /// The learning rate.
    pub(crate) lr: f64,
    /// The factor of the gradients: 1 / the number of summed batches.
    pub(crate) scale: f64,
    /// The norm of all scaled gradients together, other optimizers' among them.
    pub(crate) norm: f64,
}

/// The norm of all gradients together, times `scale`, from the squares of each in the variables' order.
pub(crate) fn norm(squares: &[f64], scale: f64) -> Result<f64> {
    let norm = squares.iter().sum::<f64>().sqrt() * scale;
    if !norm.is_finite() {
        candle_core::bail!("AdamW: the norm of the gradients is {norm}; nothing was changed")
    }
    Ok(norm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use candle_nn::VarMap;
    use gpt2_model::training::variables_of;

    #[test]
    fn the_norm_that_is_clipped_is_that_of_the_scaled_gradients() -> Result<()> {
        let device = &Device::Cpu;
        // Two batches whose gradients sum to (6, 8): their mean is (3, 4), of norm 5.
        let moments = |max_grad_norm| -> Result<(f64, Vec<f32>)> {
            let variables = VarMap::new();
            let x = variables.get(2, "x", candle_nn::Init::Const(1.0), DType::F32, device)?;
            let gradients = (x * Tensor::new(&[6f32, 8.], device)?)?.sum_all()?.backward()?;
            let params = AdamWParams { beta1: 0.5, max_grad_norm: Some(max_grad_norm), ..Default::default() };
            let mut optimizer = AdamW::new(variables_of(&variables)?, params)?;
            let norm = optimizer.step(&gradients, 0.1, 0.5)?;
            let doubled = (&optimizer.state()["m.x"] * 2.0)?; // the first moment is half the gradient
            Ok((norm, doubled.to_vec1()?))
        };
        for (max_grad_norm, expected) in [(6.0, [3f32, 4.]), (2.5, [1.5, 2.])] {
            let (norm, gradient) = moments(max_grad_norm)?;
            assert!((norm - 5.0).abs() < 1e-9, "{norm}");
            for (got, expected) in gradient.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-6, "clipped to {max_grad_norm}: {gradient:?}");
            }
        }
        Ok(())
    }

    /// Numbers by name, and the gradient of `Σ factor·x`.
    fn of_factors(factors: &[(&str, f32)]) -> Result<(Vec<(String, Var)>, GradStore)> {
        let mut variables = vec![];
        let mut loss = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
        for (name, factor) in factors {
            let var = Var::from_tensor(&Tensor::new(&[1f32], &Device::Cpu)?)?;
            loss = (loss + (var.as_tensor() * f64::from(*factor))?)?;
            variables.push((name.to_string(), var));
        }
        Ok((variables, loss.sum_all()?.backward()?))
    }

    #[test]
    fn the_order_of_the_variables_changes_no_bit_of_the_norm() -> Result<()> {
        for order in [[("a", 1e8), ("b", 1.), ("c", 1.)], [("c", 1.), ("b", 1.), ("a", 1e8)]] {
            let (variables, gradients) = of_factors(&order)?;
            let mut optimizer = AdamW::new(variables, AdamWParams::default())?;
            // By name: 1e16 + 1 is 1e16 in f64, and 1 + 1 + 1e16 is not.
            assert_eq!(optimizer.step(&gradients, 0.1, 1.0)?.to_bits(), 1e8f64.to_bits());
        }
        Ok(())
    }

    #[test]
    fn what_the_optimizer_cannot_do_changes_nothing() -> Result<()> {
        let (mut variables, _) = of_factors(&[("a", 1.), ("b", 1.)])?;
        variables.push(("a".into(), Var::zeros(2, DType::F32, &Device::Cpu)?));
        let error = AdamW::new(variables, AdamWParams::default()).expect_err("two of a name").to_string();
        assert!(error.contains("called a;"), "{error}");

        for (factor, part) in [(f32::NAN, "is NaN; nothing was changed"), (f32::INFINITY, "is inf;")] {
            let (variables, gradients) = of_factors(&[("a", 1.), ("b", factor)])?;
            let mut optimizer = AdamW::new(variables.clone(), AdamWParams::default())?;
            let error = optimizer.step(&gradients, 0.1, 1.0).expect_err(part).to_string();
            assert!(error.contains(part) && optimizer.steps() == 0, "{error}");
            assert_eq!(variables[0].1.to_vec1::<f32>()?, [1.0]);
        }
        let ((variables, _), (_, of_others)) = (of_factors(&[("a", 1.)])?, of_factors(&[("a", 1.)])?);
        let mut optimizer = AdamW::new(variables, AdamWParams::default())?;
        let error = optimizer.step(&of_others, 0.1, 1.0).expect_err("no gradient").to_string();
        assert!(error.contains("a has no gradient"), "{error}");
        let mut state = optimizer.state();
        state.remove("v.a");
        let error = optimizer.restore(&state, 3).expect_err("half of a state").to_string();
        assert!(error.contains("lacks v.a") && optimizer.steps() == 0, "{error}");
        Ok(())
    }
}
