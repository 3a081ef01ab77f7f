//! [`Gpt2Model`], the transformer, and [`Gpt2LMHeadModel`], the transformer with its output projection.
//!
//! `x = wte[ids] + wpe[positions]`, then L blocks, then `ln_f`; logits are `x · lm_headᵀ`.

pub use crate::forward::{CausalLMOutput, ChosenWeights, ForwardArgs, ModelOutput};
use crate::hooks::{Point, Run};
use crate::mask::causal_bias;
use crate::parameters::{LM_HEAD, WTE};
use crate::training::{Site, Training};
use crate::{Block, BlockArgs, Config, Conv1D, LayerNorm};
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use gpt2_kernels::attention::Chosen;

/// The transformer without its output projection.
#[derive(Debug, Clone)]
pub struct Gpt2Model {
    /// Token embeddings (V, C).
    pub wte: Tensor,
    /// Position embeddings (N, C).
    pub wpe: Tensor,
    /// The L blocks.
    pub h: Vec<Block>,
    /// After the last block.
    pub ln_f: LayerNorm,
    config: Config,
}

impl Gpt2Model {
    /// Loads the transformer from names without a prefix: `vb.pp("transformer")` where a file has one.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        config.validate()?;
        let wte = embedding(&vb, WTE, config.vocab_size, config)?;
        Self::load_with_wte(vb, config, wte)
    }

    fn load_with_wte(vb: VarBuilder, config: &Config, wte: Tensor) -> Result<Self> {
        let bias = causal_bias(config.n_positions, vb.device())?;
        Ok(Self {
            wte,
            wpe: embedding(&vb, "wpe.weight", config.n_positions, config)?,
            h: (0..config.n_layer)
                .map(|i| Block::load(vb.pp("h").pp(i), config, i, &bias))
                .collect::<Result<_>>()?,
            ln_f: LayerNorm::load(vb.pp("ln_f"), config.n_embd, config.layer_norm_epsilon)?
                .with_implementation(config.attn_implementation),
            config: config.clone(),
        })
    }

    /// The config that the model was built with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The dtype of the weights and of every activation between blocks.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.wte.dtype()
    }

    /// Runs the transformer over `input_ids`, after what the cache holds.
    ///
    /// # Shapes
    /// `input_ids` (B, T), any integer dtype -> see [`ModelOutput`]
    ///
    /// # Errors
    /// For an empty prompt, an id of V or above, more than N positions, shapes that do not fit, padding before a token
    /// without position ids, weights of a layer, head or query that is not there, and what a hook refuses.
    pub fn forward(&self, input_ids: &Tensor, args: ForwardArgs) -> Result<ModelOutput> {
        let ForwardArgs { position_ids, attention_mask, mut cache, .. } = args;
        let (b, t) = input_ids.dims2()?;
        if b == 0 || t == 0 {
            candle_core::bail!("input_ids {:?}: a prompt needs at least one token", input_ids.dims())
        }
        if let Some(cache) = cache.as_deref_mut() {
            cache.check_room(b, t, self.config.n_layer)?;
        }
        let past = cache.as_ref().map_or(0, |c| c.len());
        let s = past + t;
        let n = self.config.n_positions;
        if s > n {
            candle_core::bail!("{s} tokens are more than the model's n_positions = {n}; shorten the prompt")
        }
        let padding = attention_mask.map(|mask| self.padding_mask(mask, b, s)).transpose()?;
        if let (Some(padding), None) = (&padding, position_ids) {
            refuse_padding_before_a_token(padding)?;
        }

        let layers = self.h.len();
        if let Some(beyond) = args.weights.iter().find(|chosen| chosen.layer >= layers) {
            candle_core::bail!("weights of layer {}: the model has layers 0 to {}", beyond.layer, layers - 1)
        }
        let run = Run { hooks: args.hooks, past, cached: cache.is_some(), padding: padding.as_ref() };
        let everything =
            args.output_hidden_states || args.output_attention_outputs || run.touches(layers - 1);
        let last_alone = args.last_logits_only && !everything;
        let mut x = self.drop(self.embed(input_ids, position_ids, past)?, args.training)?; // (B, T, C)
        let (mut hidden_states, mut attentions, mut attention_outputs) = (vec![], vec![], vec![]);
        let (mut weights, mut summaries) = (vec![None; args.weights.len()], vec![]);
        for (i, block) in self.h.iter().enumerate() {
            let layer_cache = cache.as_deref_mut().and_then(|c| c.layer_mut(i));
            let places: Vec<usize> = (0..weights.len()).filter(|&n| args.weights[n].layer == i).collect();
            let mut chosen: Vec<Chosen> = places.iter().map(|&n| args.weights[n].of.clone()).collect();
            chosen.extend(args.output_attentions.then(Chosen::default));
            let last_position_only = last_alone && i + 1 == layers;
            let parts = BlockArgs {
                weights: &chosen,
                output_summary: args.output_summaries,
                output_attention_outputs: args.output_attention_outputs,
                last_position_only,
                training: args.training,
                hooks: args.hooks.filter(|_| !last_position_only),
            };
            let mut done = block.forward(&x, padding.as_ref(), layer_cache, parts)?;
            let before = std::mem::replace(&mut x, done.hidden_state); // (B, T, C)
            if args.output_hidden_states {
                hidden_states.push(before);
            }
            attention_outputs.extend(done.attention_output);
            attentions.extend(done.weights.drain(places.len()..));
            places.into_iter().zip(done.weights).for_each(|(n, found)| weights[n] = Some(found));
            summaries.extend(done.summary);
        }
        let normed = run.pass(Point::LnFinal, self.ln_f.forward(&x)?)?;
        if let Some(cache) = cache {
            cache.advance(t);
        }
        if args.output_hidden_states {
            hidden_states.push(normed.clone());
        }
        let rows = normed.dim(1)?;
        let last_hidden_state = if args.last_logits_only { normed.narrow(1, rows - 1, 1)? } else { normed };
        let weights = weights.into_iter().flatten().collect();
        Ok(ModelOutput {
            last_hidden_state,
            hidden_states,
            attentions,
            weights,
            summaries,
            attention_outputs,
        })
    }

    /// What the first block reads, from position 0 on: (B, T) -> (B, T, C)
    pub(crate) fn embedded(&self, input_ids: &Tensor, training: Option<Training>) -> Result<Tensor> {
        let (t, n) = (input_ids.dim(1)?, self.config.n_positions);
        if t == 0 || t > n {
            candle_core::bail!("{t} tokens, expected 1 to the model's n_positions = {n}")
        }
        self.drop(self.embed(input_ids, None, 0)?, training)
    }

    fn drop(&self, x: Tensor, training: Option<Training>) -> Result<Tensor> {
        let Some(training) = training else { return Ok(x) };
        training.dropout(self.config.embd_pdrop, 0, Site::Embeddings)?.apply(&x)
    }

    /// `wte[ids] + wpe[positions]`: (B, T) -> (B, T, C)
    fn embed(&self, input_ids: &Tensor, position_ids: Option<&Tensor>, past: usize) -> Result<Tensor> {
        let (b, t) = input_ids.dims2()?;
        let (v, n, c) = (self.config.vocab_size, self.config.n_positions, self.config.n_embd);
        let input_ids = check_below("token id", input_ids, v, "vocab_size")?;
        let tokens = self.wte.index_select(&input_ids, 0)?.reshape((b, t, c))?;
        let Some(ids) = position_ids else {
            return tokens.broadcast_add(&self.wpe.narrow(0, past, t)?); // (T, C) onto each row
        };
        let (rows, columns) = ids.dims2()?;
        if columns != t || (rows != 1 && rows != b) {
            candle_core::bail!("position_ids {:?} must be [{b}, {t}] or [1, {t}]", ids.dims())
        }
        let ids = check_below("position", ids, n, "n_positions")?;
        let positions = self.wpe.index_select(&ids, 0)?.reshape((rows, t, c))?;
        tokens.broadcast_add(&positions)
    }

    /// A mask of any integer dtype as the u8 mask (B, S) that attention takes.
    fn padding_mask(&self, mask: &Tensor, b: usize, s: usize) -> Result<Tensor> {
        if mask.dims() != [b, s] || mask.dtype().is_float() {
            candle_core::bail!(
                "attention_mask must be integers [{b}, {s}] (1 = visible) over the cache and the new tokens, \
                 got {:?} {:?}",
                mask.dtype(),
                mask.dims()
            )
        }
        mask.ne(&mask.zeros_like()?)?.to_device(self.wte.device())
    }
}

