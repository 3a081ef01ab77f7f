//! The pieces of a training loop: dropout, loss, schedule, optimiser, and which variables learn.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};
use candle_nn::VarMap;
use gpt2_kernels::Dropout;
use gpt2_kernels::adamw::{AdamWStep, sum_of_squares};
use std::collections::BTreeMap;

/// Makes a forward pass one of training: dropout at the config's rates. What is dropped is a function of the
/// seed, the step, the layer and the place in the tensor, and of nothing else: the same for any number of
/// threads, on every device, and in a forward pass that is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// The run's seed.
    pub seed: u64,
    /// The optimiser's step, or whatever else tells passes apart that should not drop the same numbers; below
    /// 2^44.
    pub step: u64,
}

/// Where in the model numbers are dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Site {
    /// `embd_pdrop`, on the sum of the embeddings.
    Embeddings,
    /// `attn_pdrop`, on the attention weights.
    Weights,
    /// `resid_pdrop`, on what attention adds to the residual stream.
    Attention,
    /// `resid_pdrop`, on what the MLP adds to it.
    Mlp,
}

impl Training {
    /// The dropout of one place in the model.
    pub(crate) fn dropout(self, rate: f64, layer_idx: usize, site: Site) -> Result<Dropout> {
        // 4 bits for the site and 16 for the layer.
        Dropout::new(rate, self.seed, self.step << 20 | (layer_idx as u64) << 4 | site as u64)
    }
}

/// The mean cross-entropy of predicting each token from those before it, in nats.
///
/// # Shapes
/// `logits` (B, T, V) at positions 0..T, `targets` (B, T): the token that follows each -> scalar
///
/// # Errors
/// When the shapes do not fit.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (b, t, v) = logits.dims3()?;
    if targets.dims() != [b, t] {
        candle_core::bail!(
            "cross-entropy: logits {:?} need targets [{b}, {t}], got {:?}",
            logits.dims(),
            targets.dims()
        )
    }
    let logits = logits.reshape((b * t, v))?.to_dtype(gpt2_kernels::accumulator(logits.dtype()))?;
    gpt2_kernels::cross_entropy(&logits, &targets.reshape(b * t)?)
}

/// A learning rate that rises over `warmup` steps to `peak` and falls along half a cosine to `floor` at
/// step `total` (Loshchilov & Hutter 2017).
#[derive(Debug, Clone, PartialEq)]
pub struct CosineSchedule {
    /// The highest rate.
    pub peak: f64,
    /// The rate at the end.
    pub floor: f64,
    /// Steps of linear rise.
    pub warmup: usize,
    /// All steps.
    pub total: usize,
}

impl CosineSchedule {
    /// The rate of step `step`, counted from 0.
    #[must_use]
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let span = self.total.saturating_sub(self.warmup).max(1);
        let done = ((step - self.warmup) as f64 / span as f64).min(1.0);
        self.floor + 0.5 * (self.peak - self.floor) * (1.0 + (std::f64::consts::PI * done).cos())
    }
}

/// The settings of [`AdamW`]; their names are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWParams {
    /// The decay of the mean of gradients.
    pub beta1: f64,
    /// The decay of the mean of their squares.
    pub beta2: f64,
    /// Added to the root of that mean.
    pub eps: f64,
    /// The decay of matrices and embeddings, times the learning rate; biases and layer norms do not decay.
    pub weight_decay: f64,
    /// Gradients are scaled down to this norm, all of them together, where theirs is larger.
    pub max_grad_norm: Option<f64>,
}

impl Default for AdamWParams {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, max_grad_norm: None }
    }
}

/// AdamW with a state that can be saved: candle-nn's keeps its own to itself.
#[derive(Debug)]
pub struct AdamW {
    params: AdamWParams,
    step: u64,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    var: Var,
    m: Var,
    v: Var,
}

impl AdamW {
    /// An optimiser of all variables, in the order of their names.
    ///
    /// # Errors
    /// When the device cannot hold two more numbers for each.
    pub fn new(variables: &VarMap, params: AdamWParams) -> Result<Self> {
        let zero = |var: &Var| Var::zeros(var.shape(), var.dtype(), var.device());
        let slots = named(variables)?.into_iter().map(|(name, var)| {
            let (m, v) = (zero(&var)?, zero(&var)?);
            Ok(Slot { name, var, m, v })
        });
        Ok(Self { params, step: 0, slots: slots.collect::<Result<_>>()? })
    }

    /// Takes one step at learning rate `lr`, along `gradients` times `scale` (1 over the batches that were
    /// summed); returns the norm of the gradients so scaled, before clipping.
    ///
    /// # Errors
    /// When a variable has no gradient, or one is not finite: then nothing is changed.
    pub fn step(&mut self, gradients: &GradStore, lr: f64, scale: f64) -> Result<f64> {
        let found: Vec<&Tensor> = self
            .slots
            .iter()
            .map(|slot| match gradients.get(&slot.var) {
                Some(gradient) => Ok(gradient),
                None => candle_core::bail!("AdamW: {} has no gradient", slot.name),
            })
            .collect::<Result<_>>()?;
        let mut squares = 0.0;
        for gradient in &found {
            squares += sum_of_squares(gradient)?;
        }
        let norm = squares.sqrt() * scale;
        if !norm.is_finite() {
            candle_core::bail!("AdamW: the norm of the gradients is {norm}; nothing was changed")
        }
        let clip = self.params.max_grad_norm.filter(|max| norm > *max).map_or(1.0, |max| max / norm);
        self.step += 1;
        let AdamWParams { beta1, beta2, eps, weight_decay, .. } = self.params;
        for (slot, gradient) in self.slots.iter().zip(found) {
            let weight_decay = if slot.var.rank() >= 2 { weight_decay } else { 0.0 };
            let gradient_scale = scale * clip;
            AdamWStep { lr, beta1, beta2, eps, weight_decay, step: self.step, gradient_scale }
                .apply(&slot.var, gradient, &slot.m, &slot.v)?;
        }
        Ok(norm)
    }

