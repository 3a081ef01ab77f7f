//! Text after prompts: all at once, or of one prompt a step at a time.

use crate::changes::InterventionTexts;
use crate::error::{Failed, from_json};
use crate::guard::{Raised, compute, compute_in_pool};
use crate::hooks::PyHooks;
use crate::loaded::Loaded;
use crate::model::Model;
use crate::observer::PyObserver;
use crate::run::point;
use gpt2_engine::Opened;
use gpt2_engine::interventions::{Prepared, Reads};
use gpt2_engine::studies::Run;
use gpt2_engine::studies::predict::generate::{Options, Piece, Report};
use gpt2_engine::texts::{Continuation, Prompt, new_tokens};
use gpt2_loader::Tokenizer;
use gpt2_model::hooks::{Chain, Hooks, Interventions, Point};
use gpt2_model::{Generation as Running, Paused};
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

/// The prompts to continue, and the settings.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GenerateRequest {
    rows: Vec<Vec<u32>>,
    /// The options as a JSON object; those that it lacks have their defaults.
    options: String,
    seed: u64,
    changes: InterventionTexts,
    hooks: Vec<(String, Py<PyAny>)>,
    /// Called with `tokens`, how many are done, and `None`.
    progress: Option<Py<PyAny>>,
}

/// The new ids of a prompt, their text, the stop string that ended it, and the report as JSON.
type Continued = (Vec<u32>, String, Option<String>, String);

/// A generation that goes on with each step. Only one thread uses it at a time.
#[pyclass(frozen, name = "Generation", module = "gpt2_candle._native")]
pub(crate) struct SteppedGeneration {
    loaded: Arc<Loaded>,
    changes: Interventions,
    hooks: Vec<(Point, Py<PyAny>)>,
    at: Mutex<Option<PausedText>>,
}

/// A generation between two steps, and the text so far.
struct PausedText {
    paused: Paused,
    found: Continuation<Arc<Tokenizer>>,
}

impl Model {
    /// Functions at points of the model.
    fn functions(
        &self,
        py: Python<'_>,
        named: &[(String, Py<PyAny>)],
    ) -> Result<Vec<(Point, Py<PyAny>)>, Failed> {
        let layers = self.config_of().n_layer;
        named.iter().map(|(name, function)| Ok((point(name, layers)?, function.clone_ref(py)))).collect()
    }
}

/// Ids as a prompt, whose continuation is text if there is a tokenizer. Errors call it `what`.
fn prompt(opened: &Opened, ids: Vec<u32>, what: &str) -> anyhow::Result<Prompt> {
    let text = opened.tokenizer().ok().map(|tokenizer| tokenizer.decode(&ids));
    Prompt::of_ids(opened, ids, text, what)
}

#[pymethods]
impl Model {
    /// Continues all prompts. Returns each continuation, and notes for the reader.
    fn continued(&self, py: Python<'_>, request: GenerateRequest) -> PyResult<(Vec<Continued>, Vec<String>)> {
        let raised = Arc::new(Raised::default());
        let GenerateRequest { rows, options, seed, changes, hooks, progress } = request;
        let hooks = self.functions(py, &hooks)?;
        let calls_python = !hooks.is_empty() || progress.is_some();
        let observer = PyObserver::new(&raised, progress);
        let work = || {
            let options: Options = from_json(&options)?;
            let interventions = Prepared::new(changes.options()?, &self.loaded, &observer)?;
            let run = Run { seed, ..Run::new(&interventions, &observer) };
            let is_one = rows.len() == 1;
            let what = |i: usize| if is_one { "the prompt".to_owned() } else { format!("text {i}") };
            let prompts = rows.into_iter().enumerate().map(|(i, ids)| prompt(&self.loaded, ids, &what(i)));
            let prompts = prompts.collect::<anyhow::Result<Vec<_>>>()?;
            let functions = PyHooks { list: hooks, raised: &raised };
            let hooks = (!functions.list.is_empty()).then_some(&functions as &dyn Hooks);
            let mut tokens = 0;
            let mut heard = Ok(());
            let reports = options.continue_all(&run, prompts, hooks, &mut |_, piece| {
                tokens += u64::from(matches!(piece, Piece::Token(_)));
                heard = gpt2_engine::Observer::step(&observer, "tokens", tokens, None);
                if heard.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            heard?;
            Ok(reports.into_iter().map(continued).collect::<anyhow::Result<Vec<_>>>()?)
        };
        let found =
            if calls_python { compute(py, &raised, work) } else { compute_in_pool(py, &raised, work) }?;
        Ok((found, observer.into_notes()))
    }

    /// Begins to continue one prompt, a step at a time.
    fn generate(&self, py: Python<'_>, request: GenerateRequest) -> PyResult<SteppedGeneration> {
        let GenerateRequest { rows, options, seed, changes, hooks, .. } = request;
        let hooks = self.functions(py, &hooks)?;
        let raised = Arc::default();
        compute(py, &raised, || {
            let model = &self.loaded.model;
            let options: Options = from_json(&options)?;
            options.check(self.loaded.spelling)?;
            let changes =
                changes.build(&self.loaded, Reads::Growing(&crate::changes::slices(&rows)), &raised)?;
            if !hooks.is_empty() || !changes.is_empty() {
                options.check_hooks(self.loaded.spelling)?;
            }
            let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
            let most = new_tokens(options.max_new_tokens, model.config(), longest);
            let mut running = Running::new(model, &rows, options.sampling(seed), most)?;
            if let Some(kv) = options.kv {
                running = running.with_cache_dtype(kv)?;
            }
            if options.cuda_graph {
                running = running.with_cuda_graph()?;
            }
            let found = Continuation::new(model.config(), self.loaded.shared_tokenizer(), &options.stop);
            let at = Mutex::new(Some(PausedText { paused: running.pause(), found }));
            Ok(SteppedGeneration { loaded: Arc::clone(&self.loaded), changes, hooks, at })
        })
    }
}

/// A report, with what Python shows of it: of a search, the best text.
fn continued(report: Report) -> anyhow::Result<Continued> {
    let json = serde_json::to_string(&report)?;
    Ok(match report {
        Report::Drawn(found) => (found.ids, found.shown, found.stopped_at, json),
        Report::Searched(found) => {
            let best = found.hypotheses.into_iter().next();
            let (ids, text) = best.map(|best| (best.ids, best.shown)).unwrap_or_default();
            (ids, text, None, json)
        }
    })
}

#[pymethods]
impl SteppedGeneration {
    /// The text that the next step adds; `None` at the end.
    fn step(&self, py: Python<'_>) -> PyResult<Option<String>> {
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
            let mut piece = None;
            if let Some(step) = running.next().transpose()? {
                piece = step.first().copied().flatten().map(|id| state.found.push(id));
                if state.found.stopped_at().is_some() {
                    running.end(0);
                }
            }
            state.paused = running.pause();
            if let Ok(mut at) = self.at.lock() {
                *at = Some(state);
            }
            Ok(piece)
        };
        if calls_python { compute(py, &raised, work) } else { compute_in_pool(py, &raised, work) }
    }

    /// The rest of the text when no more tokens come.
    fn finish(&self) -> String {
        let mut at = self.at.lock().ok();
        at.as_mut().and_then(|at| at.as_mut()).map(|state| state.found.finish()).unwrap_or_default()
    }
}
