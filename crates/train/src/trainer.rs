//! The training loop: batches, gradients, steps, validations.

use crate::data::{Dataset, batch};
use crate::error::{Result, TrainError};
use crate::event::{Event, StepReport, Validation};
use crate::history::History;
use crate::optimiser::{AdamW, AdamWParams};
use crate::options::TrainOptions;
use crate::repeats::Repeats;
use crate::schedule::CosineSchedule;
use crate::settings::Settings;
use crate::state;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use gpt2_model::parameters::Values;
use gpt2_model::parameters::WPE;
use gpt2_model::training::{Training, add_gradients};
use gpt2_model::{Config, Gpt2LMHeadModel, init};
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;

/// A model in training, and everything that a step needs. The result of a step depends only on the settings and on the
/// number of steps done.
pub struct Trainer {
    options: TrainOptions,
    data: Dataset,
    settings: Settings,
    window: usize,
    variables: Vec<(String, Var)>,
    model: Gpt2LMHeadModel,
    optimiser: AdamW,
    schedule: CosineSchedule,
    history: History,
    device: Device,
}

impl Trainer {
    /// Starts with a new model: GPT-2's random weights from the seed, and sinusoidal position embeddings.
    ///
    /// # Errors
    /// When the config or an option is invalid, or the data do not fit the model.
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
        let quantised = |values: &Values| matches!(values, Values::Quantised(_) | Values::QuantisedTable(_));
        if let Some((name, _)) = parameters.iter().find(|(_, values)| quantised(values)) {
            let reason = format!("{name} is quantised and cannot be trained; start from the original");
            return Err(candle_core::Error::msg(reason).into());
        }
        let device = model.transformer.wte.device();
        // An `lm_head` that differs from the embedding is trained separately, whatever the config says.
        let trainer = Self::build(config.clone(), model.is_tied(), data, options, device)?;
        for (name, values) in &parameters {
            trainer.set(name, &values.tensor()?.to_dtype(DType::F32)?)?;
        }
        Ok(trainer)
    }

    /// Sets a variable's initial value.
    fn set(&self, name: &str, value: &Tensor) -> Result<()> {
        match self.variables.iter().find(|(held, _)| held == name) {
            Some((_, var)) => Ok(var.set(value)?),
            None => Err(candle_core::Error::msg(format!("the model has no variable {name}")).into()),
        }
    }

    fn build(
        mut config: Config,
        tied: bool,
        data: Dataset,
        options: TrainOptions,
        device: &Device,
    ) -> Result<Self> {
        options.check()?;
        if let Some(rate) = options.dropout {
            (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) = (rate, rate, rate);
        }
        let window = options.window_for(config.n_positions)?;
        data.check(window, config.vocab_size)?;
        let settings = Settings::new(&options, &config, window, data.fingerprint());
        let vb = init::seeded_variables(options.seed, &VarMap::new(), DType::F32, device);
        let model = Gpt2LMHeadModel::load(vb, &Config { tie_word_embeddings: tied, ..config })?;
        let variables = model.named_variables()?;
        let params = AdamWParams {
            beta2: 0.99,
            weight_decay: options.weight_decay,
            max_grad_norm: Some(options.clip).filter(|clip| *clip > 0.0),
            ..AdamWParams::default()
        };
        Ok(Self {
            optimiser: AdamW::new(variables.clone(), params)?,
            schedule: CosineSchedule {
                peak: options.lr,
                floor: options.lr / 10.0,
                warmup: options.warmup as usize,
                total: options.steps as usize,
            },
            history: History::default(),
            device: device.clone(),
            options,
            data,
            settings,
            window,
            variables,
            model,
        })
    }

    /// Trains until the last step, or until `progress` stops the run; returns whether it reached the last step. The
    /// trainer that `progress` receives, and with it the model, is in its state after the step.
    ///
    /// # Errors
    /// When a loss is not finite, the device fails, or `progress` fails.
    pub fn run(&mut self, mut progress: impl FnMut(&Self, Event) -> Result<ControlFlow<()>>) -> Result<bool> {
        let steps = u64::from(self.options.steps);
        while self.steps() < steps {
            let stepped = self.step()?;
            let mut flow = progress(self, Event::Stepped(stepped))?;
            if stepped.validates && flow.is_continue() {
                let validation = self.validate()?;
                flow = progress(self, Event::Validated(stepped, validation))?;
            }
            if flow.is_break() {
                break;
            }
        }
        Ok(self.steps() == steps)
    }

    /// Takes one step of the optimiser.
    fn step(&mut self) -> Result<StepReport> {
        let begun = std::time::Instant::now();
        let before = self.steps();
        let batches = u64::from(self.options.accumulate);
        let (loss, gradients) = self.summed_gradients(before)?;
        let lr = self.schedule.rate(usize::try_from(before).map_err(TrainError::other)?);
        let stepped = self.optimiser.step(&gradients, lr, 1.0 / batches as f64);
        let grad_norm = stepped.map_err(|source| TrainError::Step { step: before, source })?;
        let tokens = usize::from(self.options.batch) * usize::from(self.options.accumulate) * self.window;
        let tokens_per_s = tokens as f64 / begun.elapsed().as_secs_f64();
        self.history.add_step(loss);
        let step = self.steps();
        let is_last = step == u64::from(self.options.steps);
        let validates = step.is_multiple_of(u64::from(self.options.eval_every)) || is_last;
        Ok(StepReport { step, loss, lr, grad_norm, tokens_per_s, validates })
    }

    /// The mean loss of the batches of a step, and the sum of their gradients.
    fn summed_gradients(&self, step: u64) -> Result<(f32, GradStore)> {
        let batches = u64::from(self.options.accumulate);
        let fraction = self.options.repeat_fraction;
        let repeats = Repeats { fraction, vocab_size: self.model.config().vocab_size };
        let mut mean = 0.0;
        let mut sum: Option<GradStore> = None;
        for number in step * batches..(step + 1) * batches {
            let seed = self.options.seed;
            let rows = self.data.rows(seed, number, self.options.batch.into(), self.window, repeats);
            let (inputs, targets) = batch(&rows, &self.device)?;
            let training = Some(Training { seed, step: number });
            let (loss, gradients) = self.gradients(&inputs, &targets, training)?;
            mean += loss / batches as f32;
            if !mean.is_finite() {
                return Err(TrainError::Loss { step, loss: mean, inputs });
            }
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => add_gradients(sum, gradients, &self.variables)?,
            }
        }
        let none = || TrainError::Option { option: "accumulate", value: "0".into(), expected: "at least 1" };
        let sum = sum.ok_or_else(none)?;
        Ok((mean, sum))
    }

    fn gradients(
        &self,
        inputs: &Tensor,
        targets: &Tensor,
        training: Option<Training>,
    ) -> candle_core::Result<(f32, GradStore)> {
        if self.options.recompute {
            return self.model.recomputed_gradients(inputs, targets, training);
        }
        let loss = self.model.loss(inputs, targets, training)?;
        Ok((loss.to_scalar()?, loss.backward()?))
    }

    /// Measures the model on the validation part.
    fn validate(&mut self) -> Result<Validation> {
        let (step, loss) = (self.steps(), self.validation_loss()?);
        if !loss.is_finite() {
            return Err(TrainError::ValidationLoss { step, loss });
        }
        Ok(Validation { loss, is_best: self.history.add_validation(step, loss) })
    }

    /// The mean loss over the validation part, in consecutive windows; tokens at the end that do not fill a window
    /// are left out.
    ///
    /// # Errors
    /// When the device fails.
    pub fn validation_loss(&self) -> Result<f64> {
        let t = self.window;
        // A copy of the weights as constants, so that Candle keeps no operations for a backward pass.
        let constant = |(name, var): &(String, Var)| (name.clone(), var.as_detached_tensor());
        let constants = self.variables.iter().map(constant).collect();
        let vb = VarBuilder::from_tensors(constants, DType::F32, &self.device);
        let model = Gpt2LMHeadModel::load(vb, self.model.config())?;
        let starts = (0..self.data.val.len() - t).step_by(t);
        let windows: Vec<_> = starts.map(|start| Cow::Borrowed(&self.data.val[start..=start + t])).collect();
        let mut sum = 0.0;
        for rows in windows.chunks(self.options.batch.into()) {
            let (inputs, targets) = batch(rows, &self.device)?;
            let loss = model.loss(&inputs, &targets, None)?;
            sum += f64::from(loss.to_scalar::<f32>()?) * rows.len() as f64;
        }
        Ok(sum / windows.len() as f64)
    }

    /// Writes everything that a run needs to resume to a file, whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save_state(&self, path: &Path) -> Result<()> {
        state::save(path, &self.settings, &self.variables, &self.optimiser, &self.history)
    }

    /// Resumes from the state in a file: the run continues exactly as if it had not stopped.
    ///
    /// # Errors
    /// When the file is not the state of a run with these settings.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        self.history = state::restore(path, &self.settings, &self.variables, &mut self.optimiser)?;
        Ok(())
    }

    /// The model in its present state.
    #[must_use]
    pub fn model(&self) -> &Gpt2LMHeadModel {
        &self.model
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
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Steps done.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.optimiser.steps()
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let mut trainer = f.debug_struct("Trainer");
        trainer.field("settings", &self.settings).field("steps", &self.steps()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
