//! The content of a checkpoint, and whether it is sound; of an adapter, what it changes. It runs no model, so it is functions of its
//! own instead of a [`Study`](crate::studies::study::Study).

mod adapter;
mod model;
mod points;

pub use adapter::{AdapterReport, AdapterRow};
pub use model::{EndTokens, FindingRow, MemoryByDtype, ModelReport, TensorRow, Verdict};
pub use points::{PointRow, PointsReport};

use crate::names::NamedAdapter;
use crate::observer::Observer;
use crate::open::ModelOptions;
use anyhow::bail;
use gpt2_loader::{AdapterFiles, Checkpoint, Files};
use serde::Serialize;

/// A checkpoint or an adapter.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// A model's checkpoint.
    Model(Box<ModelReport>),
    /// An adapter.
    Adapter(Box<AdapterReport>),
}

impl Report {
    /// Whether nothing is wrong with it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        match self {
            Self::Model(model) => model.audit.clean,
            Self::Adapter(adapter) => adapter.fits != Some(false) && adapter.findings.is_empty(),
        }
    }
}

/// Looks into the model that `options` name, or into their adapter, or what `name` stands for: a model, the folder of an adapter, or
/// with an adapter in the options the model to compare it with.
///
/// # Errors
/// When there is no such model or adapter, or a file is damaged so far that it cannot be read.
pub fn inspect(
    name: Option<&str>,
    options: &ModelOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    if let Some(files) = adapter_files(name, options, observer)? {
        // A model to compare it with, only if it was asked for.
        let positional = name.filter(|_| !options.adapters.is_empty());
        let base = options.model.as_deref().or(positional);
        let open = |base: &str| anyhow::Ok(Checkpoint::open(&with_name(base, options).files(observer)?)?);
        let base = base.map(open);
        let report = AdapterReport::new(&files, base.transpose()?.as_ref())?;
        return Ok(Report::Adapter(Box::new(report)));
    }
    let files = headers(name, options, observer)?;
    Ok(Report::Model(Box::new(ModelReport::new(&files, options.spelling, observer)?)))
}

/// The points of a run of the model that `options` or `name` name.
///
/// # Errors
/// When there is no such model, or its config is damaged.
pub fn points(
    name: Option<&str>,
    options: &ModelOptions,
    observer: &dyn Observer,
) -> anyhow::Result<PointsReport> {
    Ok(PointsReport::new(Checkpoint::open(&headers(name, options, observer)?)?.config()))
}

fn with_name(name: &str, options: &ModelOptions) -> ModelOptions {
    ModelOptions { model: Some(name.to_owned()), ..options.clone() }
}

/// The files of a folder; for a model on the Hub, only the headers, unless everything is cached.
fn headers(name: Option<&str>, options: &ModelOptions, observer: &dyn Observer) -> anyhow::Result<Files> {
    let named = name.map(|name| with_name(name, options));
    named.as_ref().unwrap_or(options).files_by(observer, |hub, id, revision| {
        let headers = hub.headers(&id, revision)?;
        if headers.bytes_read > 0 {
            observer.note(&format!("read only the weights' headers, {} bytes", headers.bytes_read));
        }
        Ok(headers.files)
    })
}

/// The adapter to look into, if the options or the name say one.
fn adapter_files(
    name: Option<&str>,
    options: &ModelOptions,
    observer: &dyn Observer,
) -> anyhow::Result<Option<AdapterFiles>> {
    let option = options.spelling.option("adapter");
    match (name, options.adapters.as_slice()) {
        (_, [one]) if (one.weight - 1.0).abs() > 0.0 => {
            bail!("{option}: inspect shows an adapter as it is; leave ={} out", one.weight)
        }
        (_, [one]) => Ok(Some(options.adapter(&one.source, observer)?)),
        (_, [_, second, ..]) => {
            bail!("{option}: inspect shows one at a time, and {} is the second", second.source)
        }
        (Some(name), []) => match NamedAdapter::find(name) {
            Ok(NamedAdapter::Folder(dir)) if AdapterFiles::is_in(&dir) => {
                Ok(Some(AdapterFiles::directory(&dir)?))
            }
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}
