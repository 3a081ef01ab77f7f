//! The training loop: batches, gradients, steps, validations.

use crate::data::Dataset;
use crate::error::{Result, TrainError};
use crate::muon::HiddenMatrices;
use crate::optimizer::AdamWParams;
use crate::options::{MUON_LR, Optimizer, RunSettings, TrainDType, TrainOptions};
use crate::report::{StepReport, TrainingEvent, Validation};
use crate::schedule::LearningRate;
use crate::sharded::{Rates, ShardedOptimizer};
use crate::state::History;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use gpt2_model::linear::WeightDType;
use gpt2_model::lora::{Adapter, LoraOptions};
use gpt2_model::parameters::{Values, WPE};
use gpt2_model::{Config, Gpt2LMHeadModel, init};
use gpt2_parallel::Group;
use std::ops::ControlFlow;

/// An adapter in training.
struct Tuned {
    /// The model without it.
    base: Gpt2LMHeadModel,
    adapter: Adapter,
    lora: LoraOptions,
}

/// The adapter's name in the model.
const ADAPTER: &str = "default";

/// A model in training, and everything that a step needs. The result of a step depends only on the settings and on the
/// number of steps done.
pub struct Trainer {
    settings: RunSettings,
    data: Dataset,
    window: usize,
    optimizer: ShardedOptimizer,
    model: Gpt2LMHeadModel,
    /// The adapter that is trained, if the model itself is not.
    tuned: Option<Tuned>,
    lr: LearningRate,
    /// Of the matrices that Muon steps.
    muon_lr: LearningRate,
    history: History,
    device: Device,
}

impl Trainer {
    /// Starts with a new model: GPT-2's random weights from the seed, and sinusoidal position embeddings.
    ///
    /// # Errors
    /// When the config or an option is invalid, the model has cross-attention, or the data do not fit the model.
    pub fn new(config: &Config, data: Dataset, options: TrainOptions, device: &Device) -> Result<Self> {
        let tied = config.tie_word_embeddings;
        let trainer = Self::build(config.clone(), tied, data, options, device)?;
        trainer.set(WPE, &init::sinusoids(trainer.model.config(), DType::F32, device)?)?;
        Ok(trainer)
    }

    /// Starts with the weights of `model`, on its device; `model` itself does not change.
    ///
    /// # Errors
    /// Same as [`new`](Self::new), and when a layer of the model is not GPT-2's own.
    pub fn from_model(model: &Gpt2LMHeadModel, data: Dataset, options: TrainOptions) -> Result<Self> {
        model.check_layers()?;
        let config = model.config();
        let parameters = model.named_parameters();
        let quantized = |values: &Values| matches!(values.dtype(), WeightDType::Blocks(_));
        if let Some((name, _)) = parameters.iter().find(|(_, values)| quantized(values)) {
            let reason = format!("{name} is quantized and cannot be trained; start from the original");
            return Err(candle_core::Error::msg(reason).into());
        }
        let device = model.device();
        // An `lm_head` that differs from the embedding is trained separately, whatever the config says.
        let trainer = Self::build(config.clone(), model.is_tied(), data, options, device)?;
        for (name, values) in &parameters {
            trainer.set(name, &values.tensor()?.to_dtype(DType::F32)?)?;
        }
        Ok(trainer)
    }

    /// Sets a variable's initial value.
    fn set(&self, name: &str, value: &Tensor) -> Result<()> {
        match self.optimizer.variables.iter().find(|(held, _)| held == name) {
            Some((_, var)) => Ok(var.set(value)?),
            None => Err(candle_core::Error::msg(format!("the model has no variable {name}")).into()),
        }
    }

