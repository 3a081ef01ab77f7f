//! The pieces of a training loop: dropout, loss, schedule, and which parameters decay.

use candle_core::{Result, Tensor, Var};
use candle_nn::VarMap;
use gpt2_kernels::Dropout;

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
    let logits = logits.reshape((b * t, v))?.to_dtype(gpt2_kernels::accumulator(logits.dtype()))?;
    candle_nn::loss::cross_entropy(&logits, &targets.reshape(b * t)?)
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

/// The variables that weight decay applies to (matrices and embeddings) and those it does not (biases
/// and layer norms), each in the order of their names.
///
/// # Errors
/// When the variables' lock is poisoned.
pub fn decay_groups(variables: &VarMap) -> Result<(Vec<Var>, Vec<Var>)> {
    let Ok(held) = variables.data().lock() else {
        candle_core::bail!("the variables' lock is poisoned: a thread panicked while it held them")
    };
    let mut named: Vec<_> = held.iter().collect();
    named.sort_unstable_by_key(|(name, _)| *name);
    let (decayed, plain): (Vec<_>, Vec<_>) =
        named.into_iter().map(|(_, v)| v.clone()).partition(|v| v.rank() >= 2);
    Ok((decayed, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_to_the_floor() {
        let schedule = CosineSchedule { peak: 1.0, floor: 0.1, warmup: 10, total: 110 };
        assert!((schedule.rate(0) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(9) - 1.0).abs() < 1e-12);
        assert!((schedule.rate(60) - 0.55).abs() < 1e-12, "half way down");
        assert!((schedule.rate(110) - 0.1).abs() < 1e-12);
        assert!((schedule.rate(10_000) - 0.1).abs() < 1e-12);
    }
}
