//! Training: a new model, a model to fine-tune, or an adapter.

use crate::error::{Failed, from_json};
use crate::guard::{Raised, compute};
use crate::loaded::{Loaded, TrainedAdapter};
use crate::model::Model;
use crate::observer::PyObserver;
use anyhow::{Context, anyhow, bail};
use candle_core::{DType, Device};
use candle_fused::Implementation;
use candle_nn::VarBuilder;
use gpt2_engine::open::UsedAdapter;
use gpt2_engine::studies::learn::train::{Options, Samples, Start, TrainingData, bytes_per_token};
use gpt2_engine::texts::{Example, KnownText};
use gpt2_engine::{HubOptions, Opened, Spelling};
use gpt2_loader::Tokenizer;
use gpt2_model::Gpt2LMHeadModel;
use gpt2_train::{TrainError, Trainer, TrainingEvent};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The text or examples to learn, and the settings: see `gpt2_candle.train`.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TrainRequest {
    /// The options as a JSON object; those that it lacks have their defaults.
    options: String,
    /// A whole text, or else `examples`: a prompt and a completion each.
    text: Option<String>,
    /// Token ids, in place of both.
    ids: Option<Vec<u32>>,
    examples: Vec<(String, String)>,
    /// The text to validate on, or its ids, if it is not a part of the other.
    val_text: Option<String>,
    val_ids: Option<Vec<u32>>,
    seed: u64,
    /// Called with the step, its loss, and the validation's loss where there is one; `False` stops.
    callback: Option<Py<PyAny>>,
}

/// A trained model, the loss of each step, those of validations by their steps, whether all steps ran, the texts that it wrote after
/// validations, and the bytes of a validation token.
type Trained = (Model, Vec<f32>, Vec<(u64, f64)>, bool, Vec<(u64, Vec<String>)>, Option<f64>);

/// Refuses a model that has adapters, or whose quantized weights cannot learn.
fn check_trainable(base: &Loaded, as_adapter: bool) -> anyhow::Result<()> {
    if !base.adapters.is_empty() {
        bail!(
            "{}: has adapters, and only a model without them is trained: save it, which merges them, and load that",
            base.name
        );
    }
    if !as_adapter && let Some(format) = base.formats.first() {
        let format = format.as_str();
        bail!(
            "{}: is quantized ({format}) and cannot be trained; load the original, or train an adapter with lora=",
            base.name
        );
    }
    Ok(())
}

impl TrainRequest {
    fn lessons(&self) -> TrainingData {
        let example = |(prompt, completion): &(String, String)| Example {
            prompt: prompt.clone(),
            completion: completion.clone(),
        };
        match (&self.text, &self.ids) {
            (Some(text), _) => TrainingData::Text(text.clone()),
            (None, Some(ids)) => TrainingData::Ids(ids.clone()),
            (None, None) => TrainingData::Examples(self.examples.iter().map(example).collect()),
        }
    }

    fn validation(&self) -> Option<TrainingData> {
        let text = self.val_text.clone().map(TrainingData::Text);
        text.or_else(|| self.val_ids.clone().map(TrainingData::Ids))
    }