/// A table of `rows` vectors of width C, initially normal.
fn embedding(vb: &VarBuilder, name: &str, rows: usize, config: &Config) -> Result<Tensor> {
    let normal = Init::Randn { mean: 0., stdev: config.initializer_range };
    vb.get_with_hints((rows, config.n_embd), name, normal)
}

/// `wte` itself where `head` holds the same numbers, so that the two share their memory; else `head`.
fn tied_if_equal(head: Tensor, wte: &Tensor) -> Result<Tensor> {
    let differing = head.ne(wte)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()?;
    Ok(if differing == 0 { wte.clone() } else { head })
}

/// The ids as a flat u32 tensor, which every device can gather by; refuses the first that is not in
/// `0..limit`.
fn check_below(what: &str, ids: &Tensor, limit: usize, limit_name: &str) -> Result<Tensor> {
    if ids.dtype().is_float() {
        candle_core::bail!("{what}s must be integers, got {:?}", ids.dtype())
    }
    let flat = ids.flatten_all()?;
    let wide = flat.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    match wide.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= limit)) {
        Some(id) => candle_core::bail!("{what} {id} is not in 0..{limit} ({limit_name})"),
        None => flat.to_dtype(DType::U32),
    }
}

/// Refuses a mask (B, S) with padding before a visible token: default positions count columns, so that the row would
/// not give what it gives alone.
fn refuse_padding_before_a_token(mask: &Tensor) -> Result<()> {
    for (i, row) in mask.to_vec2::<u8>()?.iter().enumerate() {
        let visible = row.iter().rposition(|&visible| visible != 0).map_or(0, |last| last + 1);
        if row[..visible].contains(&0) {
            candle_core::bail!(
                "attention_mask: row {i} has padding before a visible token, and there are no position_ids; give \
                 gpt2_model::mask::position_ids(mask), of which the last T columns belong to T new tokens"
            )
        }
    }
    Ok(())
}

