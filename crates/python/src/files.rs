//! Models written to files, and compared.

use crate::error::Failed;
use crate::guard::{Raised, compute};
use crate::loaded::Loaded;
use crate::model::Model;
use anyhow::{Context, bail};
use candle_core::{DType, Tensor};
use gpt2_files::atomic;
use gpt2_loader::{
    AdapterConfig, Checkpoint, FILE_NAMES, GgufType, SaveOptions, Tokenizer, WeightFiles, save, save_adapter,
    save_gguf,
};
use gpt2_model::ForwardArgs;
use gpt2_model::analysis::Comparison;
use gpt2_model::finite::all_finite;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Loaded {
    /// Refuses to write `path` if it is there, unless the caller allows it, and always if the model reads it.
    fn check_output(&self, path: &Path, overwrite: bool) -> anyhow::Result<()> {
        let place = std::fs::canonicalize(path);
        if let (Ok(place), Some(files)) = (&place, &self.files) {
            for input in files.paths()? {
                if std::fs::canonicalize(&input).is_ok_and(|input| input == *place) {
                    bail!("{}: is a file of the model that is loaded; choose another name", path.display());
                }
            }
        }
        if path.symlink_metadata().is_ok() && !overwrite {
            bail!(
                "{}: is there already; choose another name, or replace it with overwrite=True",
                path.display()
            );
        }
        Ok(())
    }

    /// Refuses a folder whose files the model reads.
    pub(crate) fn check_folder(&self, folder: &Path) -> anyhow::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        // A GGUF file stands alone; other files in a folder belong together.
        if matches!(
            files.weight_files,
            WeightFiles::Gguf(..) | WeightFiles::GgufParts(_) | WeightFiles::LlmC(..)
        ) {
            return Ok(());
        }
        let Ok(place) = std::fs::canonicalize(folder) else { return Ok(()) };
        for input in files.paths()? {
            if std::fs::canonicalize(&input).is_ok_and(|input| input.parent() == Some(&place)) {
                bail!("{}: holds the model that is loaded; choose another folder", folder.display());
            }
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

    /// Writes the model as a GGUF file.
    fn quantize(&self, py: Python<'_>, path: PathBuf, to: &str, overwrite: bool) -> PyResult<()> {
        let raised = Arc::new(Raised::default());
        compute(py, &raised, || {
            let kind: GgufType = to.parse().map_err(|_| {
                let names: Vec<_> = GgufType::ALL.iter().map(|kind| kind.as_str()).collect();
                Failed::value(format!("to {to:?}: expected one of {}", names.join(", ")))
            })?;
            if !path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
                return Err(Failed::value(format!("{}: expected a name that ends in .gguf", path.display())));
            }
            let of = &self.loaded;
            let Some(files) = of.files.as_ref().filter(|_| of.adapters.is_empty()) else {
                return Err(Failed::value(
                    "only a model that was loaded without adapters is quantized: save it first, and load that",
                ));
            };
            of.check_output(&path, overwrite)?;
            if let Some(folder) =
                path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
            {
                let none = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(anyhow::Error::from(none)
                    .context(format!("there is no folder {}", folder.display()))
                    .into());
            }
            let checkpoint = Checkpoint::open(files)?;
            if let Some(format) = checkpoint.formats().first() {
                return Err(Failed::value(format!(
                    "{}: is quantized already ({format}), and quantizing it again would lose more precision; start from the original",
                    of.name
                )));
            }
            let tokenizer = of.opened.tokenizer().map_err(|error| {
                Failed::value(format!(
                    "{}: {error}; a GGUF file holds the tokenizer: put its tokenizer.json, or vocab.json with merges.txt, into the \
                     folder",
                    of.name
                ))
            })?;
            let written = atomic::write(&path, |temporary| {
                save_gguf(temporary, &checkpoint, tokenizer, kind, &mut |_, _, _| {})
                    .map_err(std::io::Error::other)
            });
            Ok(written.with_context(|| path.display().to_string())?)
        })
    }

    /// How far the predictions of two models lie apart: perplexities, mean KL divergence, agreement, largest difference of logits.
    fn compare(
        &self,
        py: Python<'_>,
        other: &Bound<'_, Self>,
        text: Vec<u32>,
        window: Option<usize>,
    ) -> PyResult<Compared> {
        let other = std::sync::Arc::clone(&other.get().loaded);
        let raised = Arc::new(Raised::default());
        compute(py, &raised, || {
            let pair = [&self.loaded.model, &other.model];
            let [a, b] = pair.map(gpt2_model::Gpt2LMHeadModel::config);
            if a.vocab_size != b.vocab_size {
                return Err(Failed::value(format!(
                    "the models have vocabularies of {} and {} tokens; compare two models with one vocabulary",
                    a.vocab_size, b.vocab_size
                )));
            }
            let context = a.n_positions.min(b.n_positions);
            let window = window.unwrap_or(context);
            if text.len() < 2 || !(2..=context).contains(&window) {
                return Err(Failed::value(format!(
                    "a text of {} tokens in windows of {window}: expected at least 2 tokens, and windows of 2 to {context}",
                    text.len()
                )));
            }
            let mut comparison = Comparison::default();
            for part in text.chunks(window).filter(|part| part.len() > 1) {
                raised.check_signals()?;
                let mut logits = vec![];
                for model in pair {
                    let ids = model.ids(&part[..part.len() - 1])?; // (1, T)
                    let found = model.forward(&ids, ForwardArgs::default())?.logits.squeeze(0)?; // (T, V)
                    if !all_finite(&found)? {
                        return Err(Failed::value("the results are not finite numbers"));
                    }
                    logits.push(found.to_device(&candle_core::Device::Cpu)?);
                }
                let targets = Tensor::new(&part[1..], &candle_core::Device::Cpu)?;
                comparison.add([&logits[0], &logits[1]], &targets)?;
            }
            let [mine, theirs] = comparison.perplexity();
            Ok((
                comparison.tokens,
                mine,
                theirs,
                comparison.mean_divergence(),
                comparison.agreement(),
                comparison.largest_difference,
            ))
        })
    }
}

/// The number of tokens, both perplexities, the mean divergence, the agreement, and the largest difference of logits.
type Compared = (usize, f64, f64, f64, f64, f64);
