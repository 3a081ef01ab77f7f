//! Low-rank adapters (LoRA, Hu et al. 2021): small updates of a model's linear layers, trained while the model itself
//! stays as it is. The names and numbers are PEFT's; the crate `gpt2-loader` reads and writes its files, and `gpt2-train`
//! trains an adapter with [`Gpt2LMHeadModel`](crate::Gpt2LMHeadModel).
//!
//! [`Conv1D::with_update`](crate::Conv1D::with_update) puts an update on a layer, also in a model of your own, whatever its
//! weight is, quantized or not:
//!
//! ```
//! use candle_core::{DType, Device, Module, Result, Tensor, Var};
//! use gpt2_model::lora::Update;
//! use gpt2_model::{Conv1D, init};
//!
//! # fn main() -> Result<()> {
//! let device = &Device::Cpu;
//! let layer = Conv1D::load(init::seeded(1, DType::F32, device), 6, 4, 0.02)?; // constants: frozen
//! let a = Var::randn(0f32, 0.4, (2, 6), device)?; // lora_A (r, in)
//! let b = Var::zeros((4, 2), DType::F32, device)?; // lora_B (out, r)
//! let update = Update::new(a.as_tensor().clone(), b.as_tensor().clone(), 8. / 2., 0.)?;
//! let adapted = layer.with_update("style", update, 0)?;
//!
//! let (x, target) = (Tensor::randn(0f32, 1., (10, 6), device)?, Tensor::randn(0f32, 1., (10, 4), device)?);
//! let loss = || (adapted.forward(&x)? - &target)?.sqr()?.mean_all();
//! let before = loss()?.to_scalar::<f32>()?;
//! for _ in 0..20 {
//!     let gradients = loss()?.backward()?; // of a and b alone
//!     for var in [&a, &b] {
//!         let gradient = gradients.get(var).expect("a variable");
//!         var.set(&(var.as_tensor() - (gradient * 0.02)?)?)?;
//!     }
//! }
//! assert!(loss()?.to_scalar::<f32>()? < before);
//! # Ok(())
//! # }
//! ```
//!
//! An [`Adapter`] has the updates of a whole GPT-2. [`with_adapter`](crate::Gpt2LMHeadModel::with_adapter) puts one or
//! several on a model, [`without_adapters`](crate::Gpt2LMHeadModel::without_adapters) takes them off, and
//! [`merged`](crate::Gpt2LMHeadModel::merged) adds them to the weights. To take one out of weights that it was merged into,
//! merge it once more with the weight -1; only the rounding of the two sums stays.

use super::layers::parameters::{Parameter, Role};
use crate::config::Config;
use crate::learn::init;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Init, VarMap};
use serde::Serialize;
use std::collections::BTreeMap;

pub use super::layers::low_rank_update::Update;

/// An adapter of a GPT-2: low-rank updates of layers, and parameters in place of the model's own.
#[derive(Debug, Clone, Default)]
pub struct Adapter {
    /// The updates of linear layers, by the layer's name, such as `h.0.attn.c_attn`; and of the tables `wte` and `wpe`, whose input is a
    /// token or a position, and of `lm_head`.
    pub updates: BTreeMap<String, Update>,
    /// Parameters that take the place of the model's own (PEFT's `modules_to_save`), by their names in a checkpoint
    /// without the prefix, such as `lm_head.weight`.
    pub replaced: BTreeMap<String, Tensor>,
}

/// The settings of a new adapter; their names are PEFT's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoraOptions {
    /// The rank of each update.
    pub r: usize,
    /// Updates are multiplied by `lora_alpha / r`.
    pub lora_alpha: f64,
    /// The probability of dropping a number of a layer's input on the way through its update, in training.
    pub lora_dropout: f64,
    /// Whether to multiply by `lora_alpha / sqrt(r)` instead (Kalajdzievski 2023).
    pub use_rslora: bool,
    /// The names of the layers that get an update. A name matches a layer that has this name, or whose name ends in a
    /// dot and this one.
    pub target_modules: Vec<String>,
}

impl LoraOptions {
    /// PEFT's defaults for GPT-2 at this rank: `lora_alpha` 8, no dropout, on `c_attn`.
    #[must_use]
    pub fn new(r: usize) -> Self {
        Self {
            r,
            lora_alpha: 8.0,
            lora_dropout: 0.0,
            use_rslora: false,
            target_modules: vec!["c_attn".into()],
        }
    }

    /// The factor on updates.
    #[must_use]
    pub fn scaling(&self) -> f64 {
        let r = self.r as f64;
        self.lora_alpha / if self.use_rslora { r.sqrt() } else { r }
    }

