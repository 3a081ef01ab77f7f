//! Training: a new model, a model to fine-tune, or an adapter.

use crate::error::Failed;
use crate::guard::{Raised, compute};
use crate::loaded::{Loaded, TrainedAdapter};
use crate::model::Model;
use anyhow::{Context, anyhow, bail};
use candle_core::{DType, Device};
use candle_fused::Implementation;
use candle_nn::VarBuilder;
use gpt2_engine::open::UsedAdapter;
use gpt2_engine::texts::{Example, NewModel, documents, encode};
use gpt2_engine::{Opened, Spelling};
use gpt2_loader::Tokenizer;
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::lora::LoraOptions;
use gpt2_train::{Dataset, TrainError, TrainOptions, Trainer, TrainingEvent};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The text or examples to learn, and the settings: see `gpt2_candle.train`.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TrainRequest {
    /// A whole text, or else `examples`: a prompt and a completion each.
    text: Option<String>,
    examples: Vec<(String, String)>,
    /// The size of a new model: its vocabulary, positions, width, layers, heads.
    new: (usize, usize, usize, usize, usize),
    lora: Option<Lora>,
    steps: u32,
    batch: u16,
    accumulate: u16,
    window: Option<usize>,
    lr: f64,
    warmup: u32,
    weight_decay: f64,
    clip: f64,
    dropout: Option<f64>,
    repeat_fraction: f64,
    recompute: bool,
    eval_every: u32,
    val_fraction: f64,
    seed: u64,
    /// Called with the step, its loss, and the validation's loss where there is one; `False` stops.
    callback: Option<Py<PyAny>>,
}

#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
struct Lora {
    r: usize,
    alpha: f64,
    dropout: f64,
    targets: Vec<String>,
    rslora: bool,
}

/// A trained model, the loss of each step, those of validations by their steps, and whether all steps ran.
type Trained = (Model, Vec<f32>, Vec<(u64, f64)>, bool);

impl TrainRequest {
    fn options(&self, name: Option<&str>) -> TrainOptions {
        let mut options = TrainOptions::new(self.steps);
        options.batch = self.batch;
        options.accumulate = self.accumulate;
        options.window = self.window;
        options.lr = self.lr;
        options.warmup = self.warmup;
        options.weight_decay = self.weight_decay;
        options.clip = self.clip;
        options.dropout = self.dropout;
        options.repeat_fraction = self.repeat_fraction;
        options.recompute = self.recompute;
        options.eval_every = self.eval_every;
        options.seed = self.seed;
        options.model = name.map(str::to_owned);
        options
    }

    fn lora(&self) -> Option<LoraOptions> {
        let Lora { r, alpha, dropout, targets, rslora } = self.lora.as_ref()?;
        let mut options = LoraOptions::new(*r);
        (options.lora_alpha, options.lora_dropout, options.use_rslora) = (*alpha, *dropout, *rslora);
        options.target_modules.clone_from(targets);
        Some(options)
    }

    fn data(&self, tokenizer: &Tokenizer, notes: &mut Vec<String>) -> anyhow::Result<Dataset> {
        if let Some(text) = &self.text {
            let encoded = encode(tokenizer, text, "the training text")?;
            notes.extend(encoded.note);
            return Ok(Dataset::split(encoded.ids, self.val_fraction)?);
        }
        let examples = self.examples();
        Ok(Dataset::from_documents(
            documents(&examples, tokenizer, &mut |note| notes.push(note))?,
            self.val_fraction,
        )?)
    }

    fn examples(&self) -> Vec<Example> {
        let example = |(prompt, completion): &(String, String)| Example {
            prompt: prompt.clone(),
            completion: completion.clone(),
        };
        self.examples.iter().map(example).collect()
    }

    fn run(&self, base: Option<&Loaded>, raised: &Raised) -> anyhow::Result<Trained> {
        let mut notes = vec![];
        let (tokenizer, mut trainer) = if let Some(base) = base {
            if !base.adapters.is_empty() {
                bail!(
                    "{}: has adapters, and only a model without them is trained: save it, which merges them, and load that",
                    base.name
                );
            }
            if let (Some(format), None) = (base.formats.first(), &self.lora) {
                let format = format.as_str();
                bail!(
                    "{}: is quantized ({format}) and cannot be trained; load the original, or train an adapter with lora=",
                    base.name
                );
            }
            let tokenizer =
                base.shared_tokenizer().with_context(|| format!("{}: has no tokenizer here", base.name))?;
            let data = self.data(&tokenizer, &mut notes)?;
            let options = self.options(Some(&base.name));
            let trainer = match self.lora() {
                Some(lora) => Trainer::adapter(&base.model, &lora, data, options)?,
                None => Trainer::from_model(&base.model, data, options)?,
            };
            (tokenizer, trainer)
        } else {
            let (vocab_size, n_positions, n_embd, n_layer, n_head) = self.new;
            let words =
                || self.examples.iter().flat_map(|(prompt, completion)| [prompt, completion, "\n"]).collect();
            let tokenizer = Arc::new(Tokenizer::train(&self.text.clone().unwrap_or_else(words), vocab_size)?);
            let size = NewModel { n_positions, n_embd, n_layer, n_head };
            let config = size.config(&tokenizer, Implementation::Auto)?;
            let data = self.data(&tokenizer, &mut notes)?;
            data.check(self.options(None).window_for(n_positions)?, config.vocab_size)?;
            (tokenizer, Trainer::new(&config, data, self.options(None), &Device::Cpu)?)
        };
        let finished = trainer.run(|_, event| self.hear(event, raised).map_err(TrainError::other))?;
        let (model, adapter) = trained(&trainer, base)?;
        let name = base.map_or_else(|| "new model".to_owned(), |base| format!("{}, trained", base.name));
        let device = model.device().clone();
        let mut opened = Opened::new(name, model, device, Spelling::Keywords).with_tokenizer(tokenizer);
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
        compute(py, &raised, || Ok::<_, Failed>(request.run(base.as_deref(), &raised)?))
    }
}