/// Refuses targets that are not one for each id.
pub(crate) fn check_targets(input_ids: &Tensor, targets: &Tensor) -> Result<()> {
    if input_ids.dims() != targets.dims() {
        candle_core::bail!(
            "targets {:?} must be of the shape of input_ids {:?}",
            targets.dims(),
            input_ids.dims()
        )
    }
    Ok(())
}

/// The language model: the transformer and `lm_head`.
#[derive(Debug, Clone)]
pub struct Gpt2LMHeadModel {
    /// The transformer.
    pub transformer: Gpt2Model,
    /// The output projection (V, C); the same tensor as `transformer.wte` where the two are tied.
    pub lm_head: Tensor,
}

impl Gpt2LMHeadModel {
    /// Loads the model from names with the prefix `transformer.` or without it.
    ///
    /// Checkpoints differ in what they save of a tied embedding. Where only one of `wte.weight` and
    /// `lm_head.weight` is there, it serves as both; where both are there and differ, each is used, as
    /// transformers has it.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        config.validate()?;
        let prefixed = vb.pp("transformer");
        let inner = if prefixed.contains_tensor("wpe.weight") { prefixed } else { vb.clone() };
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
        self.lm_head.id() == self.transformer.wte.id()
    }

    /// Runs the model over `input_ids`, after what the cache holds.
    ///
    /// # Shapes
    /// `input_ids` (B, T), any integer dtype -> see [`CausalLMOutput`]
    ///
    /// # Errors
    /// For an empty prompt, an id of V or above, more than N positions, shapes that do not fit, padding before a token
    /// without position ids, weights of a layer, head or query that is not there, and what a hook refuses.
    pub fn forward(&self, input_ids: &Tensor, args: ForwardArgs) -> Result<CausalLMOutput> {
        let (hooks, past, cached) =
            (args.hooks, args.cache.as_ref().map_or(0, |cache| cache.len()), args.cache.is_some());
        let output = self.transformer.forward(input_ids, args)?;
        let logits = gpt2_kernels::linear_transposed(&output.last_hidden_state, &self.lm_head)?; // (B, T, V)
        let logits = Run { hooks, past, cached, padding: None }.pass(Point::Logits, logits)?;
        Ok(CausalLMOutput {
            logits,
            hidden_states: output.hidden_states,
            attentions: output.attentions,
            weights: output.weights,
            summaries: output.summaries,
            attention_outputs: output.attention_outputs,
        })
    }

    /// The mean cross-entropy in nats of predicting `targets`; differentiable. As [`cross_entropy`] of the logits,
    /// which in f32 on the CPU are never held together (but in builds with `mkl` or `accelerate`): they are the
    /// largest tensors of a training step.
    ///
    /// [`cross_entropy`]: crate::training::cross_entropy
    ///
    /// # Shapes
    /// `input_ids` (B, T), `targets` (B, T): the token that follows each -> scalar
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and for targets that do not fit.
    pub fn loss(&self, input_ids: &Tensor, targets: &Tensor, training: Option<Training>) -> Result<Tensor> {
        check_targets(input_ids, targets)?;
        let output = self.transformer.forward(input_ids, ForwardArgs { training, ..Default::default() })?;
        gpt2_kernels::linear_cross_entropy(&output.last_hidden_state, &self.lm_head, targets)
    }

    /// Every parameter under its name in [`Config::parameters`], in that order: what a checkpoint saves.
    /// The `bias` triangle is a buffer, not a parameter, and is not among them.
    #[must_use]
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let model = &self.transformer;
        let blocks = model.h.iter().flat_map(|block| {
            let norm = |n: &LayerNorm| [n.weight.clone(), n.bias.clone()];
            let conv = |c: &Conv1D| [c.weight.clone(), c.bias.clone()];
            [
                norm(&block.ln_1),
                conv(&block.attn.c_attn),
                conv(&block.attn.c_proj),
                norm(&block.ln_2),
                conv(&block.mlp.c_fc),
                conv(&block.mlp.c_proj),
            ]
            .into_iter()
            .flatten()
        });
        let tensors = [model.wte.clone(), model.wpe.clone()].into_iter().chain(blocks).chain([
            model.ln_f.weight.clone(),
            model.ln_f.bias.clone(),
            self.lm_head.clone(),
        ]);
        // The head is left out where it is `wte`, whatever the file that was loaded said.
        let config = Config { tie_word_embeddings: self.is_tied(), ..self.config().clone() };
        config.parameters().into_iter().map(|p| p.name).zip(tensors).collect()
    }
}
