//! A transformer block: attention, perhaps attention over an encoder, then the MLP, each on a normalized copy of the
//! residual stream.

use super::attention::causal_self_attention::CausalSelfAttention;
use super::attention::cross_attention::CrossAttention;
use super::attention::hooked_heads::HeadInputs;
use super::attention::pass::Pass;
use super::attention::qkv::last_position;
use super::layers::conv1d::Conv1D;
use super::layers::layer_norm::{LayerNorm, Stream};
use super::layers::loading::Loading;
use super::layers::parameters::Visitor;
use super::mlp::Mlp;
use crate::config::Config;
use crate::hooks::Point;
use crate::interrupt::check_interrupt;
use crate::learn::training::Training;
use candle_core::{Module, Result, Tensor};
use candle_fused::attention::Summary;
use candle_nn::VarBuilder;

/// `h.N`: `x + attn(ln_1(x))`, then, with an encoder, `x + crossattention(ln_cross_attn(x))`, then `x + mlp(ln_2(x))`.
#[derive(Debug, Clone)]
pub struct Block {
    /// Before attention.
    pub ln_1: LayerNorm,
    /// Causal self-attention.
    pub attn: CausalSelfAttention,
    /// Attention over an encoder, in a model with `add_cross_attention`.
    pub crossattention: Option<CrossAttention>,
    /// Before attention over an encoder.
    pub ln_cross_attn: Option<LayerNorm>,
    /// Before the MLP.
    pub ln_2: LayerNorm,
    /// The MLP.
    pub mlp: Mlp,
}

/// The output of a block, with any intermediate results that were asked for.
#[derive(Debug)]
#[non_exhaustive]
pub struct BlockOutput {
    /// The residual stream after the block, (B, T, C), or (B, 1, C) for the last position only.
    pub hidden_state: Tensor,
    /// The attention block's output after `c_proj`, (B, T, C), if it was asked for.
    pub attention_output: Option<Tensor>,
    /// A tensor (B, heads, queries, S) for each entry of [`Pass::weights`].
    pub weights: Vec<Tensor>,
    /// A tensor (B, heads, queries, S) for each entry of [`Pass::cross_weights`].
    pub cross_weights: Vec<Tensor>,
    /// The summary of the attention weights, if it was asked for.
    pub summary: Option<Summary>,
}

impl Block {
    /// Loads the block of layer `layer_idx` alone.
    ///
    /// # Errors
    /// When the config is not valid, or a tensor is missing or has another shape.
    pub fn load(vb: VarBuilder, config: &Config, layer_idx: usize) -> Result<Self> {
        Self::load_at(&Loading::new(vb, config, layer_idx)?)
    }

    pub(crate) fn load_at(place: &Loading) -> Result<Self> {
        let crosses = place.config.add_cross_attention;
        let crossattention = || CrossAttention::load_at(&place.pp("crossattention"));
        Ok(Self {
            ln_1: place.layer_norm("ln_1")?,
            attn: CausalSelfAttention::load_at(&place.pp("attn"))?,
            crossattention: crosses.then(crossattention).transpose()?,
            ln_cross_attn: crosses.then(|| place.layer_norm("ln_cross_attn")).transpose()?,
            ln_2: place.layer_norm("ln_2")?,
            mlp: Mlp::load_at(&place.pp("mlp"))?,
        })
    }

    /// Runs the block with the arguments of `pass`, and returns what it asks for.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> see [`BlockOutput`]
    ///
    /// # Errors
    /// When a shape does not fit, a hook fails, or the work is [interrupted](crate::interruptible).
    pub fn forward_with(&self, x: &Tensor, pass: Pass) -> Result<BlockOutput> {
        Ok(self.forward_between(x.clone().into(), pass, None)?.0)
    }

    /// [`forward_with`](Self::forward_with) inside a model. `stream` may come with the output of `ln_1`; its new form, which `norm` reads
    /// next, comes with the output of `norm` if one kernel computes both.
    pub(crate) fn forward_between(
        &self,
        stream: Stream,
        pass: Pass,
        norm: Option<&LayerNorm>,
    ) -> Result<(BlockOutput, Option<Tensor>)> {
        check_interrupt()?;
        let padding = pass.padding()?;
        let mut pass = Pass { padding_mask: padding.as_ref(), ..pass };
        self.check(&stream.x, &pass)?;
        let layer = self.attn.layer_idx();
        let hooks = pass.hooks();
        let x = hooks.pass(Point::ResidPre(layer), stream.x)?; // (B, T, C)

        let inputs = HeadInputs::new(&x, &self.ln_1, self.attn.heads(), layer, hooks)?;
        let normed = self.ln_1.before_layer(&x, stream.normed, Point::ln_1(layer), hooks)?;
        let attended = self.attn.attend(normed, &inputs, &mut pass)?;
        let x = if pass.last_position_only { last_position(&x)? } else { x }; // (B, T, C) or (B, 1, C)
        let output = self.attn.hooked_output(&attended.context, &pass, hooks)?;
        let ln_2 = (!self.reads_mid_stream(&pass)).then_some(&self.ln_2);
        let stream = match &output {
            Some(output) => (x + output)?.into(),
            None => self.attn.project_onto(&x, &attended.context, pass.training, ln_2)?,
        };
        let (x, cross_weights) = self.cross_attend(stream.x, &mut pass)?;
        let x = hooks.pass(Point::ResidMid(layer), x)?;

        let copy = hooks.pass(Point::MlpIn(layer), x.clone())?;
        let normed = self.ln_2.before_layer(&copy, stream.normed, Point::ln_2(layer), hooks)?;
        let stream = self.mlp.forward_hooked_onto(&x, normed, pass.training, hooks, norm)?;
        let output = BlockOutput {
            hidden_state: hooks.pass(Point::ResidPost(layer), stream.x)?,
            attention_output: output.filter(|_| pass.output_attention_outputs),
            weights: attended.weights,
            cross_weights,
            summary: attended.summary,
        };
        Ok((output, stream.normed))
    }

