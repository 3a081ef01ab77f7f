//! [`Gpt2Model`], the transformer: `x = wte[ids] + wpe[positions]`, then L blocks, then `ln_f`.

use crate::cross_attention::Encoder;
use crate::forward::{ForwardArgs, ModelOutput};
use crate::hooks::{PassHooks, Point};
use crate::inputs::{check_below, check_encoder, padding_mask, refuse_padding_before_a_token};
use crate::loading::{Loading, WeightSource};
use crate::parameters::{Role, Visitor, WPE, WTE};
use crate::training::{Site, Training, dropout};
use crate::weights_by_layer::WeightsByLayer;
use crate::{Block, Config, Embedding, LayerNorm, Pass};
use candle_core::{DType, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// The transformer without its output projection.
#[derive(Debug, Clone)]
pub struct Gpt2Model {
    /// Token embeddings (V, C).
    pub wte: Embedding,
    /// Position embeddings (N, C).
    pub wpe: Tensor,
    /// The L blocks.
    pub h: Vec<Block>,
    /// The layer norm after the last block.
    pub ln_f: LayerNorm,
    config: Config,
}

impl Gpt2Model {
    /// Loads the transformer from names without a prefix; pass `vb.pp("transformer")` if the file's names have one.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        config.validate()?;
        let wte = embedding(&vb, WTE, config.vocab_size, config)?;
        Self::load_with_wte(vb, config, Embedding::new(wte)?, &|_, _| Ok(None))
    }

    pub(crate) fn load_with_wte(
        vb: VarBuilder,
        config: &Config,
        wte: Embedding,
        weights: &WeightSource,
    ) -> Result<Self> {
        let wpe = embedding(&vb, WPE, config.n_positions, config)?;
        let root = Loading::new(vb, config, 0).with_weights(weights);
        let block = |i| Block::load_at(&root.pp("h").pp(i).of_layer(i));
        Ok(Self {
            wte,
            wpe,
            h: (0..config.n_layer).map(block).collect::<Result<_>>()?,
            ln_f: root.layer_norm("ln_f")?,
            config: config.clone(),
        })
    }

    /// Visits every parameter of the transformer.
    pub fn visit(&self, visitor: &mut Visitor) {
        visitor.weight(WTE, Role::TokenEmbedding, &self.wte.weight);
        visitor.parameter(WPE, Role::PositionEmbedding, &self.wpe);
        for (i, block) in self.h.iter().enumerate() {
            block.visit(&mut visitor.pp("h").pp(i));
        }
        self.ln_f.visit(&mut visitor.pp("ln_f"));
    }

    /// The config that the model was built with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn set_dropout(&mut self, rate: f64) {
        let config = &mut self.config;
        (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) = (rate, rate, rate);
        for block in &mut self.h {
            block.attn.set_dropout(rate);
            block.mlp.set_dropout(rate);
            block.crossattention.iter_mut().for_each(|cross| cross.set_dropout(rate));
        }
    }

    /// The dtype of every activation between blocks. Weights may be held in another, see [`crate::linear::Weight`].
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.wpe.dtype()
    }

    /// Runs the transformer over `input_ids`, which follow the tokens in the cache.
    ///
    /// # Shapes
    /// `input_ids` (B, T), any integer dtype -> see [`ModelOutput`]
    ///
    /// # Errors
    /// For an empty prompt, an id of V or above, more than N positions, shapes that do not fit, padding before a token
    /// without position ids, weights of a layer, head or query that does not exist, and errors from hooks.
    pub fn forward(&self, input_ids: &Tensor, args: ForwardArgs) -> Result<ModelOutput> {
        let ForwardArgs { position_ids, attention_mask, document_starts, mut cache, .. } = args;
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
        let device = self.wte.device();
        let over = "the cache and the new tokens";
        let padding = attention_mask.map(|mask| padding_mask(mask, [b, s], over, device)).transpose()?;
        if let (Some(padding), None) = (&padding, position_ids) {
            refuse_padding_before_a_token(padding)?;
        }

        if document_starts.is_some() && cache.is_some() {
            candle_core::bail!("document_starts cannot be combined with a cache")
        }
        let positions = document_starts.map(positions_in_documents).transpose()?;
        let position_ids = position_ids.or(positions.as_ref());

        let layers = self.h.len();
        let mut weights = WeightsByLayer::new(args.weights, args.output_attentions, layers)?;
        let all_cross = args.output_attentions && args.encoder.is_some();
        let mut cross_weights = WeightsByLayer::new(args.cross_weights, all_cross, layers)?;
        let encoder_mask = args.encoder.map(|encoder| self.encoder_mask(encoder, b)).transpose()?.flatten();
        let encoder = |encoder| Encoder { attention_mask: encoder_mask.as_ref(), ..encoder };
        let hooks = PassHooks { hooks: args.hooks, past, cached: cache.is_some(), padding: padding.as_ref() };
        let everything = args.output_hidden_states
            || args.output_attention_outputs
            || !cross_weights.of_layer(layers - 1).is_empty()
            || hooks.touches(layers - 1);
        let last_alone = args.last_logits_only && !everything;
        let mut x = self.drop(self.embed(input_ids, position_ids, past, hooks)?, args.training)?; // (B, T, C)
        let (mut hidden_states, mut attention_outputs) = (vec![], vec![]);
        let mut summaries = vec![];
        let pass = Pass {
            padding_mask: padding.as_ref(),
            document_starts,
            encoder: args.encoder.map(encoder),
            training: args.training,
            output_summary: args.output_summaries,
            output_attention_outputs: args.output_attention_outputs,
            ..Pass::default()
        };
        for (i, block) in self.h.iter().enumerate() {
            let layer_cache = cache.as_deref_mut().and_then(|c| c.layer_mut(i));
            let (chosen, chosen_cross) = (weights.of_layer(i), cross_weights.of_layer(i));
            let last_position_only = last_alone && i + 1 == layers;
            let hooks = args.hooks.filter(|_| !last_position_only);
            let pass = Pass {
                cache: layer_cache,
                weights: &chosen,
                cross_weights: &chosen_cross,
                hooks,
                last_position_only,
                ..pass
            };
            let done = block.forward(&x, pass)?;
            let before = std::mem::replace(&mut x, done.hidden_state); // (B, T, C)
            if args.output_hidden_states {
                hidden_states.push(before);
            }
            attention_outputs.extend(done.attention_output);
            weights.take(i, done.weights);
            cross_weights.take(i, done.cross_weights);
            summaries.extend(done.summary);
        }
        let points = [Point::LnFinalScale, Point::LnFinalNormalized, Point::LnFinal];
        let normed = self.ln_f.forward_hooked(&x, points, hooks)?;
        if let Some(cache) = cache {
            cache.advance(t);
        }
        if args.output_hidden_states {
            hidden_states.push(normed.clone());
        }
        let rows = normed.dim(1)?;
        let last_hidden_state = if args.last_logits_only { normed.narrow(1, rows - 1, 1)? } else { normed };
        let ((attentions, weights), (cross_attentions, cross_weights)) =
            (weights.finish(), cross_weights.finish());
        Ok(ModelOutput {
            last_hidden_state,
            hidden_states,
            attentions,
            weights,
            cross_attentions,
            cross_weights,
            summaries,
            attention_outputs,
        })
    }

    /// The input of the first block, from position 0 on, or from the start of each document: (B, T) -> (B, T, C)
    pub(crate) fn embedded(
        &self,
        input_ids: &Tensor,
        document_starts: Option<&Tensor>,
        training: Option<Training>,
        hooks: PassHooks,
    ) -> Result<Tensor> {
        let (t, n) = (input_ids.dim(1)?, self.config.n_positions);
        if t == 0 || t > n {
            candle_core::bail!("{t} tokens, expected 1 to the model's n_positions = {n}")
        }
        let positions = document_starts.map(positions_in_documents).transpose()?;
        self.drop(self.embed(input_ids, positions.as_ref(), 0, hooks)?, training)
    }

    fn drop(&self, x: Tensor, training: Option<Training>) -> Result<Tensor> {
        match dropout(training, self.config.embd_pdrop, 0, Site::Embeddings)? {
            Some(dropout) => dropout.apply(&x),
            None => Ok(x),
        }
    }

    /// `wte[ids] + wpe[positions]`: (B, T) -> (B, T, C)
    fn embed(
        &self,
        input_ids: &Tensor,
        position_ids: Option<&Tensor>,
        past: usize,
        hooks: PassHooks,
    ) -> Result<Tensor> {
        let (b, t) = input_ids.dims2()?;
        let (v, n, c) = (self.config.vocab_size, self.config.n_positions, self.config.n_embd);
        let input_ids = check_below("token id", input_ids, v, "vocab_size")?;
        let tokens = hooks.pass(Point::Embed, self.wte.vectors(&input_ids)?.reshape((b, t, c))?)?;
        let add = |positions: &Tensor| {
            // (1 or B, T, C) onto each row
            let for_each_row = || positions.broadcast_as((b, t, c))?.contiguous();
            tokens.broadcast_add(
                &hooks.read(Point::PosEmbed, for_each_row)?.unwrap_or_else(|| positions.clone()),
            )
        };
        let Some(ids) = position_ids else { return add(&self.wpe.narrow(0, past, t)?.unsqueeze(0)?) };
        let (rows, columns) = ids.dims2()?;
        if columns != t || (rows != 1 && rows != b) {
            candle_core::bail!("position_ids {:?} must be [{b}, {t}] or [1, {t}]", ids.dims())
        }
        let ids = check_below("position", ids, n, "n_positions")?;
        add(&self.wpe.index_select(&ids, 0)?.reshape((rows, t, c))?)
    }

    /// The mask of the encoder's padding as u8 (B, S), if there is one.
    fn encoder_mask(&self, encoder: Encoder, b: usize) -> Result<Option<Tensor>> {
        check_encoder(encoder, (b, self.config.n_embd), self.dtype())?;
        let shape = [b, encoder.hidden_states.dim(1)?];
        let over = "the encoder's positions";
        encoder.attention_mask.map(|mask| padding_mask(mask, shape, over, self.wte.device())).transpose()
    }
}

/// Each position counted from the start of its document: (B, T) -> (B, T)
fn positions_in_documents(starts: &Tensor) -> Result<Tensor> {
    #[allow(clippy::cast_possible_truncation)] // a length
    let columns = Tensor::arange(0, starts.dim(1)? as u32, starts.device())?;
    if starts.broadcast_gt(&columns)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? > 0 {
        candle_core::bail!("document_starts: a position comes before the start of its document")
    }
    columns.broadcast_sub(starts)
}

/// A table of `rows` vectors of width C, initially drawn from a normal distribution.
pub(crate) fn embedding(vb: &VarBuilder, name: &str, rows: usize, config: &Config) -> Result<Tensor> {
    let normal = Init::Randn { mean: 0., stdev: config.initializer_range };
    vb.get_with_hints((rows, config.n_embd), name, normal)
}
