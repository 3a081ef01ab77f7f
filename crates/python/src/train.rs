//! Training: a new model, a model to fine-tune, or an adapter.

use crate::error::Failed;
use crate::guard::{Raised, compute};
use crate::loaded::{Loaded, TrainedAdapter};
use crate::model::Model;
use crate::observer::PyObserver;
use anyhow::{Context, anyhow, bail};
use candle_core::{DType, Device};
use candle_fused::Implementation;
use candle_nn::VarBuilder;
use gpt2_engine::open::UsedAdapter;
use gpt2_engine::studies::learn::train::{Options, Start, TrainingData};
use gpt2_engine::texts::Example;
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
    examples: Vec<(String, String)>,
    seed: u64,
    /// Called with the step, its loss, and the validation's loss where there is one; `False` stops.
    callback: Option<Py<PyAny>>,
}

/// A trained model, the loss of each step, those of validations by their steps, and whether all steps ran.
type Trained = (Model, Vec<f32>, Vec<(u64, f64)>, bool);

impl TrainRequest {
    fn lessons(&self) -> TrainingData {
        let example = |(prompt, completion): &(String, String)| Example {
            prompt: prompt.clone(),
            completion: completion.clone(),
        };
        match &self.text {
            Some(text) => TrainingData::Text(text.clone()),
            None => TrainingData::Examples(self.examples.iter().map(example).collect()),
        }
    }

    fn run(&self, base: Option<&Loaded>, raised: &Arc<Raised>) -> anyhow::Result<Trained> {
        let options: Options = serde_json::from_str(&self.options)?;
        let lessons = self.lessons();
        let observer = PyObserver::new(raised, None);
        let (tokenizer, mut trainer) = if let Some(base) = base {
            if !base.adapters.is_empty() {
                bail!(
                    "{}: has adapters, and only a model without them is trained: save it, which merges them, and load that",
                    base.name
                );
            }
            if let (Some(format), None) = (base.formats.first(), options.lora) {
                let format = format.as_str();
                bail!(
                    "{}: is quantized ({format}) and cannot be trained; load the original, or train an adapter with lora=",
                    base.name
                );
            }
            let tokenizer =
                base.shared_tokenizer().with_context(|| format!("{}: has no tokenizer here", base.name))?;
            let data = lessons.dataset(&tokenizer, options.val_fraction, &observer)?;
            let of_trainer = options.for_trainer(Some(&base.name), self.seed);
            (tokenizer, options.trainer(Start::Model(&base.model), data, of_trainer)?)
        } else {
            let tokenizer = Arc::new(Tokenizer::train(&lessons.words(), options.vocab_size)?);
            let config = options.config(&tokenizer, Implementation::Auto)?;
            let data = lessons.dataset(&tokenizer, options.val_fraction, &observer)?;
            let of_trainer = options.for_trainer(None, self.seed);
            data.check(of_trainer.window_for(config.n_positions)?, config.vocab_size)?;
            (tokenizer, options.trainer(Start::New(&config, &Device::Cpu), data, of_trainer)?)
        };
        let notes = observer.into_notes();
        let finished = trainer.run(|_, event| self.hear(event, raised).map_err(TrainError::other))?;
        let (model, adapter) = trained(&trainer, base)?;
        let name = base.map_or_else(|| "new model".to_owned(), |base| format!("{}, trained", base.name));
        let device = model.device().clone();
        let mut opened = Opened::new(name, model, device, Spelling::Keywords).with_tokenizer(tokenizer);
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
        Ok((model, history.training().to_vec(), history.validation().to_vec(), finished))
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
