//! Generation, a step at a time.

use crate::changes::{InterventionTexts, slices};
use crate::error::Failed;
use crate::guard::{Raised, compute, compute_in_pool};
use crate::hooks::PyHooks;
use crate::loaded::Loaded;
use crate::model::Model;
use crate::run::point;
use gpt2_engine::interventions::Reads;
use gpt2_engine::open::CACHES;
use gpt2_engine::texts::{Continuation, new_tokens};
use gpt2_engine::words::one_of;
use gpt2_loader::Tokenizer;
use gpt2_model::hooks::{Chain, Hooks, Interventions, Point};
use gpt2_model::{Generation as Running, Paused, Sampling};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

/// The prompts to continue, and the settings.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GenerateRequest {
    rows: Vec<Vec<u32>>,
    max_new_tokens: Option<usize>,
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    typical_p: Option<f64>,
    repetition_penalty: f64,
    seed: u64,
    kv: Option<String>,
    stops: Vec<String>,
    changes: InterventionTexts,
    hooks: Vec<(String, Py<PyAny>)>,
}

/// A generation that goes on with each step. Only one thread uses it at a time.
#[pyclass(frozen, name = "Generation", module = "gpt2_candle._native")]
pub(crate) struct SteppedGeneration {
    loaded: Arc<Loaded>,
    changes: Interventions,
    hooks: Vec<(Point, Py<PyAny>)>,
    at: Mutex<Option<PausedTexts>>,
}

/// A generation between two steps.
struct PausedTexts {
    paused: Paused,
    /// The continuation of each row.
    found: Vec<Continuation<Arc<Tokenizer>>>,
}

#[pymethods]
impl Model {
    fn generate(&self, py: Python<'_>, request: GenerateRequest) -> PyResult<SteppedGeneration> {
        let layers = self.config_of().n_layer;
        let hooks =
            request.hooks.iter().map(|(name, function)| Ok((point(name, layers)?, function.clone_ref(py))));
        let hooks = hooks.collect::<Result<Vec<_>, Failed>>()?;
        compute(py, &Arc::default(), || {
            let model = &self.loaded.model;
            let lengths: Vec<usize> = request.rows.iter().map(Vec::len).collect();
            let changes = request.changes.build(&self.loaded, Reads::Growing(&slices(&request.rows)))?;
            let GenerateRequest {
                temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed, ..
            } = request;
            let sampling = Sampling { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, seed };
            let longest = lengths.iter().copied().max().unwrap_or(0);
            let most = new_tokens(request.max_new_tokens, model.config(), longest);
            let mut running = Running::new(model, &request.rows, sampling, most)?;
            if let Some(kv) = request.kv.as_deref() {
                running = running.with_cache_dtype(one_of("kv", kv, CACHES)?)?;
            }
            let follow = |_: &Vec<u32>| {
                Continuation::new(model.config(), self.loaded.shared_tokenizer(), &request.stops)
            };
            let found = request.rows.iter().map(follow).collect();
            let at = Mutex::new(Some(PausedTexts { paused: running.pause(), found }));
            Ok(SteppedGeneration { loaded: Arc::clone(&self.loaded), changes, hooks, at })
        })
    }
}

#[pymethods]
impl SteppedGeneration {
    /// What the next step adds to the text of each row, `None` for one that has ended; `None` at the end.
    fn step(&self, py: Python<'_>) -> PyResult<Option<Vec<Option<String>>>> {
        py.check_signals()?;
        let calls_python = !self.hooks.is_empty();
        let hooks = self.hooks.iter().map(|(point, function)| (*point, function.clone_ref(py))).collect();
        let raised = Arc::new(Raised::default());
        let work = || {
            let Some(mut state) = self.at.lock().ok().and_then(|mut at| at.take()) else {
                return Err(Failed::Runtime(
                    "this generation failed before, or another thread is in it".to_owned(),
                ));
            };
            let functions = PyHooks { list: hooks, raised: &raised };
            let mut all: Vec<&dyn Hooks> = vec![];
            if !self.changes.is_empty() {
                all.push(&self.changes);
            }
            if !functions.list.is_empty() {
                all.push(&functions);
            }
            let chain = Chain(&all);
            let mut running = Running::resume(&self.loaded.model, state.paused);
            if !all.is_empty() {
                running = running.with_hooks(&chain);
            }
            let pieces = match running.next().transpose()? {
                None => None,
                Some(step) => {
                    let mut pieces = vec![];
                    for (row, (found, id)) in state.found.iter_mut().zip(step).enumerate() {
                        pieces.push(id.map(|id| found.push(id)));
                        if found.stopped_at().is_some() {
                            running.end(row);
                        }
                    }
                    Some(pieces)
                }
            };
            state.paused = running.pause();
            if let Ok(mut at) = self.at.lock() {
                *at = Some(state);
            }
            Ok(pieces)
        };
        if calls_python { compute(py, &raised, work) } else { compute_in_pool(py, &raised, work) }
    }

    /// What is left of the text of each row when no more tokens come.
    fn finish(&self) -> Vec<String> {
        let mut at = self.at.lock().ok();
        let found = at.iter_mut().filter_map(|at| at.as_mut()).flat_map(|state| &mut state.found);
        found.map(Continuation::finish).collect()
    }

    /// The new ids of each row, their text, and the stop string that ended it.
    fn found(&self) -> Vec<(Vec<u32>, String, Option<String>)> {
        let at = self.at.lock().ok();
        let found = at.iter().filter_map(|at| at.as_ref()).flat_map(|state| &state.found);
        found
            .map(|found| (found.ids.clone(), found.text.clone(), found.stopped_at().map(str::to_owned)))
            .collect()
    }
}
