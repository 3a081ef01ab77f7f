//! Models written to files, compared, and scored on a corpus.

use crate::changes::InterventionTexts;
use crate::dictionary::Dictionary;
use crate::error::{Failed, from_json};
use crate::guard::{Raised, compute};
use crate::loaded::Loaded;
use crate::model::Model;
use crate::observer::PyObserver;
use anyhow::{Context, anyhow, bail};
use candle_core::DType;
use gpt2_engine::interventions::{DictionaryChoice, Prepared};
use gpt2_engine::studies::Run;
use gpt2_engine::studies::checkpoints::quantize;
use gpt2_engine::studies::predict::compare;
use gpt2_engine::studies::predict::score;
use gpt2_engine::{ReadFiles, Spelling};
use gpt2_files::atomic::stage_bytes;
use gpt2_files::is_same_file;
use gpt2_loader::{AdapterConfig, FILE_NAMES, GgufType, SaveOptions, Tokenizer, save, save_adapter};
use pyo3::exceptions::PyFileExistsError;
use pyo3::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Loaded {
    /// Refuses to write `path` if it is there, unless the caller allows it, and always if the model reads it.
    fn check_output(&self, path: &Path, overwrite: bool) -> anyhow::Result<()> {
        if self.read.files.iter().any(|(_, input)| is_same_file(input, path)) {
            bail!("{}: is a file of the model that is loaded; choose another name", path.display());
        }
        if path.symlink_metadata().is_ok() && !overwrite {
            bail!(
                "{}: is there already; choose another name, or replace it with overwrite=True",
                path.display()
            );
        }
        Ok(())
    }

    /// Refuses a folder whose files the model reads, and one in the Hub's cache.
    pub(crate) fn check_folder(&self, folder: &Path) -> anyhow::Result<()> {
        if self.hub.caches(folder) {
            bail!("{}: lies in the cache of the Hub's models; choose another folder", folder.display());
        }
        if self.read.models.iter().any(|model| is_same_file(model, folder)) {
            bail!("{}: holds the model that is loaded; choose another folder", folder.display());
        }
        Ok(())
    }
}

