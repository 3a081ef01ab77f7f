//! [`Gpt2Model`], the transformer: `x = wte[ids] + wpe[positions]`, then L blocks, then `ln_f`.

use super::args_and_outputs::{Collected, ForwardArgs, ModelOutput};
use super::attention::mask::positions_in_documents;
use super::attention::pass::Pass;
use super::block::Block;
use super::checked_inputs::{BlockInputs, check_below};
use super::layers::embedding::Embedding;
use super::layers::layer_norm::{LayerNorm, Stream};
use super::layers::loading::{Loading, WeightSource};
use super::layers::parameters::{Role, Visitor, WPE, WTE};
use crate::config::Config;
use crate::hooks::{PassHooks, Point};
use crate::learn::training::{DropoutSite, Training, dropout};
use candle_core::{DType, Device, Result, Tensor};
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
        let root = Loading::new(vb, config, 0)?.with_weights(weights);
        let block = |i| Block::load_at(&root.pp("h").pp(i).of_layer(i));
        Ok(Self {
            wte,
            wpe,
            h: (0..config.n_layer).map(block).collect::<Result<_>>()?,
            ln_f: root.layer_norm("ln_f")?,
            config: config.clone(),
        })
    }

    /// Runs the transformer over `input_ids`, which follow the tokens in the cache.
    ///
    /// # Shapes
    /// `input_ids` (B, T), any integer dtype -> see [`ModelOutput`]
    ///
    /// # Errors
    /// For an empty prompt, an id of V or above, more than N positions, shapes that do not fit, padding before a token
    /// without position ids, weights of a layer, head or query that does not exist, and errors from hooks.
    pub fn forward(&self, input_ids: &Tensor, mut args: ForwardArgs) -> Result<ModelOutput> {
        let inputs = BlockInputs::new(input_ids, &mut args, &self.config, &self.wpe)?;
        let mut outputs = Collected::new(&args, self.h.len())?;
        let hooks = inputs.hooks(&args);
        let last = self.h.len() - 1;
        let last_alone = args.last_logits_only && !outputs.cover_all_positions(last) && !hooks.touches(last);

        let first = args.start.map_or(0, |start| start.layer);
        refuse_blocks_below(&args, first)?;
        let x = if let Some(start) = args.start {
            start.checked(input_ids, &self.wpe, self.h.len())?
        } else {
            let x = self.embed(input_ids, inputs.positions.as_ref(), inputs.past, hooks)?;
            self.drop(x, args.training)?
        }; // (B, T, C)
        let mut stream = Stream::from(x);
        for (layer, block) in self.h.iter().enumerate().skip(first) {
            let last_position_only = last_alone && layer == last;
            let (weights, cross_weights) =
                (outputs.weights.of_layer(layer), outputs.cross_weights.of_layer(layer));
            let pass = Pass {
                padding_mask: inputs.padding.as_ref(),
                document_starts: args.document_starts,
                encoder: inputs.encoder(&args),
                cache: args.cache.as_deref_mut().and_then(|cache| cache.layers.get_mut(layer)),
                training: args.training,
                hooks: args.hooks.filter(|_| !last_position_only),
                weights: &weights,
                cross_weights: &cross_weights,
                output_summary: args.output_summaries,
                output_attention_outputs: args.output_attention_outputs,
                last_position_only,
            };
            let before = stream.x.clone();
            let (output, normed) = block.forward_between(stream, pass, self.norm_after(layer, hooks))?;
            let x = outputs.take(layer, before, output); // (B, T, C), or (B, 1, C) after the last block
            stream = Stream { x, normed };
        }
        let x = self.ln_f.forward_hooked(&stream.x, stream.normed, Point::LN_F, hooks)?;
        if let Some(cache) = args.cache {
            cache.advance(input_ids.dim(1)?);
        }
        outputs.finish(x)
    }

    /// The norm that reads the stream after a block, unless a hook reads or changes the stream in between.
    fn norm_after(&self, layer: usize, hooks: PassHooks) -> Option<&LayerNorm> {
        let next = layer + 1;
        let (norm, [scale, normalized, _], first) = match self.h.get(next) {
            Some(block) => (&block.ln_1, Point::ln_1(next), Point::ResidPre(next)),
            None => (&self.ln_f, Point::LN_F, Point::ResidPost(layer)),
        };
        (!hooks.wants_any(&[Point::ResidPost(layer), first, scale, normalized])).then_some(norm)
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
        let v = self.config.vocab_size;
        let c = self.config.n_embd;
        let input_ids = check_below("token id", input_ids, v, "vocab_size")?.to_device(self.wpe.device())?;
        let list = position_ids.map(|ids| self.checked_positions(ids, (b, t))).transpose()?;
        if !hooks.wants_any(&[Point::Embed, Point::PosEmbed])
            && let Some(x) =
                self.wte.with_positions(&input_ids.reshape((b, t))?, &self.wpe, past, list.as_ref())?
        {
            return Ok(x);
        }
        let tokens = hooks.pass(Point::Embed, self.wte.vectors(&input_ids)?.reshape((b, t, c))?)?;
        let positions = match &list {
            None => self.wpe.narrow(0, past, t)?.unsqueeze(0)?,
            Some(list) => self.wpe.index_select(&list.flatten_all()?, 0)?.reshape(((), t, c))?,
        }; // (1 or B, T, C)
        let for_each_row = || positions.broadcast_as((b, t, c))?.contiguous();
        tokens.broadcast_add(&hooks.read(Point::PosEmbed, for_each_row)?.unwrap_or_else(|| positions.clone()))
    }

    /// Positions for ids (b, t) as u32 (1 or b, t) on the model's device, if each is below N.
    fn checked_positions(&self, ids: &Tensor, (b, t): (usize, usize)) -> Result<Tensor> {
        let (rows, columns) = ids.dims2()?;
        if columns != t || (rows != 1 && rows != b) {
            candle_core::bail!("position_ids {:?} must be [{b}, {t}] or [1, {t}]", ids.dims())
        }
        let checked = check_below("position", ids, self.config.n_positions, "n_positions")?;
        checked.to_device(self.wpe.device())?.reshape((rows, t))
    }

    /// The input of the first block, from position 0 on, or from the start of each document: (B, T) -> (B, T, C)
    pub(crate) fn embedded(
        &self,
        input_ids: &Tensor,
        document_starts: Option<&Tensor>,
        training: Option<Training>,
        hooks: PassHooks,
    ) -> Result<Tensor> {
        let t = input_ids.dim(1)?;
        let n = self.config.n_positions;
        if t == 0 || t > n {
            candle_core::bail!("{t} tokens, expected 1 to the model's n_positions = {n}")
        }
        let positions = document_starts.map(positions_in_documents).transpose()?;
        self.drop(self.embed(input_ids, positions.as_ref(), 0, hooks)?, training)
    }

    fn drop(&self, x: Tensor, training: Option<Training>) -> Result<Tensor> {
        match dropout(training, self.config.embd_pdrop, 0, DropoutSite::Embeddings)? {
            Some(dropout) => dropout.apply(&x),
            None => Ok(x),
        }
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

    /// The device of the weights.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.wpe.device()
    }

    /// The dtype of every activation between blocks. Weights may be held in another, see [`crate::linear::Weight`].
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.wpe.dtype()
    }
}

/// A table of `rows` vectors of width C, initially drawn from a normal distribution.
pub(crate) fn embedding(vb: &VarBuilder, name: &str, rows: usize, config: &Config) -> Result<Tensor> {
    let normal = Init::Randn { mean: 0., stdev: config.initializer_range };
    vb.get_with_hints((rows, config.n_embd), name, normal)
}

/// Refuses what the blocks below `first` would have to give to a pass that begins there.
fn refuse_blocks_below(args: &ForwardArgs, first: usize) -> Result<()> {
    if first > 0 && args.cache.is_some() {
        candle_core::bail!(
            "start: a pass that begins before block {first} cannot fill the cache of the blocks below it"
        )
    }
    let mut asked = args.weights.iter().chain(args.cross_weights);
    if let Some(below) = asked.find(|weights| weights.layer < first) {
        candle_core::bail!(
            "start: the pass begins before block {first}, without the weights of layer {}",
            below.layer
        )
    }
    Ok(())
}
