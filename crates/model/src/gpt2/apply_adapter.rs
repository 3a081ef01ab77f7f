//! Puts adapters on a model, takes them off, and merges them into its weights.

use super::block::Block;
use super::layers::conv1d::Conv1D;
use super::layers::embedding::Embedding;
use super::layers::layer_norm::LayerNorm;
use super::layers::linear::{Linear, Weight, WeightLayout};
use super::layers::low_rank_update::Update;
use super::layers::parameters::{LM_HEAD, WPE, WTE};
use super::lm_head_model::Gpt2LMHeadModel;
use super::lora::Adapter;
use crate::learn::training::{DropoutSite, place};
use candle_core::{Result, Tensor};
use candle_fused::Implementation;

impl Gpt2LMHeadModel {
    /// Adds an adapter under this name, `weight` times as strong. The model's own layers stay below it, shared with
    /// clones of the model. The adapter's numbers are converted to the model's dtype, so an adapter that learns needs a
    /// model in its own dtype.
    ///
    /// # Errors
    /// When the adapter does not fit the model, the model has one of that name, or an adapter that replaces parameters has
    /// another weight than 1.
    pub fn with_adapter(mut self, name: &str, adapter: &Adapter, weight: f64) -> Result<Self> {
        if !weight.is_finite() {
            candle_core::bail!("adapter {name}: its weight is {weight}, expected a finite number")
        }
        if let Some(replaced) = adapter.replaced.keys().next().filter(|_| (weight - 1.0).abs() > 0.0) {
            candle_core::bail!(
                "adapter {name}: its weight is {weight}, but it replaces {replaced}, which cannot be weighted; use 1"
            )
        }
        for (parameter, value) in &adapter.replaced {
            self.replace(parameter, value).map_err(|e| e.context(format!("adapter {name}")))?;
        }
        let dtype = self.dtype();
        let device = self.device().clone();
        let mut left: Vec<&str> = adapter.updates.keys().map(String::as_str).collect();
        for (i, block) in self.transformer.h.iter_mut().enumerate() {
            for (nth, (layer_name, layer)) in (0..).zip(block.linear_layers_mut()) {
                let path = format!("h.{i}.{layer_name}");
                let Some(update) = adapter.updates.get(&path) else { continue };
                left.retain(|held| *held != path);
                let update = update.for_inputs(dtype, &device)?.times(weight);
                let stream = place(i, DropoutSite::Lora, nth);
                *layer = layer.with_update(name, update, stream).map_err(|e| e.context(path))?;
            }
        }
        for table in [WTE, WPE, LM_HEAD] {
            let layer = table.strip_suffix(".weight").unwrap_or(table);
            let Some(update) = adapter.updates.get(layer) else { continue };
            left.retain(|held| *held != layer);
            self.add_to_table(table, update, weight).map_err(|e| e.context(format!("adapter {name}")))?;
        }
        if let Some(other) = left.first() {
            candle_core::bail!("adapter {name}: the model has no linear layer {other}")
        }
        Ok(self)
    }

    /// Adds an update to the embeddings' table or to the output projection's: there, it is merged at once. A tied head and its table
    /// part, as in PEFT: only one of them changes.
    fn add_to_table(&mut self, table: &str, update: &Update, weight: f64) -> Result<()> {
        let delta = (update.delta()? * weight)?.to_device(self.device())?;
        let (own, delta) = match table {
            WTE => (self.transformer.wte.weight()?, delta),
            WPE => (self.transformer.wpe.clone(), delta),
            _ => (self.lm_head.weight()?, delta.t()?),
        };
        if own.dims() != delta.dims() {
            candle_core::bail!("{table} is {:?}, its update {:?}", own.dims(), delta.dims())
        }
        self.replace(table, &(own.to_dtype(delta.dtype())? + delta)?)
    }

    /// Removes the adapters. Parameters that an adapter replaced stay replaced, and tables that it changed stay changed.
    #[must_use]
    pub fn without_adapters(mut self) -> Self {
        for layer in self.transformer.h.iter_mut().flat_map(Block::linear_layers_mut).map(|(_, layer)| layer)
        {
            *layer = layer.without_updates();
        }
        self
    }

