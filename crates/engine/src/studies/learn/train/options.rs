//! The options of training.

use crate::spelling::Spelling;
use crate::texts::NewModelSize;
use anyhow::bail;
use candle_core::Device;
use candle_fused::Implementation;
use gpt2_loader::Tokenizer;
use gpt2_model::lora::LoraOptions;
use gpt2_model::{Config, Gpt2LMHeadModel};
use gpt2_train::{Dataset, Optimizer, Schedule, TrainDType, TrainOptions, Trainer};
use serde::{Deserialize, Serialize};

/// The dtypes of the factors of products with weights, by name.
pub const TRAIN_DTYPES: &[(&str, TrainDType)] = &[("f32", TrainDType::F32), ("bf16", TrainDType::Bf16)];

/// The options of training.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Steps of the optimizer; by default 1000, or as many as the epochs have.
    pub steps: Option<u32>,
    /// Passes over the training data, instead of steps.
    pub epochs: Option<f64>,
    /// Sequences of a batch.
    pub batch: u16,
    /// Batches whose gradients are summed for a step.
    pub accumulate: u16,
    /// Tokens of a sequence; by default as many as a new model reads, and at most [`WINDOW`] for one that learns further.
    pub window: Option<usize>,
    /// The optimizer of the blocks' matrices.
    pub optimizer: Optimizer,
    /// The highest learning rate; by default [`LR_OF_NEW`], [`LR_OF_MODEL`] for a model that learns further, or [`LR_OF_ADAPTER`].
    pub lr: Option<f64>,
    /// The highest learning rate of the matrices that Muon steps.
    pub muon_lr: Option<f64>,
    /// The course of the rates after the warm-up.
    pub schedule: Schedule,
    /// Steps of linear warm-up; by default 100, or a tenth of the steps where that is fewer.
    pub warmup: Option<u32>,
    /// The weight decay of matrices and embeddings.
    pub weight_decay: f64,
    /// The largest norm of all gradients together; 0 is off.
    pub clip: f64,
    /// The dropout on embeddings, attention weights and residuals; by default the model's own.
    pub dropout: Option<f64>,
    /// The part of the sequences that are random tokens repeated.
    pub repeat_fraction: f64,
    /// Whether each block runs again in the backward pass.
    pub recompute: bool,
    /// The dtype of the factors of products with weights.
    pub train_dtype: TrainDType,
    /// Steps between validations.
    pub eval_every: u32,
    /// The part of the data that is held back for validation.
    pub val_fraction: f64,
    /// The texts that the model writes after each validation.
    pub num_samples: usize,
    /// The beginning of those texts; by default the first tokens of the validation data.
    pub sample_prompt: Option<String>,
    /// The tokens that follow it.
    pub sample_tokens: usize,
    /// The size of a new model's vocabulary.
    pub vocab_size: usize,
    /// The longest context of a new model.
    pub n_positions: usize,
    /// The width of a new model.
    pub n_embd: usize,
    /// The blocks of a new model.
    pub n_layer: usize,
    /// The heads of each block of a new model.
    pub n_head: usize,
    /// The rank of the adapter to train, if the model itself is not trained.
    pub lora: Option<usize>,
    /// The adapter's updates are multiplied by this over the rank.
    pub lora_alpha: f64,
    /// The dropout on the inputs of the adapter's updates.
    pub lora_dropout: f64,
    /// The layers that get updates, by the ends of their names.
    pub lora_target: Vec<String>,
    /// Whether updates are divided by the root of the rank instead.
    pub rslora: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steps: None,
            epochs: None,
            batch: 8,
            accumulate: 1,
            window: None,
            optimizer: Optimizer::AdamW,
            lr: None,
            muon_lr: None,
            schedule: Schedule::Cosine,
            warmup: None,
            weight_decay: 0.1,
            clip: 1.0,
            dropout: None,
            repeat_fraction: 0.0,
            recompute: false,
            train_dtype: TrainDType::F32,
            eval_every: 100,
            val_fraction: 0.1,
            num_samples: 0,
            sample_prompt: None,
            sample_tokens: 64,
            vocab_size: 1024,
            n_positions: 256,
            n_embd: 128,
            n_layer: 4,
            n_head: 4,
            lora: None,
            lora_alpha: 8.0,
            lora_dropout: 0.0,
            lora_target: vec!["c_attn".to_owned()],
            rslora: false,
        }
    }
}

