//! [`Gpt2LMHeadModel`], the transformer with its output projection: logits are `x · lm_headᵀ`.

use crate::forward::{CausalLMOutput, ForwardArgs};
use crate::hooks::{PassHooks, Point};
use crate::inputs::check_targets;
use crate::model::embedding;
use crate::parameters::{LM_HEAD, PREFIX, Visitor, WPE, WTE};
use crate::training::Training;
use crate::{Config, Embedding, Gpt2Model, LmHead};
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// Returns `wte` itself if `head` holds the same numbers, so that the two share memory; otherwise `head`.
fn tied_if_equal(head: Tensor, wte: &Tensor) -> Result<Tensor> {
    let differing = head.ne(wte)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()?;
    Ok(if differing == 0 { wte.clone() } else { head })
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
        config.validate()?;
        let prefixed = vb.pp(PREFIX.trim_end_matches('.'));
        let inner = if prefixed.contains_tensor(WPE) { prefixed } else { vb.clone() };
        let (has_wte, has_head) = (inner.contains_tensor(WTE), vb.contains_tensor(LM_HEAD));
        let tied = config.tie_word_embeddings;
        let load_head = || embedding(&vb, LM_HEAD, config.vocab_size, config);
        let wte = if tied && has_head && !has_wte {
            load_head()?
        } else {
            embedding(&inner, WTE, config.vocab_size, config)?
        };
        let lm_head = if !tied {
            load_head()?
        } else if has_wte && has_head {
            tied_if_equal(load_head()?, &wte)?
        } else {
            wte.clone()
        };
        let (wte, lm_head) = if lm_head.id() == wte.id() {
            drop(lm_head); // so that nothing keeps the plain table once it is packed
            let table = Embedding::of_projection(wte)?;
            (table.clone(), LmHead::of(table))
        } else {
            (Embedding::new(wte)?, LmHead::new(lm_head)?)
        };
        let transformer = Gpt2Model::load_with_wte(inner, config, wte)?;
        Ok(Self { transformer, lm_head })
    }

    /// The config that the model was built with.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.transformer.config()
    }

    /// Whether `lm_head` and `wte` are one tensor.
    #[must_use]
    pub fn is_tied(&self) -> bool {
        self.lm_head.shares(&self.transformer.wte)
    }

    /// Runs the model over `input_ids`, which follow the tokens in the cache.
    ///
    /// # Shapes
    /// `input_ids` (B, T), any integer dtype -> see [`CausalLMOutput`]
    ///
    /// # Errors
    /// For an empty prompt, an id of V or above, more than N positions, shapes that do not fit, padding before a token
    /// without position ids, weights of a layer, head or query that does not exist, and errors from hooks.
    pub fn forward(&self, input_ids: &Tensor, args: ForwardArgs) -> Result<CausalLMOutput> {
        let (hooks, past, cached) =
            (args.hooks, args.cache.as_ref().map_or(0, |cache| cache.len()), args.cache.is_some());
        let transformer = self.transformer.forward(input_ids, args)?;
        let logits = self.lm_head.forward(&transformer.last_hidden_state)?; // (B, T, V)
        let logits = PassHooks { hooks, past, cached, padding: None }.pass(Point::Logits, logits)?;
        Ok(CausalLMOutput { logits, transformer })
    }

    /// The mean cross-entropy in nats of predicting `targets`; differentiable. The result is the [`cross_entropy`]
    /// of the logits, but in f32 on the CPU the logits, the largest tensors of a training step, are never all in
    /// memory at once (except in builds with `mkl` or `accelerate`).
    ///
    /// [`cross_entropy`]: crate::training::cross_entropy
    ///
    /// # Shapes
    /// `input_ids` (B, T), `targets` (B, T): the token that follows each -> scalar
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward), and targets that do not fit.
    pub fn loss(&self, input_ids: &Tensor, targets: &Tensor, training: Option<Training>) -> Result<Tensor> {
        check_targets(input_ids, targets)?;
        let output = self.transformer.forward(input_ids, ForwardArgs { training, ..Default::default() })?;
        self.lm_head.cross_entropy(&output.last_hidden_state, targets)
    }

    /// Visits every parameter, starting with the transformer's.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.transformer.visit(visitor);
        self.lm_head.visit(&mut visitor.pp("lm_head"));
    }
}
