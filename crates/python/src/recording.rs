//! Work that writes folders: values recorded into stores, and dictionaries trained.

use crate::changes::InterventionTexts;
use crate::error::{Failed, from_json};
use crate::files::Reported;
use crate::guard::{Raised, compute};
use crate::model::Model;
use crate::observer::PyObserver;
use anyhow::bail;
use gpt2_engine::interventions::Prepared;
use gpt2_engine::studies::Run;
use gpt2_engine::studies::learn::record::{self, Documents, Recording};
use gpt2_engine::studies::learn::train_features::{FeatureTraining, Options, TrainingRun, TrainingValues};
use gpt2_engine::{Alone, Group, Spelling};
use gpt2_loader::DictionaryCheckpoint;
use pyo3::prelude::*;
use std::sync::Arc;

/// The points to record, and their source.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RecordRequest {
    /// The options as a JSON object; those that it lacks have their defaults.
    options: String,
    /// Texts, instead of the options' corpus.
    texts: Option<Vec<String>>,
    changes: InterventionTexts,
    /// Called with the steps' name, how many are done, and how many there are.
    progress: Option<Py<PyAny>>,
}

/// A dictionary to train.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TrainFeaturesRequest {
    /// The options as a JSON object; those that it lacks have their defaults.
    options: String,
    /// Texts, instead of those that the options' source names.
    texts: Option<Vec<String>>,
    seed: u64,
    /// Called with the steps' name, how many are done, and how many there are.
    progress: Option<Py<PyAny>>,
}

#[pymethods]
impl Model {
    /// Records values into a store.
    fn record(&self, py: Python<'_>, request: RecordRequest) -> PyResult<Reported> {
        let raised = Arc::new(Raised::default());
        let RecordRequest { options, texts, changes, progress } = request;
        let observer = PyObserver::new(&raised, progress);
        let report = compute(py, &raised, || {
            let options: record::Options = from_json(&options)?;
            let documents = match texts {
                Some(texts) => Documents::of(texts),
                None => options.documents(Spelling::Keywords, &observer)?,
            };
            options.check_out(Spelling::Keywords)?;
            self.loaded.check_folder(&options.out)?;
            let interventions = Prepared::new(changes.options()?, &self.loaded, &observer)?;
            let run = Run::new(&interventions, &observer);
            let report = Recording::begin(&options, &run, &Alone)?.run(Some(documents))?;
            Ok::<_, Failed>(serde_json::to_string(&report).map_err(anyhow::Error::from)?)
        })?;
        Ok((report, observer.into_notes()))
    }
}

/// Trains a dictionary on a store, or on a text that a model reads: its report as JSON, the number of steps that were planned, and notes.
#[pyfunction]
pub(crate) fn train_features(
    py: Python<'_>,
    model: Option<Bound<'_, Model>>,
    request: TrainFeaturesRequest,
) -> PyResult<(String, usize, Vec<String>)> {
    let model = model.map(|model| Arc::clone(&model.get().loaded));
    let raised = Arc::new(Raised::default());
    let TrainFeaturesRequest { options, texts, seed, progress } = request;
    let observer = PyObserver::new(&raised, progress);
    let group: Arc<dyn Group> = Arc::new(Alone);
    let (report, planned) = compute(py, &raised, || {
        let options: Options = from_json(&options)?;
        let run = TrainingRun { group: &group, seed, spelling: Spelling::Keywords, observer: &observer };
        check_outputs(&options)?;
        let values = if let Some(model) = &model {
            model.check_folder(&options.out)?;
            let documents = match texts {
                Some(texts) => Documents::of(texts),
                None => options.documents(run.spelling, &observer)?,
            };
            TrainingValues::live(&options, model, Some(documents), &run)?
        } else {
            TrainingValues::recorded(&options, None, run.spelling)?
        };
        let report = FeatureTraining::begin(&options, values, run)?.resume()?.run()?;
        let text = serde_json::to_string(&report).map_err(anyhow::Error::from)?;
        Ok::<_, Failed>((text, report.planned))
    })?;
    Ok((report, planned, observer.into_notes()))
}

/// Refuses to replace a dictionary or a stopped run without leave, and a folder that the run reads.
fn check_outputs(options: &Options) -> anyhow::Result<()> {
    options.check(Spelling::Keywords)?;
    options.check_state(Spelling::Keywords)?;
    let out = options.out.display();
    if options.out.exists() && !options.out.is_dir() {
        bail!("out {out}: is a file; name a folder, which may be new");
    }
    let place = std::fs::canonicalize(&options.out);
    if let (Ok(place), Ok(source)) = (place, std::fs::canonicalize(&options.source))
        && place == source
    {
        bail!("out {out}: is the folder that is learned from; choose another");
    }
    let there = |path: &std::path::PathBuf| path.metadata().is_ok_and(|file| file.len() > 0);
    let replaces = options.overwrite || options.resume;
    match DictionaryCheckpoint::paths_in(&options.out).into_iter().find(there) {
        Some(path) if !replaces => {
            bail!(
                "{}: is there already; choose another folder, or replace it with overwrite=True",
                path.display()
            )
        }
        _ => Ok(()),
    }
}
