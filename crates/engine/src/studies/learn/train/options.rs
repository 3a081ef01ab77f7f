//! The options of training.

use crate::texts::NewModel;
use candle_core::Device;
use candle_fused::Implementation;
use gpt2_loader::Tokenizer;
use gpt2_model::lora::LoraOptions;
use gpt2_model::{Config, Gpt2LMHeadModel};
use gpt2_train::{Dataset, TrainDType, TrainOptions, Trainer};
use serde::{Deserialize, Serialize};

/// The dtypes of the factors of products with weights, by name.
pub const TRAIN_DTYPES: &[(&str, TrainDType)] = &[("f32", TrainDType::F32), ("bf16", TrainDType::Bf16)];

/// The options of training.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Steps of the optimizer.
    pub steps: u32,
    /// Sequences of a batch.
    pub batch: u16,
    /// Batches whose gradients are summed for a step.
    pub accumulate: u16,
    /// Tokens of a sequence; by default as many as the model reads.
    pub window: Option<usize>,
    /// The highest learning rate.
    pub lr: f64,
    /// Steps of linear warm-up.
    pub warmup: u32,
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
            steps: 1000,
            batch: 8,
            accumulate: 1,
            window: None,
            lr: 1e-3,
            warmup: 100,
            weight_decay: 0.1,
            clip: 1.0,
            dropout: None,
            repeat_fraction: 0.0,
            recompute: false,
            train_dtype: TrainDType::F32,
            eval_every: 100,
            val_fraction: 0.1,
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

    /// The config of a new model with this tokenizer.
    ///
    /// # Errors
    /// When the sizes do not fit one another.
    pub fn config(&self, tokenizer: &Tokenizer, implementation: Implementation) -> anyhow::Result<Config> {
        let Self { n_positions, n_embd, n_layer, n_head, .. } = *self;
        NewModel { n_positions, n_embd, n_layer, n_head }.config(tokenizer, implementation)
    }

    /// The trainer's options. `model` is the name of the model that is trained further.
    #[must_use]
    pub fn for_trainer(&self, model: Option<&str>, seed: u64) -> TrainOptions {
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
        options.train_dtype = self.train_dtype;
        options.eval_every = self.eval_every;
        options.seed = seed;
        options.model = model.map(str::to_owned);
        options
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
