//! Puts adapters on a model, takes them off, and merges them into its weights.

use super::adapter::Adapter;
use super::layer::{LoraLinear, as_lora};
use crate::linear::LinearLayer;
use crate::parameters::{LM_HEAD, WPE, WTE};
use crate::training::{Site, place};
use crate::{Block, Conv1D, Embedding, Gpt2LMHeadModel, LayerNorm, LmHead};
use candle_core::{Result, Tensor};
use candle_fused::Dispatch;
use std::sync::Arc;

impl Gpt2LMHeadModel {
    /// The same model with an adapter of this name, `weight` times as strong. The model's own layers stay behind it, shared
    /// with clones of the model. The adapter's numbers become the model's dtype: an adapter that learns needs a model in its own.
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
        let (dtype, device) = (self.transformer.dtype(), self.transformer.wte.device().clone());
        let mut left: Vec<&str> = adapter.updates.keys().map(String::as_str).collect();
        for (i, block) in self.transformer.h.iter_mut().enumerate() {
            for (nth, (layer_name, layer)) in (0..).zip(block.linear_layers_mut()) {
                let path = format!("h.{i}.{layer_name}");
                let Some(update) = adapter.updates.get(&path) else { continue };
                left.retain(|held| *held != path);
                let update = update.for_inputs(dtype, &device)?.times(weight);
                let adapted = match as_lora(layer) {
                    Some(lora) => lora.clone(),
                    None => LoraLinear::new(layer.layer().clone(), place(i, Site::Lora, nth))?,
                };
                let adapted = adapted.with(name, update).map_err(|e| e.context(path))?;
                *layer = Conv1D::from_layer(Arc::new(adapted));
            }
        }
        if let Some(other) = left.first() {
            candle_core::bail!("adapter {name}: the model has no linear layer {other}")
        }
        Ok(self)
    }

    /// The same model without its adapters. Parameters that one replaced stay replaced.
    #[must_use]
    pub fn without_adapters(mut self) -> Self {
        for layer in self.transformer.h.iter_mut().flat_map(Block::linear_layers_mut).map(|(_, layer)| layer)
        {
            if let Some(base) = as_lora(layer).map(|lora| lora.base().clone()) {
                *layer = Conv1D::from_layer(base);
            }
        }
        self
    }

    /// The same model with its adapters added to its weights: plain layers, which cost what they cost without an adapter
    /// and can be saved as a checkpoint.
    ///
    /// # Errors
    /// When an adapted weight is quantized.
    pub fn merged(mut self) -> Result<Self> {
        let (layout, implementation) = (self.config().weight_layout(), self.config().attn_implementation);
        for (i, block) in self.transformer.h.iter_mut().enumerate() {
            for (name, layer) in block.linear_layers_mut() {
                let Some(lora) = as_lora(layer) else { continue };
                let weight = lora.merged_weight().map_err(|e| e.context(format!("h.{i}.{name}")))?;
                let dispatch = Dispatch::of(implementation, &weight);
                let bias = match lora.bias() {
                    Some(bias) => bias.clone(),
                    None => Tensor::zeros(lora.shape().1, weight.dtype(), weight.device())?,
                };
                let stored = layout.in_out(&weight)?.contiguous()?; // turning twice is turning back
                *layer = Conv1D::stored(stored, layout, bias, dispatch)?;
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
        let value = value.to_dtype(self.transformer.dtype())?.to_device(self.transformer.wte.device())?;
        let implementation = self.config().attn_implementation;
        match name {
            // A tied head keeps the model's own table, as in PEFT.
            WTE => self.transformer.wte = Embedding::new(value)?,
            WPE => self.transformer.wpe = value,
            LM_HEAD => self.lm_head = LmHead::new(value)?,
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
    fn replace(&mut self, name: &str, value: Tensor, implementation: crate::Implementation) -> Result<()> {
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
        if as_lora(layer).is_some() {
            candle_core::bail!("{module} has an adapter already, behind which {part} cannot be replaced")
        }
        let layout = layer.layout();
        let own_bias =
            || layer.bias().cloned().ok_or_else(|| candle_core::Error::msg("the layer has no bias"));
        let (weight, bias) = match part {
            "weight" => (value, own_bias()?),
            _ => (layout.in_out(&layer.weight()?)?.contiguous()?, value),
        };
        let dispatch = Dispatch::of(implementation, &weight);
        *layer = Conv1D::stored(weight, layout, bias, dispatch)?;
        Ok(())
    }
}