#[pymethods]
impl Model {
    /// Writes the model, with its adapters merged, as transformers does.
    fn save(&self, py: Python<'_>, folder: PathBuf, dtype: Option<&str>, overwrite: bool) -> PyResult<()> {
        let dtype = match dtype {
            None => None,
            Some("f32") => Some(DType::F32),
            Some("f16") => Some(DType::F16),
            Some("bf16") => Some(DType::BF16),
            Some(other) => {
                return Err(Failed::value(format!("dtype {other:?}: expected f32, f16 or bf16")).into());
            }
        };
        compute(py, &Arc::default(), || {
            let of = &self.loaded;
            of.refuse_processed("saved")?;
            if let Some(format) = of.formats.first() {
                return Err(Failed::value(format!(
                    "{}: its weights are quantized ({}); load the original to save it",
                    of.name,
                    format.as_str()
                )));
            }
            of.check_folder(&folder)?;
            let others = FILE_NAMES
                .iter()
                .map(|name| folder.join(name))
                .filter(|path| path.symlink_metadata().is_ok());
            let others: Vec<PathBuf> = others.collect();
            for path in &others {
                of.check_output(path, overwrite)?;
            }
            let model = of.model.clone().merged()?;
            // GPT-2's own vocabulary, which is in the package, has no file to save.
            let tokenizer = of.opened.tokenizer().ok().filter(|tokenizer| tokenizer.to_json().is_ok());
            save(&folder, &model, tokenizer, SaveOptions::default().with_dtype(dtype))?;
            // What is left of another model would become part of this one.
            let own = |path: &Path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name == "config.json"
                    || name == "model.safetensors"
                    || (name == "tokenizer.json" && tokenizer.is_some())
                    || (name == "tokenizer_config.json" && tokenizer.is_some_and(Tokenizer::has_settings))
            };
            for path in others.iter().filter(|path| !own(path)) {
                std::fs::remove_file(path).with_context(|| path.display().to_string())?;
            }
            Ok(())
        })
    }

    /// Writes the adapter that was trained on the model, as PEFT does.
    fn save_adapter(
        &self,
        py: Python<'_>,
        folder: PathBuf,
        base: Option<String>,
        overwrite: bool,
    ) -> PyResult<()> {
        compute(py, &Arc::default(), || {
            let Some((adapter, options)) = &self.loaded.trained else {
                return Err(Failed::value("no adapter was trained on this model; train one with lora="));
            };
            for name in ["adapter_config.json", "adapter_model.safetensors"] {
                self.loaded.check_output(&folder.join(name), overwrite)?;
            }
            let config = self.config_of();
            let fan_in_fan_out = config.weight_layout() == gpt2_model::linear::WeightLayout::InOut;
            Ok(save_adapter(&folder, adapter, &AdapterConfig::new(options, base, fan_in_fan_out), config)?)
        })
    }

    /// Writes the model as a GGUF file. Returns the report as JSON, and notes.
    fn quantize(&self, py: Python<'_>, path: PathBuf, to: &str, overwrite: bool) -> PyResult<Reported> {
        let raised = Arc::new(Raised::default());
        let observer = PyObserver::new(&raised, None);
        let report = compute(py, &raised, || {
            self.loaded.refuse_processed("quantized")?;
            let of = &self.loaded;
            let kind = gguf_type(to)?;
            quantize::check_name(&path, Spelling::Keywords)?;
            let Some(files) = of.files.as_ref().filter(|_| of.adapters.is_empty()) else {
                return Err(Failed::value(
                    "only a model that was loaded without adapters is quantized: save it first, and load that",
                ));
            };
            let report = quantize::quantize(files, kind, &path, overwrite, Spelling::Keywords, &observer)?;
            Ok(serde_json::to_string(&report).map_err(anyhow::Error::from)?)
        })?;
        Ok((report, observer.into_notes()))
    }

    /// The distance of two models' predictions: the report as JSON, and notes.
    fn compare(
        &self,
        py: Python<'_>,
        other: &Bound<'_, Self>,
        text: TextOrIds,
        options: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Reported> {
        let other = Arc::clone(&other.get().loaded);
        let raised = Arc::new(Raised::default());
        let observer = PyObserver::new(&raised, progress);
        let report = compute(py, &raised, || {
            let options: compare::Options = from_json(options)?;
            let text = text.into();
            let pair = [&self.loaded.opened, &other.opened];
            let report = options.compare(pair, &text, "the text", &observer)?;
            Ok::<_, Failed>(serde_json::to_string(&report).map_err(anyhow::Error::from)?)
        })?;
        Ok((report, observer.into_notes()))
    }

    /// Scores a corpus: the report as JSON, and notes.
    fn score_corpus(
        &self,
        py: Python<'_>,
        options: &str,
        changes: InterventionTexts,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Reported> {
        let raised = Arc::new(Raised::default());
        let observer = PyObserver::new(&raised, progress);
        let report = compute(py, &raised, || {
            let options: score::Options = from_json(options)?;
            let interventions = Prepared::new(changes.options()?, &self.loaded, &observer)?;
            let report = options.score(&Run::new(&interventions, &observer))?;
            Ok::<_, Failed>(serde_json::to_string(&report).map_err(anyhow::Error::from)?)
        })?;
        Ok((report, observer.into_notes()))
    }
}

/// A text, or its ids.
#[derive(Debug, FromPyObject)]
pub(crate) enum TextOrIds {
    Text(String),
    Ids(Vec<u32>),
}

impl From<TextOrIds> for gpt2_engine::texts::Content {
    fn from(content: TextOrIds) -> Self {
        match content {
            TextOrIds::Text(text) => Self::Text(text),
            TextOrIds::Ids(ids) => Self::Ids(ids),
        }
    }
}

/// The files that a run read, each with what it is, and the folders of its models.
type InputFiles = (Vec<(String, PathBuf)>, Vec<PathBuf>);

#[pymethods]
impl Model {
    /// The files that a run with these dictionaries and files of explanations reads, for [`write_file`].
    fn inputs(
        &self,
        dictionaries: Vec<Py<Dictionary>>,
        names: Vec<String>,
        explanations: Vec<PathBuf>,
    ) -> InputFiles {
        let mut inputs = self.loaded.read.clone();
        let opened =
            dictionaries.into_iter().map(|one| DictionaryChoice::Opened(Arc::clone(&one.get().opened)));
        for path in opened.chain(names.into_iter().map(DictionaryChoice::Named)).flat_map(|one| one.paths()) {
            inputs.file("a file of a dictionary", path);
        }
        for path in explanations {
            inputs.file("a file of explanations", path);
        }
        let inputs = inputs.absolute();
        (inputs.files, inputs.models)
    }
}

/// Writes a file that appears whole or not at all, and is none of the inputs.
#[pyfunction]
#[pyo3(signature = (path, content, overwrite, inputs=None))]
pub(crate) fn write_file(
    path: PathBuf,
    content: &[u8],
    overwrite: bool,
    inputs: Option<InputFiles>,
) -> PyResult<()> {
    if !overwrite && path.symlink_metadata().is_ok() {
        let there = "is there already; choose another name, or replace it with overwrite=True";
        return Err(PyFileExistsError::new_err(format!("{}: {there}", path.display())));
    }
    let write = || {
        if let Some((files, models)) = inputs {
            let inputs = ReadFiles { files, models, cache: None };
            inputs.spare(&path.display().to_string(), &path)?;
        }
        let staged = stage_bytes(&path, content)?;
        let written = if overwrite { staged.commit() } else { staged.commit_new() };
        anyhow::Ok(written?)
    };
    Ok(write().map_err(Failed::from)?)
}

/// The page of a report of an attribution graph.
#[pyfunction]
pub(crate) fn graph_page(report: &str) -> PyResult<Vec<u8>> {
    let page = || gpt2_view::graph_page(&serde_json::from_str::<Value>(report)?);
    Ok(page().map_err(|error: serde_json::Error| Failed::from(anyhow::Error::from(error)))?)
}

/// A report as JSON, and notes for the reader.
pub(crate) type Reported = (String, Vec<String>);

/// The type of a GGUF file's weights, by its name.
pub(crate) fn gguf_type(to: &str) -> anyhow::Result<GgufType> {
    to.parse().map_err(|_| {
        let names: Vec<_> = GgufType::ALL.iter().map(|kind| kind.as_str()).collect();
        anyhow!("to {to:?}: expected one of {}", names.join(", "))
    })
}