    /// Whether a layer gets an update.
    #[must_use]
    pub fn targets(&self, layer: &str) -> bool {
        self.target_modules.iter().any(|target| is_named(layer, target))
    }
}

/// Whether a path is a name, or ends in a dot and the name.
fn is_named(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

impl Adapter {
    /// The adapter with its numbers as constants, which no longer learn.
    #[must_use]
    pub fn detach(&self) -> Self {
        let updates = self.updates.iter().map(|(name, update)| (name.clone(), update.detach())).collect();
        let replaced = self.replaced.iter().map(|(name, tensor)| (name.clone(), tensor.detach())).collect();
        Self { updates, replaced }
    }

    /// A new adapter of a model with this config, whose numbers are variables in f32: A uniform within `±1/sqrt(in)` from
    /// the seed, as in PEFT, and B 0, so that at first the adapter changes nothing.
    ///
    /// # Errors
    /// When r is 0, a target names no layer, a rate is invalid, or the device fails.
    pub fn new(config: &Config, options: &LoraOptions, seed: u64, device: &Device) -> Result<Self> {
        let layers = linear_layers(config)?;
        if let Some(target) = options
            .target_modules
            .iter()
            .find(|target| !layers.iter().any(|(layer, _)| is_named(layer, target)))
        {
            let mut names: Vec<&str> =
                layers.iter().filter_map(|(layer, _)| Some(layer.rsplit_once('.')?.1)).collect();
            names.sort_unstable();
            names.dedup();
            candle_core::bail!(
                "lora: no layer of the model is called {target:?}; expected some of {}",
                names.join(", ")
            )
        }
        if options.target_modules.is_empty() {
            candle_core::bail!("lora: target_modules is empty, so nothing would learn")
        }
        let vb = init::seeded_variables(seed, &VarMap::new(), DType::F32, device);
        let mut updates = BTreeMap::new();
        for (layer, (n_in, n_out)) in layers.into_iter().filter(|(layer, _)| options.targets(layer)) {
            let most = n_in.min(n_out);
            if options.r == 0 || options.r > most {
                candle_core::bail!(
                    "lora: r is {}, expected 1 to {most}, the narrower side of {layer}",
                    options.r
                )
            }
            let bound = 1.0 / (n_in as f64).sqrt();
            let vb = vb.pp(&layer);
            let a =
                vb.get_with_hints((options.r, n_in), "lora_A", Init::Uniform { lo: -bound, up: bound })?;
            let b = vb.get_with_hints((n_out, options.r), "lora_B", Init::Const(0.0))?;
            updates.insert(layer, Update::new(a, b, options.scaling(), options.lora_dropout)?);
        }
        Ok(Self { updates, replaced: BTreeMap::new() })
    }

    /// The adapter with its numbers as constants, through which no gradient flows.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self {
            updates: self.updates.iter().map(|(name, update)| (name.clone(), update.detached())).collect(),
            replaced: self.replaced.iter().map(|(name, x)| (name.clone(), x.detach())).collect(),
        }
    }

    /// The number of parameters in the adapter.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        let updates = self.updates.values().flat_map(|update| [update.a(), update.b()]);
        updates.chain(self.replaced.values()).map(|tensor| tensor.elem_count() as u64).sum()
    }
}

/// The layers outside the blocks that may have an update: name and shape (in, out).
#[must_use]
pub fn tables(config: &Config) -> [(&'static str, (usize, usize)); 3] {
    let Config { vocab_size, n_positions, n_embd, .. } = *config;
    [("wte", (vocab_size, n_embd)), ("wpe", (n_positions, n_embd)), ("lm_head", (n_embd, vocab_size))]
}

/// The linear layers of the blocks of a model with this config, in the model's order: name and shape (in, out).
///
/// # Errors
/// When the config is not valid.
pub fn linear_layers(config: &Config) -> Result<Vec<(String, (usize, usize))>> {
    let layout = config.weight_layout();
    let of_weight = |parameter: Parameter| match (parameter.role, parameter.shape[..].as_ref()) {
        (Role::LinearWeight, &[first, second]) => {
            let layer = parameter.name.strip_suffix(".weight")?.to_string();
            Some((layer, layout.shape(first, second)))
        }
        _ => None,
    };
    Ok(config.parameters()?.into_iter().filter_map(of_weight).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_whole_last_part_of_a_name() {
        assert!(is_named("h.0.attn.c_attn", "c_attn") && is_named("h.0.attn.c_attn", "attn.c_attn"));
        assert!(is_named("c_attn", "c_attn") && !is_named("h.0.attn.c_attn", "attn"));
        assert!(!is_named("h.10.mlp.c_fc", "0.mlp.c_fc"), "h.10 is not h.0");
    }
}