    /// Trains a new adapter of `base`, which stays as it is: it gets no gradient and no moments. Its weights may be
    /// quantized.
    ///
    /// # Errors
    /// Same as [`new`](Self::new), when `base` is not in f32, has variables or an adapter of its own, and when an option of
    /// the adapter is invalid.
    pub fn adapter(
        base: &Gpt2LMHeadModel,
        lora: &LoraOptions,
        data: Dataset,
        options: TrainOptions,
    ) -> Result<Self> {
        base.check_layers()?;
        if base.dtype() != DType::F32 || !base.named_variables()?.is_empty() {
            let reason =
                "an adapter is trained on a frozen model in f32: load it in that dtype, and not as variables";
            return Err(candle_core::Error::msg(reason).into());
        }
        if options.optimizer == Optimizer::Muon {
            return Err(TrainError::option("optimizer", "muon", "adamw for an adapter"));
        }
        if options.train_dtype != TrainDType::F32 {
            return Err(TrainError::option(
                "train_dtype",
                "bf16",
                "f32 for an adapter, whose base is frozen",
            ));
        }
        let window = checked_window(&options, &data, base.config())?;
        let device = base.device().clone();
        let base = options.dropout.map_or_else(|| base.clone(), |rate| base.clone().with_dropout(rate));
        let adapter = Adapter::new(base.config(), lora, options.seed, &device)?;
        let model = base.clone().with_adapter(ADAPTER, &adapter, 1.0)?;
        let mut trainer = Self::from_trainable(model, data, window, options, &device)?;
        trainer.settings.lora = Some(lora.clone());
        trainer.settings.base = Some(base.fingerprint()?);
        trainer.tuned = Some(Tuned { base, adapter, lora: lora.clone() });
        Ok(trainer)
    }

    fn build(
        mut config: Config,
        tied: bool,
        data: Dataset,
        options: TrainOptions,
        device: &Device,
    ) -> Result<Self> {
        let window = checked_window(&options, &data, &config)?;
        if let Some(rate) = options.dropout {
            (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) = (rate, rate, rate);
        }
        let vb = init::seeded_variables(options.seed, &VarMap::new(), DType::F32, device);
        let model = Gpt2LMHeadModel::load(vb, &Config { tie_word_embeddings: tied, ..config.clone() })?;
        let model = options.train_dtype.of(model)?;
        let mut trainer = Self::from_trainable(model, data, window, options, device)?;
        // A state holds the config as it was given.
        trainer.settings.config = config;
        Ok(trainer)
    }

    /// A trainer of the variables of `model`.
    fn from_trainable(
        model: Gpt2LMHeadModel,
        data: Dataset,
        window: usize,
        options: TrainOptions,
        device: &Device,
    ) -> Result<Self> {
        let config = model.config();
        if config.add_cross_attention {
            let reason = "add_cross_attention: the data have no encoder's hidden states, without which the parameters of \
                          cross-attention get no gradient; use Gpt2LMHeadModel::loss with an encoder";
            return Err(candle_core::Error::msg(reason).into());
        }
        let params = AdamWParams {
            beta2: 0.99,
            weight_decay: options.weight_decay,
            max_grad_norm: Some(options.clip).filter(|clip| *clip > 0.0),
            ..AdamWParams::default()
        };
        let rate =
            |peak| LearningRate::new(options.schedule, peak, options.warmup as usize, options.steps as usize);
        let is_muon = options.optimizer == Optimizer::Muon;
        let muon_lr = is_muon.then(|| options.muon_lr.unwrap_or(MUON_LR));
        let matrices =
            |name: &str, var: &Var| is_muon.then(|| HiddenMatrices::of(name, var, config)).flatten();
        let settings = RunSettings {
            config: config.clone(),
            data: data.fingerprint(),
            options: TrainOptions { window: Some(window), muon_lr, ..options.clone() },
            lora: None,
            base: None,
        };
        Ok(Self {
            optimizer: ShardedOptimizer::new(model.named_variables()?, params, matrices, device)?,
            lr: rate(options.lr),
            muon_lr: rate(muon_lr.unwrap_or(0.0)),
            history: History::default(),
            device: device.clone(),
            data,
            settings,
            window,
            model,
            tuned: None,
        })
    }

