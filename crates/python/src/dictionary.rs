//! A sparse autoencoder or transcoder as Python holds it.

use crate::array::Array;
use crate::error::Failed;
use crate::guard::{Raised, compute};
use crate::observer::PyObserver;
use candle_core::{DType, Device, Tensor};
use gpt2_engine::HubOptions;
use gpt2_engine::open::OpenedDictionary;
use gpt2_engine::studies::interpret::features::DictionarySummary;
use gpt2_loader::Normalization;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// A dictionary of features. Nothing changes it, so any number of threads may use it at once.
#[pyclass(frozen, module = "gpt2_candle._native")]
#[derive(Debug)]
pub(crate) struct Dictionary {
    pub(crate) opened: Arc<OpenedDictionary>,
    /// Notes for the reader.
    notes: Vec<String>,
}

/// The dictionary to load: see `gpt2_candle.Dictionary.load`.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct DictionaryRequest {
    name: String,
    offline: bool,
    cache_dir: Option<PathBuf>,
    endpoint: Option<String>,
    timeout: Option<u64>,
    /// Called with the kind of an event of the Hub, a file and two numbers.
    progress: Option<Py<PyAny>>,
}

#[pymethods]
impl Dictionary {
    #[staticmethod]
    fn load(py: Python<'_>, request: DictionaryRequest) -> PyResult<Self> {
        let raised = Arc::new(Raised::default());
        compute(py, &raised, || {
            let DictionaryRequest { name, offline, cache_dir, endpoint, timeout, progress } = request;
            let hub = HubOptions { revision: None, offline, cache_dir, endpoint, timeout };
            let observer = PyObserver::new(&raised, None).with_downloads(progress);
            let opened = hub.find_dictionary(&name, &observer)?.load(&observer)?;
            let mut notes = observer.into_notes();
            notes.extend(opened.found.checkpoint.config().remarks.iter().cloned());
            Ok(Self { opened: Arc::new(opened), notes })
        })
    }

    /// Its facts, settings and notes as JSON.
    fn facts(&self) -> Result<String, Failed> {
        let about =
            serde_json::to_value(DictionarySummary::new(&self.opened)).map_err(anyhow::Error::from)?;
        let config = self.opened.found.checkpoint.config();
        let cfg = json!({
            "architecture": config.architecture.to_string(),
            "d_in": config.d_in,
            "d_sae": config.d_sae,
            "d_out": config.d_out,
            "hook_name": config.hook.to_string(),
            "hook_name_out": config.hook_out.to_string(),
            "k": config.k,
            "apply_b_dec_to_input": config.apply_b_dec_to_input,
            "normalize_activations": normalization(config.normalization),
            "model_name": config.model_name,
            "prepend_bos": config.prepend_bos,
        });
        let with_input = self.opened.dictionary.decodes_with_input();
        let facts =
            json!({ "about": about, "cfg": cfg, "decodes_with_input": with_input, "notes": self.notes });
        Ok(facts.to_string())
    }

    /// The activations of all features, (.., features), of values (.., d).
    fn encode(&self, py: Python<'_>, values: &Array) -> PyResult<Array> {
        compute(py, &Arc::default(), || {
            let values = values.tensor().to_dtype(DType::F32)?;
            let dictionary = &self.opened.dictionary;
            let shape = with_last(values.dims(), dictionary.features());
            Ok(Array::new(&dictionary.encode(&values)?.dense()?.reshape(shape)?)?)
        })
    }

    /// Decodes activations (.., features) of values (.., d) to (.., d out). Without values, they count as 0.
    fn decode(&self, py: Python<'_>, features: &Array, values: Option<&Array>) -> PyResult<Array> {
        compute(py, &Arc::default(), || {
            let dictionary = &self.opened.dictionary;
            let features = features.tensor().to_dtype(DType::F32)?;
            let values = if let Some(values) = values {
                values.tensor().to_dtype(DType::F32)?
            } else {
                let shape = with_last(features.dims(), dictionary.d());
                Tensor::zeros(shape, DType::F32, features.device())?
            };
            let code = dictionary.code_of(&features, &values)?;
            Ok(Array::new(&dictionary.decode(&code, &values)?)?)
        })
    }

    /// A feature's contribution to what is rebuilt per unit of its activation, (d out).
    fn direction(&self, feature: u32) -> Result<Array, Failed> {
        Ok(Array::copy_of(&self.opened.dictionary.direction(feature)?)?)
    }

    /// A copy of a parameter, by SAELens' name.
    fn parameter(&self, name: &str) -> Result<Array, Failed> {
        let dictionary = &self.opened.dictionary;
        let found = match name {
            "W_enc" => {
                let features = u32::try_from(dictionary.features()).map_err(anyhow::Error::from)?;
                dictionary.encoders(&Tensor::arange(0, features, &Device::Cpu)?)?.t()?.contiguous()?
            }
            "W_dec" => dictionary.w_dec().clone(),
            "b_enc" => dictionary.b_enc().clone(),
            "b_dec" => dictionary.b_dec().clone(),
            _ => return Err(Failed::value(format!("a dictionary has no parameter {name:?}"))),
        };
        Ok(Array::copy_of(&found)?)
    }

    #[allow(clippy::unused_self)] // Python calls it on an object
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a dictionary cannot be pickled; load it by name in the process that needs it",
        ))
    }
}

/// SAELens' name of a normalization.
fn normalization(of: Normalization) -> &'static str {
    match of {
        Normalization::LayerNorm => "layer_norm",
        Normalization::ConstantNorm => "constant_norm_rescale",
        _ => "none",
    }
}

/// A shape with another last dimension.
fn with_last(dims: &[usize], last: usize) -> Vec<usize> {
    let rows = dims.split_last().map_or(&[][..], |(_, rows)| rows);
    rows.iter().copied().chain([last]).collect()
}