    /// Merges the adapters into the weights. The layers are plain again: they are as fast as without an adapter, and
    /// can be saved as a checkpoint.
    ///
    /// # Errors
    /// When an adapted weight is quantized.
    pub fn merged(mut self) -> Result<Self> {
        let layout = self.config().weight_layout();
        let implementation = self.config().attn_implementation;
        for (i, block) in self.transformer.h.iter_mut().enumerate() {
            for (name, layer) in block.linear_layers_mut() {
                if layer.updates().is_empty() {
                    continue;
                }
                if layer.layer().is_quantized() {
                    candle_core::bail!(
                        "h.{i}.{name}: an adapter cannot be merged into quantized weights; merge it into the original, then \
                         quantize"
                    )
                }
                let weight = layer.weight()?;
                let bias = match layer.bias() {
                    Some(bias) => bias.clone(),
                    None => Tensor::zeros(layer.shape().1, weight.dtype(), weight.device())?,
                };
                let stored = layout.in_out(&weight)?.contiguous()?; // turning twice is turning back
                *layer = linear(Weight::new(stored, layout)?, bias, implementation)?;
            }
        }
        Ok(self)
    }

    /// Puts a parameter in place of the model's own.
    fn replace(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let parameters = self.config().parameters_and_ties()?;
        let Some(parameter) = parameters.iter().find(|parameter| parameter.name == name) else {
            candle_core::bail!("the model has no parameter {name} to replace")
        };
        if parameter.shape != value.dims() {
            candle_core::bail!("{name} is {:?}, in the model {:?}", value.dims(), parameter.shape)
        }
        let value = value.to_dtype(self.dtype())?.to_device(self.device())?;
        let implementation = self.config().attn_implementation;
        match name {
            // A tied head keeps the model's own table, as in PEFT.
            WTE => self.transformer.wte = Embedding::new(value)?,
            WPE => self.transformer.wpe = value,
            LM_HEAD => {
                let weight = Weight::new(value, WeightLayout::OutIn)?;
                self.lm_head = self.lm_head.with_weight(weight.with_implementation(implementation))?;
            }
            "ln_f.weight" => self.transformer.ln_f.weight = value,
            "ln_f.bias" => self.transformer.ln_f.bias = value,
            _ => {
                let of_block = name.strip_prefix("h.").and_then(|rest| rest.split_once('.'));
                let of_block = of_block.and_then(|(i, rest)| Some((i.parse::<usize>().ok()?, rest)));
                let block = of_block.and_then(|(i, rest)| Some((self.transformer.h.get_mut(i)?, rest)));
                match block {
                    Some((block, rest)) => block.replace(rest, value, implementation)?,
                    None => candle_core::bail!("{name} cannot be replaced"),
                }
            }
        }
        Ok(())
    }
}

impl Block {
    /// Puts a parameter in place of the block's own. `name` is the name below the block.
    fn replace(&mut self, name: &str, value: Tensor, implementation: Implementation) -> Result<()> {
        let Some((module, part)) = name.rsplit_once('.') else {
            candle_core::bail!("{name} cannot be replaced")
        };
        let norm = match module {
            "ln_1" => Some(&mut self.ln_1),
            "ln_2" => Some(&mut self.ln_2),
            "ln_cross_attn" => self.ln_cross_attn.as_mut(),
            _ => None,
        };
        if let Some(LayerNorm { weight, bias, .. }) = norm {
            *(if part == "weight" { weight } else { bias }) = value;
            return Ok(());
        }
        let Some((_, layer)) = self.linear_layers_mut().find(|(layer, _)| *layer == module) else {
            candle_core::bail!("{name} cannot be replaced")
        };
        if !layer.updates().is_empty() {
            candle_core::bail!("{module} has an adapter already, behind which {part} cannot be replaced")
        }
        let Some(own) = layer.layer().weight() else {
            candle_core::bail!("{module} is a layer of your own, whose {part} cannot be replaced")
        };
        let (weight, bias) = match (part, layer.bias()) {
            ("weight", Some(bias)) => (Weight::new(value, own.layout())?, bias.clone()),
            ("weight", None) => candle_core::bail!("{module} has no bias"),
            _ => (own.clone(), value),
        };
        *layer = linear(weight, bias, implementation)?;
        Ok(())
    }
}

pub(super) fn linear(weight: Weight, bias: Tensor, implementation: Implementation) -> Result<Conv1D> {
    Ok(Linear::new(weight.with_implementation(implementation), Some(bias))?.into())
}
