//! Checkpoints by their names: looked into, quantized, merged with adapters, brought from other programs, and run against plain operations.

use crate::error::{Failed, from_json};
use crate::files::{Reported, gguf_type};
use crate::guard::{Raised, compute};
use crate::load::LoadRequest;
use crate::observer::PyObserver;
use gpt2_engine::open::checkpoint;
use gpt2_engine::studies::build::verify::verify;
use gpt2_engine::studies::checkpoints::NewModel;
use gpt2_engine::studies::checkpoints::import;
use gpt2_engine::studies::checkpoints::inspect;
use gpt2_engine::studies::checkpoints::merge;
use gpt2_engine::studies::checkpoints::quantize;
use gpt2_engine::{DeviceChoice, ModelOptions};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// Does work with a model by its name, which gives the report as JSON; returns notes, too.
fn reported(
    py: Python<'_>,
    mut named: LoadRequest,
    work: impl FnOnce(&ModelOptions, &PyObserver) -> anyhow::Result<String> + Send,
) -> PyResult<Reported> {
    let raised = Arc::new(Raised::default());
    let observer = named.observer(&raised);
    let report = compute(py, &raised, || Ok::<_, Failed>(work(&named.options()?, &observer)?))?;
    Ok((report, observer.into_notes()))
}

/// Looks into a model's checkpoint or an adapter.
#[pyfunction]
pub(crate) fn inspect_named(py: Python<'_>, name: Option<String>, named: LoadRequest) -> PyResult<Reported> {
    reported(py, named, |options, observer| {
        Ok(serde_json::to_string(&inspect::inspect(name.as_deref(), options, observer)?)?)
    })
}

/// The hook points of a model, whose files need not be here whole.
#[pyfunction]
pub(crate) fn inspect_points(py: Python<'_>, name: Option<String>, named: LoadRequest) -> PyResult<Reported> {
    reported(py, named, |options, observer| {
        Ok(serde_json::to_string(&inspect::points(name.as_deref(), options, observer)?)?)
    })
}

/// Writes a model as a GGUF file.
#[pyfunction]
pub(crate) fn quantize_named(
    py: Python<'_>,
    named: LoadRequest,
    out: PathBuf,
    to: &str,
    overwrite: bool,
) -> PyResult<Reported> {
    let kind = gguf_type(to).map_err(Failed::from)?;
    reported(py, named, |options, observer| {
        quantize::check_name(&out, options.spelling)?;
        let files = options.files(observer)?;
        let report = quantize::quantize(&files, kind, &out, overwrite, options.spelling, observer)?;
        Ok(serde_json::to_string(&report)?)
    })
}

/// Checks how this build computes attention and a model's logits on a device.
#[pyfunction]
pub(crate) fn verify_named(
    py: Python<'_>,
    named: LoadRequest,
    device: &str,
    seed: u64,
) -> PyResult<Reported> {
    let choice: DeviceChoice =
        device.parse().map_err(|expected| Failed::value(format!("device {device:?}: {expected}")))?;
    reported(py, named, |options, observer| {
        let device = choice.open(false, options.spelling, observer)?;
        let checkpoint = checkpoint(&options.files(observer)?, observer)?;
        Ok(serde_json::to_string(&verify(&checkpoint, device, seed, observer)?)?)
    })
}

/// Adds adapters to a model's weights, and writes it.
#[pyfunction]
pub(crate) fn merge_named(py: Python<'_>, named: LoadRequest, to: &str) -> PyResult<Reported> {
    let to = new_model(to)?;
    reported(py, named, |options, observer| {
        Ok(serde_json::to_string(&merge::merge(options, &to, observer)?)?)
    })
}

/// Writes a model that another program saved.
#[pyfunction]
pub(crate) fn import_named(py: Python<'_>, from: &str, named: LoadRequest, to: &str) -> PyResult<Reported> {
    let to = new_model(to)?;
    reported(py, named, |options, observer| {
        Ok(serde_json::to_string(&import::import(from, options, &to, observer)?)?)
    })
}

/// The folder to write to, from a JSON object.
fn new_model(to: &str) -> Result<NewModel, Failed> {
    Ok(from_json(to)?)
}
