//! [`Gpt2LMHeadModel`], the transformer with its output projection: logits are `x · lm_headᵀ`.

use super::args_and_outputs::{CausalLMOutput, ForwardArgs, ModelOutput};
use super::checked_inputs::check_targets;
use super::layers::embedding::Embedding;
use super::layers::linear::{BlockFormat, Linear, Weight, WeightLayout};
use super::layers::lm_head::{LmHead, cross_entropy_of_rows};
use super::layers::loading::{WeightSource, given};
use super::layers::parameters::{LM_HEAD, PREFIX, Visitor, WPE, WTE};
use super::model::{Gpt2Model, embedding};
use crate::config::Config;
use crate::hooks::{PassHooks, Point};
use crate::learn::training::TrainingBatch;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// Whether the two tables hold the same numbers.
fn equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    Ok(a.ne(b)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? == 0)
}

/// The language model: the transformer and `lm_head`.
#[derive(Debug, Clone)]
pub struct Gpt2LMHeadModel {
    /// The transformer.
    pub transformer: Gpt2Model,
    /// The output projection, from C to V; if it is tied, its table is `transformer.wte` itself.
    pub lm_head: LmHead,
}

impl Gpt2LMHeadModel {
    /// Loads the model from names with or without the prefix `transformer.`.
    ///
    /// Checkpoints differ in how they save a tied embedding. If only one of `wte.weight` and
    /// `lm_head.weight` exists, it serves as both; if both exist and differ, each is used, as in
    /// transformers.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Self::load_with(vb, config, &|_, _| Ok(None))
    }

    /// Like [`load`](Self::load), but the weights that `weights` gives replace those of `vb`. Everything else comes from
    /// `vb`, in the dtype of the activations. Frozen weights need activations in f32 or in their own half-precision
    /// dtype.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load) and of `weights`.
    pub fn load_with(vb: VarBuilder, config: &Config, weights: &WeightSource) -> Result<Self> {
        config.validate()?;
        let prefixed = vb.pp(PREFIX.trim_end_matches('.'));
        let inner = if prefixed.contains_tensor(WPE) { prefixed } else { vb.clone() };
        let has_wte = inner.contains_tensor(WTE);
        let has_head = vb.contains_tensor(LM_HEAD);
        let plain = |name: &str| {
            let vb = if name == LM_HEAD { &vb } else { &inner };
            embedding(vb, name, config.vocab_size, config)
        };
        let tied =
            config.tie_word_embeddings && (!has_wte || !has_head || equal(&plain(LM_HEAD)?, &plain(WTE)?)?);
        let table = |name: &str, projects: bool| {
            let given = given(weights, name, (config.n_embd, config.vocab_size))?;
            let weight = match given {
                Some(weight) => weight,
                None if projects => Weight::new(plain(name)?, WeightLayout::OutIn)?,
                None => Weight::plain(plain(name)?, WeightLayout::OutIn)?,
            };
            Ok::<_, candle_core::Error>(weight.with_implementation(config.attn_implementation))
        };
        let wte = table(if tied && has_head && !has_wte { LM_HEAD } else { WTE }, tied)?;
        let head = if tied { wte.clone() } else { table(LM_HEAD, true)? };
        let wte = Embedding::from_weight(wte, vb.dtype());
        let transformer = Gpt2Model::load_with_wte(inner, config, wte, weights)?;
        Ok(Self { transformer, lm_head: LmHead::from_weight(head) })
    }

    /// Quantizes every linear layer, the token embedding and the output projection; biases, layer norms and position
    /// embeddings stay as they are. The model computes in f32 on the CPU.
    ///
    /// # Errors
    /// When the model is not in f32 on the CPU, or blocks of the format do not divide the inputs of a layer.
    pub fn quantize(mut self, format: BlockFormat) -> Result<Self> {
        let dtype = self.dtype();
        let device = self.device();
        if dtype != DType::F32 || !device.is_cpu() {
            candle_core::bail!(
                "quantized layers compute in f32 on the CPU, and this model is in {} on {:?}; load it in f32 on the CPU",
                dtype.as_str(),
                device.location()
            )
        }
        let tied = self.is_tied();
        let layout = self.config().weight_layout();
        for block in &mut self.transformer.h {
            for (_, layer) in block.linear_layers_mut() {
                let weight = Weight::quantize(&layout.in_out(&layer.weight()?)?, layout, format)?;
                *layer = Linear::new(weight, layer.bias().cloned())?.into();
            }
        }
        let table = |table: Tensor| Weight::quantize(&table, WeightLayout::OutIn, format);
        let wte = table(self.transformer.wte.weight()?)?;
        let head = if tied { wte.clone() } else { table(self.lm_head.weight()?)? };
        self.transformer.wte = Embedding::from_weight(wte, self.dtype());
        self.lm_head = self.lm_head.with_weight(head)?;
        Ok(self)
    }

    /// Rounds the factors of all products with weights to bf16, forward and backward, to train in less time: weights, sums, gradients,
    /// norms, softmax and loss stay in f32, and so do logits without a loss. See [`Weight::with_bf16_products`].
    ///
    /// # Errors
    /// When a linear layer is not GPT-2's own, has an adapter or stores its weight as (out, in), the projection to logits has a bias, and the errors of
    /// [`Weight::with_bf16_products`]: the weights are variables in f32 on the CPU, which has instructions for such products.
    pub fn with_bf16_products(mut self) -> Result<Self> {
        for (i, block) in self.transformer.h.iter_mut().enumerate() {
            for (name, layer) in block.linear_layers_mut() {
                let own = layer.layer().weight().filter(|weight| weight.layout() == WeightLayout::InOut);
                let Some(weight) = own.filter(|_| layer.updates().is_empty()) else {
                    candle_core::bail!(
                        "h.{i}.{name}: products in bf16 need a plain weight (in, out), without an adapter"
                    )
                };
                let weight = weight.clone().with_bf16_products()?;
                *layer = Linear::new(weight, layer.bias().cloned())?.into();
            }
        }
        let Some(head) = self.lm_head.own_weight() else {
            candle_core::bail!("lm_head: products in bf16 need a plain weight without a bias")
        };
        self.lm_head = LmHead::from_weight(head.clone().with_bf16_products()?);
        Ok(self)
    }

    /// Sets the rate of dropout in training, on embeddings, attention weights and residuals.
    #[must_use]
    pub fn with_dropout(mut self, rate: f64) -> Self {
        self.transformer.set_dropout(rate);
        self
    }

    /// The config that the model was built with.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.transformer.config()
    }

    /// The device of the weights.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.transformer.device()
    }

    /// The dtype of every activation between blocks. Weights may be held in another, see [`crate::linear::Weight`].
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.transformer.dtype()
    }

    /// Token ids as a batch of one text, on the model's device.
    ///
    /// # Shapes
    /// `ids` of T tokens -> u32 (1, T)
    ///
    /// # Errors
    /// When the device fails.
    pub fn ids(&self, ids: &[u32]) -> Result<Tensor> {
        Tensor::new(ids, self.device())?.unsqueeze(0)
    }

    /// Whether `lm_head` and `wte` are one tensor.
    #[must_use]
    pub fn is_tied(&self) -> bool {
        self.lm_head.is_tied_to(&self.transformer.wte)
    }

    /// Runs the model over `input_ids`, which follow the tokens in the cache. They may be in the memory of the CPU, wherever the model is:
    /// then no GPU has to be waited for to check them.
    ///
    /// # Shapes
    /// `input_ids` (B, T), any integer dtype -> see [`CausalLMOutput`]
    ///
    /// # Errors
    /// For an empty prompt, an id of V or above, more than N positions, shapes that do not fit, padding before a token
    /// without position ids, weights of a layer, head or query that does not exist, and errors from hooks.
    pub fn forward(&self, input_ids: &Tensor, args: ForwardArgs) -> Result<CausalLMOutput> {
        let (past, cached) = args.cache.as_ref().map_or((0, false), |cache| (cache.len(), true));
        let hooks = PassHooks { hooks: args.hooks, past, cached, padding: None };
        let transformer = self.transformer.forward(input_ids, args)?;
        let logits = self.lm_head.forward(&transformer.last_hidden_state)?; // (B, T, V)
        Ok(CausalLMOutput { logits: hooks.pass(Point::Logits, logits)?, transformer })
    }

    /// The output of the transformer, for a caller that needs no logits: they are computed only if a hook wants them.
    ///
    /// # Shapes
    /// `input_ids` (B, T), any integer dtype -> see [`ModelOutput`]
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn transform(&self, input_ids: &Tensor, args: ForwardArgs) -> Result<ModelOutput> {
        if args.hooks.is_some_and(|hooks| hooks.wants(Point::Logits)) {
            return Ok(self.forward(input_ids, args)?.transformer);
        }
        self.transformer.forward(input_ids, args)
    }

    /// The mean cross-entropy in nats of predicting the batch's targets; differentiable. The result is the [`cross_entropy`]
    /// of the logits, but in f32 on the CPU the logits, the largest tensors of a training step, are in memory for 512 positions at
    /// a time (except in builds with `mkl` or `accelerate`).
    ///
    /// `args` says what else the pass depends on: dropout ([`ForwardArgs::training`]), hooks, or an encoder's hidden states,
    /// which get a gradient, and without which the parameters of cross-attention get none. Where the batch's documents begin,
    /// the batch alone says.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use gpt2_model::training::{Training, TrainingBatch};
    /// use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// let config = Config { vocab_size: 9, n_positions: 8, n_embd: 8, n_layer: 1, n_head: 2, ..Config::gpt2() };
    /// let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
    /// let ids = Tensor::new(&[[1u32, 2, 3, 4, 5]], &Device::Cpu)?;
    /// let batch = TrainingBatch::new(ids.narrow(1, 0, 4)?, ids.narrow(1, 1, 4)?);
    /// let loss = model.loss(&batch, ForwardArgs::default())?; // without dropout, as in validation
    /// let training = Some(Training { seed: 0, step: 0 });
    /// let dropped = model.loss(&batch, ForwardArgs { training, ..ForwardArgs::default() })?;
    /// assert!(loss.to_scalar::<f32>()? != dropped.to_scalar::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`cross_entropy`]: crate::training::cross_entropy
    ///
    /// # Shapes
    /// `batch` (B, T) -> scalar
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward), and targets that do not fit.
    pub fn loss(&self, batch: &TrainingBatch, args: ForwardArgs) -> Result<Tensor> {
        check_targets(&batch.input_ids, &batch.targets)?;
        let args = ForwardArgs { document_starts: batch.starts(), ..args };
        if args.hooks.is_some_and(|hooks| hooks.wants(Point::Logits)) {
            let (logits, targets) = batch.learned(&self.forward(&batch.input_ids, args)?.logits)?;
            return cross_entropy_of_rows(&logits, &targets);
        }
        let output = self.transformer.forward(&batch.input_ids, args)?;
        let (x, targets) = batch.learned(&output.last_hidden_state)?;
        self.lm_head.cross_entropy(&x, &targets)
    }

    /// Visits every parameter, starting with the transformer's.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.transformer.visit(visitor);
        self.lm_head.visit(&mut visitor.pp("lm_head"));
    }
}