/// The steps where neither their number nor epochs are given.
pub const STEPS: u32 = 1000;
/// The longest warm-up where none is given.
pub const WARMUP: u32 = 100;
/// The longest window of a model that learns further, where none is given: docs/training.md has the measurements.
pub const WINDOW: usize = 256;
/// The highest learning rate of a new model, where none is given.
pub const LR_OF_NEW: f64 = 1e-3;
/// That of a model that learns further.
pub const LR_OF_MODEL: f64 = 1e-4;
/// That of an adapter.
pub const LR_OF_ADAPTER: f64 = 1e-3;

/// The model that training starts from.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// A new one, with random weights.
    New(&'a Config, &'a Device),
    /// One that learns further, or gets an adapter.
    Model(&'a Gpt2LMHeadModel),
}

impl Options {
    /// The settings of the adapter, if one is trained.
    #[must_use]
    pub fn adapter(&self) -> Option<LoraOptions> {
        Some(LoraOptions {
            r: self.lora?,
            lora_alpha: self.lora_alpha,
            lora_dropout: self.lora_dropout,
            use_rslora: self.rslora,
            target_modules: self.lora_target.clone(),
        })
    }

    /// The config of a new model with this tokenizer, or, without one, with `vocab_size` tokens.
    ///
    /// # Errors
    /// When the sizes do not fit one another.
    pub fn config(
        &self,
        tokenizer: Option<&Tokenizer>,
        implementation: Implementation,
    ) -> anyhow::Result<Config> {
        let Self { n_positions, n_embd, n_layer, n_head, .. } = *self;
        let vocab_size = tokenizer.map_or(self.vocab_size, Tokenizer::vocab_size);
        let end = tokenizer.and_then(Tokenizer::end_of_text);
        NewModelSize { n_positions, n_embd, n_layer, n_head }.config(vocab_size, end, implementation)
    }

    /// The trainer's options for a model with this config. `model` is the name of the model that is trained further.
    ///
    /// # Errors
    /// When the window is none, or both steps and epochs are given, or there are too many of them.
    pub fn for_trainer(
        &self,
        model: Option<&str>,
        config: &Config,
        data: &Dataset,
        seed: u64,
        spelling: Spelling,
    ) -> anyhow::Result<TrainOptions> {
        let mut options = TrainOptions::new(STEPS);
        options.batch = self.batch;
        options.accumulate = self.accumulate;
        options.window = self.window.or_else(|| model.map(|_| WINDOW.min(config.n_positions)));
        options.optimizer = self.optimizer;
        options.lr = self.lr.unwrap_or(match (model, self.lora) {
            (None, _) => LR_OF_NEW,
            (Some(_), None) => LR_OF_MODEL,
            (Some(_), Some(_)) => LR_OF_ADAPTER,
        });
        options.muon_lr = self.muon_lr;
        options.schedule = self.schedule;
        options.weight_decay = self.weight_decay;
        options.clip = self.clip;
        options.dropout = self.dropout;
        options.repeat_fraction = self.repeat_fraction;
        options.recompute = self.recompute;
        options.train_dtype = self.train_dtype;
        options.eval_every = self.eval_every;
        options.seed = seed;
        options.model = model.map(str::to_owned);
        let window = options.window_for(config.n_positions)?;
        let of_step = usize::from(self.batch) * usize::from(self.accumulate) * window;
        options.steps = self.number_of_steps(data.positions(window), of_step, spelling)?;
        options.warmup = self.warmup.unwrap_or(WARMUP.min(options.steps / 10));
        Ok(options)
    }

    /// The steps, given the positions of an epoch and of a step.
    fn number_of_steps(&self, of_epoch: usize, of_step: usize, spelling: Spelling) -> anyhow::Result<u32> {
        let Some(epochs) = self.epochs else { return Ok(self.steps.unwrap_or(STEPS)) };
        let option = spelling.option("epochs");
        if self.steps.is_some() {
            bail!("{option}: says how many steps there are; leave it or {} out", spelling.option("steps"));
        }
        let steps = (epochs * of_epoch as f64 / of_step as f64).ceil();
        if !(steps >= 1.0 && steps <= f64::from(u32::MAX)) {
            bail!("{option}: {epochs} of {of_epoch} tokens are {steps} steps, expected 1 to {}", u32::MAX);
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked above
        Ok(steps as u32)
    }

    /// A trainer of a new model, of a model, or of an adapter on it.
    ///
    /// # Errors
    /// When the data is too short, or an option does not fit the model.
    pub fn trainer(
        &self,
        start: Start,
        data: Dataset,
        options: TrainOptions,
    ) -> Result<Trainer, gpt2_train::TrainError> {
        match (start, self.adapter()) {
            (Start::New(config, device), _) => Trainer::new(config, data, options, device),
            (Start::Model(model), Some(lora)) => Trainer::adapter(model, &lora, data, options),
            (Start::Model(model), None) => Trainer::from_model(model, data, options),
        }
    }
}
