//! A model by its name, loaded.

use crate::error::Failed;
use crate::guard::Raised;
use crate::loaded::Loaded;
use crate::observer::PyObserver;
use anyhow::anyhow;
use gpt2_engine::open::{AdapterChoice, DTYPES, FORMATS, IMPLEMENTATIONS};
use gpt2_engine::words::one_of;
use gpt2_engine::{DeviceChoice, HubOptions, ModelOptions, Spelling};
use gpt2_loader::LoadError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// The model to load, and the options: see `gpt2_candle.Model.load`.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct LoadRequest {
    name: Option<String>,
    dtype: String,
    quantize: Option<String>,
    adapters: Vec<(String, f64)>,
    processed: bool,
    prepend_bos: bool,
    device: String,
    implementation: String,
    revision: Option<String>,
    offline: bool,
    cache_dir: Option<PathBuf>,
    endpoint: Option<String>,
    timeout: Option<u64>,
    /// Called with the kind of an event of the Hub, a file and two numbers.
    progress: Option<Py<PyAny>>,
}

impl LoadRequest {
    pub(crate) fn load(self, raised: &Arc<Raised>) -> Result<Loaded, Failed> {
        Ok(self.open(raised)?)
    }

    fn open(self, raised: &Arc<Raised>) -> anyhow::Result<Loaded> {
        let device: DeviceChoice =
            self.device.parse().map_err(|expected| anyhow!("device {:?}: {expected}", self.device))?;
        let options = self.options()?;
        let observer = PyObserver::new(raised, None).with_downloads(self.progress);
        let opened = options.open(device, false, &observer)?;
        let opened = if self.prepend_bos { opened.with_first_token()? } else { opened };
        let mut notes = observer.into_notes();
        // Ids need no tokenizer: that one is damaged is an error where a text needs it.
        if let Err(error) = opened.tokenizer()
            && !matches!(error, LoadError::NoTokenizer { .. })
        {
            notes.push(format!("{error}; until it is mended, give token ids instead of text"));
        }
        Ok(Loaded { opened, notes, trained: None })
    }

    /// The engine's options.
    pub(crate) fn options(&self) -> anyhow::Result<ModelOptions> {
        let quantize = self.quantize.as_deref().map(|format| one_of("quantize", format, FORMATS));
        let adapters = self.adapters.iter().cloned();
        Ok(ModelOptions {
            model: self.name.clone(),
            dtype: one_of("dtype", &self.dtype, DTYPES)?,
            quantize: quantize.transpose()?,
            implementation: one_of("implementation", &self.implementation, IMPLEMENTATIONS)?,
            adapters: adapters.map(|(source, weight)| AdapterChoice { source, weight }).collect(),
            processed: self.processed,
            hub: HubOptions {
                revision: self.revision.clone(),
                offline: self.offline,
                cache_dir: self.cache_dir.clone(),
                endpoint: self.endpoint.clone(),
                timeout: self.timeout,
            },
            spelling: Spelling::Keywords,
        })
    }

    /// Hears for the caller, downloads included.
    pub(crate) fn observer(&mut self, raised: &Arc<Raised>) -> PyObserver {
        PyObserver::new(raised, None).with_downloads(self.progress.take())
    }
}