    /// Whether cross-attention or a hook reads or changes the stream between attention and `ln_2`.
    fn reads_mid_stream(&self, pass: &Pass) -> bool {
        let layer = self.attn.layer_idx();
        let [scale, normalized, _] = Point::ln_2(layer);
        pass.encoder.is_some()
            || pass.hooks().wants_any(&[Point::ResidMid(layer), Point::MlpIn(layer), scale, normalized])
    }

    /// [`Module::forward`], with dropout at the config's rates if `train` is true, as
    /// [`CausalSelfAttention::forward_t`] says.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C)
    ///
    /// # Errors
    /// When a shape does not fit, or the work is [interrupted](crate::interruptible).
    pub fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let pass = Pass { training: train.then(Training::next), ..Pass::default() };
        Ok(self.forward_with(x, pass)?.hidden_state)
    }

    /// `x + crossattention(ln_cross_attn(x))` if there is an encoder, and the weights that `pass` asks for.
    fn cross_attend(&self, x: Tensor, pass: &mut Pass) -> Result<(Tensor, Vec<Tensor>)> {
        match (pass.encoder, &self.crossattention, &self.ln_cross_attn) {
            (Some(encoder), Some(crossattention), Some(norm)) => {
                let attended = crossattention.attend(&norm.forward(&x)?, encoder, pass)?;
                Ok((crossattention.project_onto(&x, &attended.context, pass.training)?, attended.weights))
            }
            _ => Ok((x, vec![])),
        }
    }

    /// Fails if `x` is empty, if the arguments cannot be combined, or if there is an encoder and nothing attends to it, or the
    /// other way round.
    fn check(&self, x: &Tensor, pass: &Pass) -> Result<()> {
        pass.check()?;
        let layer = self.attn.layer_idx();
        match *x.dims() {
            [_, 0, _] => candle_core::bail!("Block: x has no positions, its shape is {:?}", x.dims()),
            [_, _, _] => {}
            _ => candle_core::bail!("layer {layer}: x must be (B, T, C), got {:?}", x.dims()),
        }
        if let Some(cache) = &pass.cache {
            cache.check_encoder(pass.encoder.map(|encoder| encoder.hidden_states))?;
        }
        match (&self.crossattention, &self.ln_cross_attn, pass.encoder) {
            (Some(_), None, _) | (None, Some(_), _) => candle_core::bail!(
                "layer {layer}: crossattention and ln_cross_attn belong together, and only one of them is there"
            ),
            (None, _, Some(_)) => candle_core::bail!(
                "layer {layer} has no cross-attention, but the pass has an encoder's hidden states; load a checkpoint with \
                 add_cross_attention = true"
            ),
            (_, _, None) if !pass.cross_weights.is_empty() => candle_core::bail!(
                "layer {layer}: weights of cross-attention need an encoder's hidden states, and the pass has none"
            ),
            _ => Ok(()),
        }
    }

    /// The linear layers, each with its name below the block.
    pub(crate) fn linear_layers_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Conv1D)> {
        let attn = &mut self.attn;
        let mlp = &mut self.mlp;
        let own = [
            ("attn.c_attn", &mut attn.c_attn),
            ("attn.c_proj", &mut attn.c_proj),
            ("mlp.c_fc", &mut mlp.c_fc),
            ("mlp.c_proj", &mut mlp.c_proj),
        ];
        let cross = self.crossattention.iter_mut().flat_map(|cross| {
            [
                ("crossattention.c_attn", &mut cross.c_attn),
                ("crossattention.q_attn", &mut cross.q_attn),
                ("crossattention.c_proj", &mut cross.c_proj),
            ]
        });
        own.into_iter().chain(cross)
    }

    /// Visits the parameters of the layer norms, attention and MLP.
    pub fn visit(&self, visitor: &mut Visitor) {
        self.ln_1.visit(&mut visitor.pp("ln_1"));
        self.attn.visit(&mut visitor.pp("attn"));
        self.ln_2.visit(&mut visitor.pp("ln_2"));
        if let (Some(crossattention), Some(norm)) = (&self.crossattention, &self.ln_cross_attn) {
            crossattention.visit(&mut visitor.pp("crossattention"));
            norm.visit(&mut visitor.pp("ln_cross_attn"));
        }
        self.mlp.visit(&mut visitor.pp("mlp"));
    }
}

impl Module for Block {
    /// The residual stream after the block, without padding, cache, dropout or hooks.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> (B, T, C)
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}
