//! Adapters added to a model's weights. It writes files and runs no model, so it is functions of its own instead of a
//! [`Study`](crate::studies::study::Study).

use super::new_model::NewModel;
use crate::observer::Observer;
use crate::open::{FoundModel, ModelOptions, UsedAdapter, checkpoint, open_tokenizer};
use crate::spelling::Spelling;
use anyhow::{Context, anyhow, bail};
use candle_core::{DType, Device};
use gpt2_loader::{LoadError, SaveOptions, Tokenizer, TokenizerFiles, check_savable, save, stale_settings};
use gpt2_model::Gpt2LMHeadModel;
use serde::Serialize;
use std::path::PathBuf;

/// The model that was written.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The name of the model that the adapters were added to.
    pub model: String,
    /// The adapters, with their weights.
    pub adapters: Vec<UsedAdapter>,
    /// The folder that it was written to.
    pub out: PathBuf,
    /// The number of its parameters.
    pub parameters: u64,
}

/// A model with its adapters in its weights, which is about to be written.
#[derive(Debug)]
pub struct Merged {
    name: String,
    model: Gpt2LMHeadModel,
    tokenizer: Option<Tokenizer>,
    adapters: Vec<UsedAdapter>,
    spelling: Spelling,
}

impl Merged {
    /// Reads the model and adds the adapters to it.
    ///
    /// # Errors
    /// When its weights are quantized or damaged, an adapter does not fit it, or the folder holds something that would change it.
    pub fn new(
        found: FoundModel,
        options: &ModelOptions,
        to: &NewModel,
        observer: &dyn Observer,
    ) -> anyhow::Result<Self> {
        let FoundModel { files, adapters } = found;
        let spelling = options.spelling;
        if adapters.is_empty() {
            bail!("{}: name at least one, which is added to the model's weights", spelling.option("adapter"));
        }
        to.spare(&files, &adapters, &options.hub, spelling)?;
        let checkpoint = checkpoint(&files, observer)?;
        let name = checkpoint.name().to_string();
        if let Some(format) = checkpoint.formats().first() {
            bail!(
                "{name}: its weights are quantized ({format}), and adding to them would round them a second time; merge into the \
                 original, then quantize"
            );
        }
        let model = checkpoint.load_model(DType::F32, &Device::Cpu)?;
        // Before the adapters, so that what is not finite after them is theirs.
        check_savable(&model, None).with_context(|| format!("{name}: its weights are damaged"))?;
        let named = to.named(spelling);
        if to.keeps_a_tokenizer(&files) {
            bail!(
                "{named}: there is a tokenizer.json, and {name} has none to replace it; choose another folder"
            );
        }
        let tokenizer = match &files.tokenizer {
            TokenizerFiles::Absent => None,
            _ => Some(open_tokenizer(&files, checkpoint.config().vocab_size, observer)?),
        };
        // What is said beside another model would become part of this one.
        let writes = to.overwrite && tokenizer.as_ref().is_some_and(Tokenizer::has_settings);
        if let Some(name) = stale_settings(&to.out, writes) {
            bail!(
                "{named}: holds {name}, which would change the merged model; remove it, or choose another folder"
            );
        }
        let (model, adapters) = options.with_adapters(model, &adapters, observer)?;
        Ok(Self { name, model: model.merged()?, tokenizer, adapters, spelling })
    }

    /// Writes the model to a folder that is there.
    ///
    /// # Errors
    /// When a number does not fit its dtype, or the folder cannot be written to.
    pub fn write(self, to: &NewModel) -> anyhow::Result<Report> {
        let precision = SaveOptions::default().with_dtype(to.save_dtype);
        save(&to.out, &self.model, self.tokenizer.as_ref(), precision)
            .map_err(|error| worded(error, self.spelling))?;
        let parameters = self.model.checkpoint_config().parameter_count()?;
        Ok(Report { model: self.name, adapters: self.adapters, out: to.out.clone(), parameters })
    }
}

/// Adds the adapters in `options` to their model, and writes it.
///
/// # Errors
/// See [`ModelOptions::find`], [`Merged::new`] and [`Merged::write`], and when the folder holds a model or an adapter already.
pub fn merge(options: &ModelOptions, to: &NewModel, observer: &dyn Observer) -> anyhow::Result<Report> {
    to.refuse_adapter(options.spelling)?;
    let found = options.find(observer)?;
    to.spare(&found.files, &found.adapters, &options.hub, options.spelling)?;
    to.files(options.spelling)?;
    let merged = Merged::new(found, options, to, observer)?;
    let _made = to.make()?;
    merged.write(to)
}

/// The error, with the option that it is about.
fn worded(error: LoadError, spelling: Spelling) -> anyhow::Error {
    match error {
        LoadError::NotSavable { parameter, value, .. } if !value.is_finite() => anyhow!(
            "{}: {parameter} becomes {value}: the adapters, times their weights, are too large for this model",
            spelling.option("adapter")
        ),
        LoadError::NotSavable { .. } => anyhow::Error::new(error).context(spelling.option("save-dtype")),
        other => other.into(),
    }
}
