//! The engine's studies under one method: options and reports are JSON, tensors are arrays.

use crate::array::Array;
use crate::changes::InterventionTexts;
use crate::dictionary::Dictionary;
use crate::error::{Failed, from_json};
use crate::guard::{Raised, compute};
use crate::metric::GivenMetric;
use crate::model::Model;
use crate::observer::PyObserver;
use gpt2_engine::interventions::Prepared;
use gpt2_engine::studies::predict::eval::token_likelihoods;
use gpt2_engine::studies::{Entry, Run, STUDIES};
use gpt2_model::analysis::Metric;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A study to run, and what it runs on besides the model.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct StudyRequest {
    name: String,
    /// The options as a JSON object; those that it lacks have their defaults.
    options: String,
    changes: InterventionTexts,
    /// Dictionaries of a study of several.
    dictionaries: Vec<Py<Dictionary>>,
    /// A function of logits that is measured, in place of what the options say.
    metric: Option<Py<PyAny>>,
    seed: u64,
    allow_nonfinite: bool,
    /// Called with the steps' name, how many are done, and how many there are.
    progress: Option<Py<PyAny>>,
}

/// The report as JSON, the tensors by name, and notes for the reader.
type Studied = (String, BTreeMap<String, Array>, Vec<String>);

#[pymethods]
impl Model {
    /// Runs a study of the engine.
    fn study(&self, py: Python<'_>, request: StudyRequest) -> PyResult<Studied> {
        let raised = Arc::new(Raised::default());
        let StudyRequest { name, options, changes, dictionaries, metric, seed, allow_nonfinite, progress } =
            request;
        let dictionaries: Vec<_> = dictionaries.iter().map(|one| Arc::clone(&one.get().opened)).collect();
        let observer = PyObserver::new(&raised, progress);
        let outcome = compute(py, &raised, || {
            let entry = Entry::find(&name)?;
            let interventions = Prepared::new(changes.options()?, &self.loaded, &observer)?;
            let metric = metric.map(|function| {
                let raised = &raised;
                move |pair| {
                    let function = Python::attach(|py| function.clone_ref(py));
                    GivenMetric { function, raised: Arc::clone(raised), pair: Some(pair) }.metric(false)
                }
            });
            let run = Run {
                metric: metric.as_ref().map(|own| own as &(dyn Fn(usize) -> Metric + Sync)),
                dictionaries: &dictionaries,
                seed,
                allow_nonfinite,
                ..Run::new(&interventions, &observer)
            };
            let options = from_json(&options)?;
            let outcome = entry.run(&run, options)?;
            let array = |(name, tensor)| Ok((name, Array::new(&tensor)?));
            let arrays = outcome.tensors.into_iter().map(array).collect::<candle_core::Result<_>>()?;
            Ok::<_, Failed>((outcome.report, arrays))
        })?;
        let (report, arrays) = outcome;
        Ok((report, arrays, observer.into_notes()))
    }

    /// The log-probability of the last tokens of each text, as many as `predicted` says, and whether each is the most probable one.
    fn likelihoods(
        &self,
        py: Python<'_>,
        texts: Vec<Vec<u32>>,
        predicted: Vec<usize>,
        changes: InterventionTexts,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<(f64, bool)>> {
        let raised = Arc::new(Raised::default());
        let observer = PyObserver::new(&raised, progress);
        compute(py, &raised, || {
            let interventions = Prepared::new(changes.options()?, &self.loaded, &observer)?;
            Ok::<_, Failed>(token_likelihoods(&Run::new(&interventions, &observer), texts, predicted)?)
        })
    }
}

/// A study's name, the interventions that it refuses, and its options with their defaults as JSON.
type StudyFacts = (&'static str, Vec<&'static str>, String);

/// All studies of the engine.
#[pyfunction]
pub(crate) fn studies() -> Result<Vec<StudyFacts>, Failed> {
    let one = |entry: &Entry| Ok((entry.name, entry.refuses.to_vec(), entry.defaults()?.to_string()));
    STUDIES.iter().map(one).collect()
}
