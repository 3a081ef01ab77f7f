//! A model that another program saved, written as a folder that transformers loads. It writes files and runs no model, so it is
//! functions of its own instead of a [`Study`](crate::studies::study::Study).

use super::new_model::NewModel;
use crate::hub::HubOptions;
use crate::observer::{Observer, steps};
use crate::open::ModelOptions;
use crate::spelling::Spelling;
use anyhow::bail;
use gpt2_loader::{Files, Imported, Source, import as import_files, stale_settings};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The model that was written.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The file, folder or name that it was read from.
    pub from: String,
    /// The folder that it was written to.
    pub out: PathBuf,
    /// The number of its parameters.
    pub parameters: u64,
    /// Whether there was a tokenizer.
    pub tokenizer: bool,
    /// Everything that was read otherwise than it is stored, or left out.
    pub notes: Vec<String>,
    /// The model's name.
    #[serde(skip)]
    pub name: String,
}

/// The files of a model by a path, or else by the name in `options`.
///
/// # Errors
/// When there is no such model, or the Hub fails.
pub fn files(from: &str, options: &ModelOptions, observer: &dyn Observer) -> anyhow::Result<Files> {
    let path = Path::new(from);
    if path.is_file() {
        return Ok(Source::File(path.to_path_buf()).open()?);
    }
    ModelOptions { model: Some(from.to_owned()), ..options.clone() }.files(observer)
}

/// Refuses a folder in which the model would not be the one that was read.
///
/// # Errors
/// When the folder is the model's own, lies in the Hub's cache, or holds a tokenizer that would stay.
pub fn check(files: &Files, to: &NewModel, hub: &HubOptions, spelling: Spelling) -> anyhow::Result<()> {
    to.spare(files, &[], hub, spelling)?;
    if to.keeps_a_tokenizer(files) {
        bail!(
            "{}: there is a tokenizer.json, and {} has none of its own to replace it; choose another folder",
            to.named(spelling),
            files.name
        );
    }
    if let Some(name) = stale_settings(&to.out, false) {
        bail!(
            "{}: holds {name}, which would change the model; remove it, or choose another folder",
            to.named(spelling)
        );
    }
    Ok(())
}

/// Writes the model of these files.
///
/// # Errors
/// When the files do not fit one another, a number is not finite, or the folder cannot be written to.
pub fn write(from: &str, files: &Files, to: &NewModel, observer: &dyn Observer) -> anyhow::Result<Report> {
    let mut progress = steps(observer, "tensors read");
    let done = import_files(files, &to.out, to.save_dtype, &mut progress)?;
    let Imported { parameters, tokenizer, notes, .. } = done;
    for line in &notes {
        observer.note(line);
    }
    let from = from.to_owned();
    Ok(Report { from, out: to.out.clone(), parameters, tokenizer, notes, name: files.name.clone() })
}

/// Reads a model by a path or a name, and writes it.
///
/// # Errors
/// See [`files`], [`check`] and [`write()`], and when the folder holds a model or an adapter already.
pub fn import(
    from: &str,
    options: &ModelOptions,
    to: &NewModel,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    to.refuse_adapter(options.spelling)?;
    let files = files(from, options, observer)?;
    check(&files, to, &options.hub, options.spelling)?;
    to.files(options.spelling)?;
    let _made = to.make()?;
    write(from, &files, to, observer)
}