    /// Trains until the last step, or until `progress` stops the run; returns whether it reached the last step. The
    /// trainer that `progress` receives, and with it the model, is in its state after the step. In a group, every rank
    /// hears the same events, and all must stop at the same one.
    ///
    /// # Errors
    /// When a loss is not finite, the device fails, or `progress` fails.
    pub fn run(
        &mut self,
        mut progress: impl FnMut(&Self, TrainingEvent) -> Result<ControlFlow<()>>,
    ) -> Result<bool> {
        let steps = u64::from(self.settings.options.steps);
        while self.steps() < steps {
            let stepped = self.step()?;
            let mut flow = progress(self, TrainingEvent::Stepped(stepped))?;
            if stepped.validates && flow.is_continue() {
                let validation = self.validate()?;
                flow = progress(self, TrainingEvent::Validated(stepped, validation))?;
            }
            if flow.is_break() {
                break;
            }
        }
        Ok(self.steps() == steps)
    }

    /// Takes one step of the optimizer.
    fn step(&mut self) -> Result<StepReport> {
        let begun = std::time::Instant::now();
        let before = self.steps();
        let options = &self.settings.options;
        let tokens = usize::from(options.batch) * usize::from(options.accumulate) * self.window;
        let (scale, steps, eval_every) =
            (1.0 / f64::from(options.accumulate), options.steps, options.eval_every);
        let (loss, gradients) = self.summed_gradients(before)?;
        let number = usize::try_from(before).map_err(TrainError::other)?;
        let lr = self.lr.rate(number);
        let rates = Rates { adamw: lr, muon: self.muon_lr.rate(number) };
        let grad_norm = self.optimize(&gradients, rates, scale)?;
        let tokens_per_s = tokens as f64 / begun.elapsed().as_secs_f64();
        self.history.add_step(loss);
        let step = self.steps();
        let validates = step.is_multiple_of(eval_every.into()) || step == u64::from(steps);
        Ok(StepReport { step, loss, lr, grad_norm, tokens_per_s, validates })
    }

    /// Steps the variables with the sums of this rank's gradients; returns the norm of all gradients.
    fn optimize(&mut self, sums: &[Tensor], rates: Rates, scale: f64) -> Result<f64> {
        let step = self.steps();
        self.optimizer.step(sums, rates, scale).map_err(|error| match error {
            TrainError::Candle(source) => TrainError::Step { step, source },
            other => other,
        })
    }

    /// Measures the model on the validation part.
    fn validate(&mut self) -> Result<Validation> {
        let step = self.steps();
        let loss = self.validation_loss()?;
        if !loss.is_finite() {
            return Err(TrainError::ValidationLoss { step, loss });
        }
        Ok(Validation { loss, is_best: self.history.add_validation(step, loss) })
    }

    /// The model in its present state.
    #[must_use]
    pub fn model(&self) -> &Gpt2LMHeadModel {
        &self.model
    }

    /// The adapter in its present state, and its options, if one is trained.
    #[must_use]
    pub fn trained_adapter(&self) -> Option<(&Adapter, &LoraOptions)> {
        self.tuned.as_ref().map(|tuned| (&tuned.adapter, &tuned.lora))
    }

    /// The processes that share the work.
    #[must_use]
    pub fn group(&self) -> &dyn Group {
        self.optimizer.group()
    }

    /// The data.
    #[must_use]
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Tokens per sequence.
    #[must_use]
    pub fn window(&self) -> usize {
        self.window
    }

    /// The losses so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The settings that the run's numbers depend on.
    #[must_use]
    pub fn settings(&self) -> &RunSettings {
        &self.settings
    }

    /// Steps done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.optimizer.steps()
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let mut trainer = f.debug_struct("Trainer");
        trainer.field("settings", &self.settings).field("steps", &self.steps()).finish_non_exhaustive()
    }
}

/// Tokens per sequence, once a model with this config is found to be trainable on these data with these options.
fn checked_window(options: &TrainOptions, data: &Dataset, config: &Config) -> Result<usize> {
    options.check()?;
    let window = options.window_for(config.n_positions)?;
    data.check(window, config.vocab_size)?;
    if data.documents.is_some() && options.repeat_fraction > 0.0 {
        return Err(TrainError::option("repeat_fraction", options.repeat_fraction, "0 with documents"));
    }
    Ok(window)
}

mod estimate;
mod passes;
mod shared;
