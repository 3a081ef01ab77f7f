//! A model that is ready to run, and how results say what made them.

use crate::error::Failed;
use candle_core::{Device, DeviceLocation};
use candle_fused::BlockFormat;
use gpt2_loader::{Files, Tokenizer};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::lora::{Adapter, LoraOptions};
use gpt2_view::Provenance;
use serde_json::json;
use std::sync::Arc;

/// A model that is ready to run.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) model: Gpt2LMHeadModel,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    /// Why there is no tokenizer, if it is damaged.
    pub(crate) no_tokenizer: Option<String>,
    pub(crate) formats: Vec<BlockFormat>,
    pub(crate) adapters: Vec<String>,
    pub(crate) commit: Option<String>,
    /// Notes for the reader about the choices that were made.
    pub(crate) notes: Vec<String>,
    /// The files that it was loaded from; none for a model that was trained here.
    pub(crate) files: Option<Files>,
    /// The adapter that was trained on it.
    pub(crate) trained: Option<TrainedAdapter>,
}

/// An adapter that was trained, and its settings.
pub(crate) type TrainedAdapter = (Adapter, LoraOptions);

impl Loaded {
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Failed> {
        self.tokenizer.as_deref().ok_or_else(|| {
            let why = self.no_tokenizer.as_deref().unwrap_or("has no tokenizer here");
            Failed::value(format!("{}: {why}; give token ids instead of text", self.name))
        })
    }

    /// The provenance of a result: a line for a reader, and the facts.
    pub(crate) fn provenance(&self, ids: &[u32], changes: &[String]) -> Provenance {
        let dtype = self.model.dtype().as_str();
        let device = device_name(self.model.device());
        let formats: Vec<_> = self.formats.iter().map(|format| format.as_str()).collect();
        let weights =
            if formats.is_empty() { String::new() } else { format!(", weights in {}", formats.join(", ")) };
        let adapters: Vec<_> = self.adapters.iter().map(|name| format!(", adapter {name}")).collect();
        let adapters = adapters.concat();
        let under = if changes.is_empty() { String::new() } else { format!("; {}", changes.join(", ")) };
        let facts = json!({
            "gpt2": env!("CARGO_PKG_VERSION"), "from": "Python", "model": self.name, "commit": self.commit, "dtype": dtype, "device": device,
            "quantized": formats, "adapters": self.adapters, "ids": ids, "interventions": changes,
        });
        Provenance { caption: format!("{dtype} on {device}{weights}{adapters}{under}"), facts }
    }

    pub(crate) fn labels(&self, ids: &[u32]) -> Vec<String> {
        match &self.tokenizer {
            Some(tokenizer) => tokenizer.spelled(ids),
            None => ids.iter().map(u32::to_string).collect(),
        }
    }
}

/// `cpu`, `cuda:0` or `metal:0`
pub(crate) fn device_name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}
