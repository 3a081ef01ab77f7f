//! Writes an adapter in PEFT's files.

use crate::adapter::checkpoint::{PEFT_PREFIX, factors_of};
use crate::adapter::config::AdapterConfig;
use crate::adapter::expected::{ExpectedAdapter, path_of};
use crate::error::LoadError;
use crate::files::{ADAPTER_CONFIG, ADAPTER_SAFETENSORS};
use candle_core::Tensor;
use gpt2_files::{atomic, write_safetensors};
use gpt2_model::Config;
use gpt2_model::lora::{Adapter, tables};
use gpt2_model::parameters::PREFIX;
use std::path::Path;

/// Writes `adapter_model.safetensors` and `adapter_config.json` into `dir`, which is created if it does not exist. Each file
/// is written under a temporary name, then renamed. PEFT loads them onto transformers' `GPT2LMHeadModel`.
///
/// # Errors
/// When the adapter does not have the updates that its config calls for in a model of the config `model`, or the folder
/// cannot be written to.
pub fn save_adapter(
    dir: &Path,
    adapter: &Adapter,
    config: &AdapterConfig,
    model: &Config,
) -> Result<(), LoadError> {
    let named = || dir.display().to_string();
    let refused = |reason| LoadError::Adapter { name: named(), reason };
    if let Some(reason) = config.problem() {
        return Err(refused(reason));
    }
    let mut expected = ExpectedAdapter::new(config, model, PREFIX).map_err(refused)?;
    for (layer, _) in tables(model) {
        if adapter.replaced.contains_key(&format!("{layer}.weight")) {
            expected.add_base(layer);
        }
    }
    if !expected.replaced.keys().eq(adapter.replaced.keys()) {
        return Err(refused("modules_to_save names other parameters than the adapter replaces".into()));
    }
    let mut layers = expected.updates.keys().chain(adapter.updates.keys());
    let other = layers.find(|layer| match (expected.updates.get(*layer), adapter.updates.get(*layer)) {
        (Some(expected), Some(update)) => {
            let close = (expected.scaling - update.scaling()).abs() <= 1e-12 * update.scaling().abs();
            (expected.rank, expected.shape) != (update.rank(), update.shape()) || !close
        }
        _ => true,
    });
    if let Some(layer) = other {
        return Err(refused(format!(
            "the adapter's update of {layer} is not the one that its config calls for"
        )));
    }

    let failed = |source| LoadError::Tensor { name: named(), source };
    let mut tensors: Vec<(String, Tensor)> = vec![];
    for (layer, update) in &adapter.updates {
        for (factor, tensor) in factors_of(layer).into_iter().zip([update.a(), update.b()]) {
            let name = format!("{PEFT_PREFIX}{}{factor}", path_of(PREFIX, layer));
            tensors.push((name, tensor.contiguous().map_err(failed)?));
        }
    }
    for (name, tensor) in &adapter.replaced {
        let path = expected.saved(name, path_of(PREFIX, name));
        tensors.push((format!("{PEFT_PREFIX}{path}"), tensor.contiguous().map_err(failed)?));
    }
    let tensors: Vec<(&str, &Tensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let json = serde_json::to_string_pretty(config).map_err(candle_core::Error::wrap).map_err(failed)? + "\n";
    std::fs::create_dir_all(dir).map_err(LoadError::io(dir))?;
    atomic::write(&dir.join(ADAPTER_SAFETENSORS), |temporary| {
        write_safetensors(temporary, &tensors, &[("format", "pt".to_string())])
    })?;
    Ok(atomic::write_bytes(&dir.join(ADAPTER_CONFIG), json.as_bytes())?)
}