    /// The steps that were taken.
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

    /// Goes on from a [`state`](Self::state) after `steps` steps.
    ///
    /// # Errors
    /// When a moment is missing or has another shape.
    pub fn restore(&mut self, state: &BTreeMap<String, Tensor>, steps: u64) -> Result<()> {
        for slot in &self.slots {
            for (moment, var) in [("m", &slot.m), ("v", &slot.v)] {
                let name = format!("{moment}.{}", slot.name);
                match state.get(&name) {
                    Some(saved) => var.set(&saved.to_dtype(var.dtype())?.to_device(var.device())?)?,
                    None => candle_core::bail!("the optimiser's state lacks {name}"),
                }
            }
        }
        self.step = steps;
        Ok(())
    }
}

/// Adds the gradients of `more` to those of `sum`, for the variables in `variables`.
///
/// # Errors
/// When two gradients of one variable have different shapes.
pub fn add_gradients(sum: &mut GradStore, mut more: GradStore, variables: &VarMap) -> Result<()> {
    for (_, var) in named(variables)? {
        let Some(gradient) = more.remove(&var) else { continue };
        let total = match sum.remove(&var) {
            Some(before) => (before + gradient)?,
            None => gradient,
        };
        sum.insert(&var, total);
    }
    Ok(())
}

/// Which variables a loss does not teach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GradientCheck {
    /// Variables without a gradient: some operation on the way has no backward.
    pub missing: Vec<String>,
    /// Variables whose gradient is 0 everywhere.
    pub zero: Vec<String>,
    /// Variables with a gradient that is not finite.
    pub not_finite: Vec<String>,
}

impl GradientCheck {
    /// Whether every variable learns.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.missing.is_empty() && self.zero.is_empty() && self.not_finite.is_empty()
    }
}

/// Names each variable that `loss` gives no gradient, a gradient of 0, or one that is not finite. Candle drops
/// gradients in silence where an operation has no backward; this says where.
///
/// ```
/// use candle_core::{D, DType, Device};
/// use candle_nn::{Init, VarMap, init};
/// use gpt2_model::training::check_gradients;
///
/// # fn main() -> candle_core::Result<()> {
/// let variables = VarMap::new();
/// let x = variables.get((2, 3), "x", Init::Randn { mean: 0., stdev: 1. }, DType::F32, &Device::Cpu)?;
/// let fine = candle_nn::ops::softmax(&x, D::Minus1)?.sqr()?.sum_all()?;
/// assert!(check_gradients(&variables, &fine)?.is_clean());
/// let cut = candle_nn::ops::softmax_last_dim(&x)?.sqr()?.sum_all()?; // has no backward
/// assert_eq!(check_gradients(&variables, &cut)?.missing, ["x"]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When the backward pass fails.
pub fn check_gradients(variables: &VarMap, loss: &Tensor) -> Result<GradientCheck> {
    let mut check = GradientCheck::default();
    // An operation without a backward fails where nothing else leads to a variable.
    let gradients = loss.backward().ok();
    for (name, var) in named(variables)? {
        match gradients.as_ref().and_then(|gradients| gradients.get(&var)) {
            None => check.missing.push(name),
            Some(gradient) => match sum_of_squares(gradient)? {
                squares if !squares.is_finite() => check.not_finite.push(name),
                0.0 => check.zero.push(name),
                _ => {}
            },
        }
    }
    Ok(check)
}

/// All variables in the order of their names.
fn named(variables: &VarMap) -> Result<Vec<(String, Var)>> {
    let Ok(held) = variables.data().lock() else {
        candle_core::bail!("the variables' lock is poisoned: a thread panicked while it held them")
    };
    let mut named: Vec<_> = held.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    named.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn the_rate_rises_then_falls_to_the_floor() {
        let schedule = CosineSchedule { peak: 1.0, floor: 0.1, warmup: 10, total: 110 };
        assert!((schedule.rate(0) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(9) - 1.0).abs() < 1e-12);
        assert!((schedule.rate(60) - 0.55).abs() < 1e-12, "half way down");
        assert!((schedule.rate(110) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(10_000) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn the_norm_that_is_clipped_is_that_of_the_scaled_gradients() -> Result<()> {
        let device = &Device::Cpu;
        // Two batches whose gradients sum to (6, 8): their mean is (3, 4), of norm 5.
        let moments = |max_grad_norm| -> Result<(f64, Vec<f32>)> {
            let variables = VarMap::new();
            let x = variables.get(2, "x", candle_nn::Init::Const(1.0), DType::F32, device)?;
            let gradients = (x * Tensor::new(&[6f32, 8.], device)?)?.sum_all()?.backward()?;
            let params = AdamWParams { beta1: 0.5, max_grad_norm: Some(max_grad_norm), ..Default::default() };
            let mut optimiser = AdamW::new(&variables, params)?;
            let norm = optimiser.step(&gradients, 0.1, 0.5)?;
            let doubled = (&optimiser.state()["m.x"] * 2.0)?; // the first moment is half the gradient
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
}
