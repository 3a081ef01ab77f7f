//! The model as Python holds it.

use crate::array::Array;
use crate::error::Failed;
use crate::guard::{Raised, compute};
use crate::load::LoadRequest;
use crate::loaded::Loaded;
use gpt2_engine::Opened;
use gpt2_engine::open::device_name;
use gpt2_loader::{GenerationConfig, Tokenizer};
use gpt2_model::Config;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde_json::json;
use std::sync::Arc;

/// A model with its tokenizer. Nothing changes it, so any number of threads may use it at once.
#[pyclass(frozen, module = "gpt2_candle._native")]
pub(crate) struct Model {
    pub(crate) loaded: Arc<Loaded>,
}

impl Model {
    pub(crate) fn config_of(&self) -> &Config {
        self.loaded.model.config()
    }
}

#[pymethods]
impl Model {
    #[staticmethod]
    fn load(py: Python<'_>, request: LoadRequest) -> PyResult<Self> {
        let raised = Arc::new(Raised::default());
        let loaded = compute(py, &raised, || request.load(&raised))?;
        Ok(Self { loaded: Arc::new(loaded) })
    }

    /// The model's facts as JSON.
    fn facts(&self) -> Result<String, Failed> {
        let Opened { name, model, formats, adapters, files, .. } = &self.loaded.opened;
        let tokenizer = self.loaded.opened.tokenizer().ok();
        let adapters: Vec<_> = adapters.iter().map(|adapter| &adapter.name).collect();
        let config = serde_json::to_value(model.config()).map_err(anyhow::Error::from)?;
        let formats: Vec<_> = formats.iter().map(|format| format.as_str()).collect();
        let generation = files.as_ref().map(GenerationConfig::open).transpose()?.flatten();
        let facts = json!({
            "name": name, "config": config, "dtype": model.dtype().as_str(), "quantized": formats, "adapters": adapters,
            "commit": self.loaded.commit(), "notes": self.loaded.notes, "generation_note": generation.and_then(|found| found.note()),
            "processed": self.loaded.opened.processed, "prepend_bos": self.loaded.opened.first_token.is_some(),
            "has_tokenizer": tokenizer.is_some(),
            "device": device_name(model.device()),
            "vocabulary": tokenizer.map(Tokenizer::vocab_size),
            "end_of_text": tokenizer.and_then(Tokenizer::end_of_text),
        });
        Ok(facts.to_string())
    }

    /// The ids of a text, and a note of the characters that the vocabulary cannot spell.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<(Vec<u32>, Option<String>)> {
        compute(py, &Arc::default(), || {
            let encoded = gpt2_engine::texts::encode(self.loaded.tokenizer()?, text, "the text")?;
            Ok((encoded.ids, encoded.note))
        })
    }

    /// The tokens of a text that fits the model, and a note. `prepend_bos` says whether the model's first token stands before it, or else what the
    /// model was loaded with.
    fn encode_prompt(
        &self,
        py: Python<'_>,
        text: &str,
        prepend_bos: Option<bool>,
    ) -> PyResult<(Vec<u32>, Option<String>)> {
        compute(py, &Arc::default(), || {
            let of = &self.loaded.opened;
            let first = match prepend_bos {
                Some(true) => Some(of.bos()?),
                Some(false) => None,
                None => of.first_token,
            };
            let encoded = of.encode_after(first.filter(|_| !text.is_empty()), text, "the text")?;
            Ok((encoded.ids, encoded.note))
        })
    }

    /// The place of each token of a text in it, in characters.
    fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, Failed> {
        Ok(self.loaded.tokenizer()?.offsets(text)?)
    }

    fn decode(&self, ids: Vec<u32>) -> Result<String, Failed> {
        Ok(self.loaded.tokenizer()?.decode(&ids))
    }

    /// The text of each token; its number if there is no tokenizer.
    fn tokens(&self, ids: Vec<u32>) -> Vec<String> {
        self.loaded.labels(&ids)
    }

    /// The tokens for a reader: a part of a character as its bytes.
    fn spelled(&self, ids: Vec<u32>) -> Vec<String> {
        self.loaded.shown(&ids)
    }

    /// Names and shapes of all parameters.
    fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        self.loaded.model.named_parameters().into_iter().map(|(name, value)| (name, value.shape())).collect()
    }

    /// A copy of a parameter, in f32 if it is quantized.
    fn parameter(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        compute(py, &Arc::default(), || {
            let all = self.loaded.model.named_parameters();
            let Some((_, values)) = all.into_iter().find(|(known, _)| known == name) else {
                return Err(Failed::value(format!(
                    "there is no parameter {name:?}; parameters() lists them"
                )));
            };
            Ok(Array::copy_of(&values.tensor()?)?)
        })
    }

    /// A weight of all layers and heads, by TransformerLens' name.
    fn stacked_weight(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        compute(py, &Arc::default(), || Ok(Array::copy_of(&self.loaded.model.stacked_weight(name)?)?))
    }

    #[allow(clippy::unused_self)] // Python calls it on an object
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a model cannot be pickled: its weights are mapped from their file, and a copy in each process would be as large; load it \
             by name in the process that needs it",
        ))
    }
}