    fn run(&self, base: Option<&Loaded>, raised: &Arc<Raised>) -> anyhow::Result<Trained> {
        let options: Options = from_json(&self.options)?;
        let lessons = self.lessons();
        let validation = self.validation();
        let observer = PyObserver::new(raised, None);
        let (tokenizer, mut trainer) = if let Some(base) = base {
            check_trainable(base, options.lora.is_some())?;
            let tokenizer = match base.shared_tokenizer() {
                None if !lessons.is_text() => None,
                found => Some(found.with_context(|| format!("{}: has no tokenizer here", base.name))?),
            };
            let data = lessons.dataset(
                validation.as_ref(),
                tokenizer.as_deref(),
                options.val_fraction,
                &observer,
            )?;
            let config = base.model.config();
            let of_trainer =
                options.for_trainer(Some(&base.name), config, &data, self.seed, Spelling::Keywords)?;
            (tokenizer, options.trainer(Start::Model(&base.model), data, of_trainer)?)
        } else {
            let learned = lessons
                .is_text()
                .then(|| Tokenizer::train(&lessons.words(), options.vocab_size))
                .transpose()?;
            let tokenizer = learned.map(Arc::new);
            let config = options.config(tokenizer.as_deref(), Implementation::Auto)?;
            let data = lessons.dataset(
                validation.as_ref(),
                tokenizer.as_deref(),
                options.val_fraction,
                &observer,
            )?;
            let of_trainer = options.for_trainer(None, &config, &data, self.seed, Spelling::Keywords)?;
            data.check(of_trainer.window_for(config.n_positions)?, config.vocab_size)?;
            (tokenizer, options.trainer(Start::New(&config, &Device::Cpu), data, of_trainer)?)
        };
        let notes = observer.into_notes();
        let n_positions = trainer.model().config().n_positions;
        let samples = Samples::new(
            &options,
            tokenizer.as_deref(),
            trainer.data(),
            n_positions,
            self.seed,
            Spelling::Keywords,
        )?;
        let mut written = vec![];
        let finished = trainer.run(|trainer, event| {
            if let TrainingEvent::Validated(step, _) = event
                && options.num_samples > 0
            {
                written.push((step.step, samples.write(trainer).map_err(TrainError::other)?));
            }
            self.hear(event, raised).map_err(TrainError::other)
        })?;
        let bytes = bytes_per_token(tokenizer.as_deref(), trainer.data());
        let (model, adapter) = trained(&trainer, base)?;
        let name = base.map_or_else(|| "new model".to_owned(), |base| format!("{}, trained", base.name));
        let device = model.device().clone();
        let mut opened = Opened::new(name, model, device, Spelling::Keywords);
        if let Some(tokenizer) = tokenizer {
            opened = opened.with_tokenizer(tokenizer);
        }
        if let Some(base) = base {
            opened.hub = HubOptions { revision: None, ..base.hub.clone() };
        }
        if let (Some(base), Some(_)) = (base, &adapter) {
            opened.formats.clone_from(&base.formats);
            opened.adapters = vec![UsedAdapter::trained("trained".to_owned())];
        }
        let loaded = Loaded { opened, notes, trained: adapter };
        let history = trainer.history();
        let model = Model { loaded: Arc::new(loaded) };
        let losses = history.training().to_vec();
        Ok((model, losses, history.validation().to_vec(), finished, written, bytes))
    }

    fn hear(&self, event: TrainingEvent, raised: &Raised) -> candle_core::Result<ControlFlow<()>> {
        raised.check_signals()?;
        let Some(callback) = &self.callback else { return Ok(ControlFlow::Continue(())) };
        let (step, validation) = match event {
            TrainingEvent::Stepped(step) if step.validates => return Ok(ControlFlow::Continue(())),
            TrainingEvent::Stepped(step) => (step, None),
            TrainingEvent::Validated(step, validation) => (step, Some(validation.loss)),
            _ => return Ok(ControlFlow::Continue(())),
        };
        let stops = raised.attached(|py| {
            let said = callback.call1(py, (step.step, step.loss, validation))?;
            Ok(said.is(pyo3::types::PyBool::new(py, false).as_any()))
        })?;
        Ok(if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}

/// The trained weights as a model of their own, which learns no more.
fn trained(
    trainer: &Trainer,
    base: Option<&Loaded>,
) -> anyhow::Result<(Gpt2LMHeadModel, Option<TrainedAdapter>)> {
    if let Some((adapter, options)) = trainer.trained_adapter() {
        let base = base.ok_or_else(|| anyhow!("an adapter has a model"))?;
        let adapter = adapter.detach();
        let model = base.model.clone().with_adapter("trained", &adapter, 1.0)?;
        return Ok((model, Some((adapter, options.clone()))));
    }
    let mut tensors = HashMap::new();
    for (name, values) in trainer.model().named_parameters() {
        tensors.insert(name, values.tensor()?.detach());
    }
    let config = trainer.model().config();
    Ok((Gpt2LMHeadModel::load(VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu), config)?, None))
}

#[pymethods]
impl Model {
    /// Trains: this model, or a new one if there is none.
    #[staticmethod]
    fn train(py: Python<'_>, base: Option<Bound<'_, Model>>, request: TrainRequest) -> PyResult<Trained> {
        let base = base.map(|base| Arc::clone(&base.get().loaded));
        let raised = Arc::new(Raised::default());
        compute(py, &raised, || {
            base.iter().try_for_each(|base| base.refuse_processed("trained"))?;
            Ok::<_, Failed>(request.run(base.as_deref(), &raised)?)
        })
    }
}

/// The defaults of the options of training, as a JSON object.
#[pyfunction]
pub(crate) fn train_defaults() -> PyResult<String> {
    Ok(serde_json::to_string(&Options::default()).map_err(|e| Failed::from(anyhow!(e)))?)
}

/// A text to begin with: see `gpt2_candle.known_text`.
#[pyfunction]
pub(crate) fn known_text(name: &str) -> PyResult<String> {
    Ok(KnownText::named(name).and_then(|text| text.text()).map_err(Failed::from)?)
}
