//! A transformer block: attention, perhaps attention over an encoder, then the MLP, each on a normalized copy of the
//! residual stream.

use crate::attention::last_position;
use crate::head_inputs::HeadInputs;
use crate::hooks::Point;
use crate::loading::Loading;
use crate::parameters::Visitor;
use crate::{CausalSelfAttention, Config, Conv1D, CrossAttention, LayerNorm, Mlp, Pass};
use candle_core::{Module, Result, Tensor};
use candle_fused::attention::{Summary, Wanted};
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
        config.validate()?;
        Self::load_at(&Loading::new(vb, config, layer_idx))
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

    /// Runs the block.
    ///
    /// # Shapes
    /// `x` (B, T, C) -> see [`BlockOutput`]
    ///
    /// # Errors
    /// When a shape does not fit, or a hook fails.
    pub fn forward(&self, x: &Tensor, pass: Pass) -> Result<BlockOutput> {
        pass.check()?;
        if x.dim(1)? == 0 {
            candle_core::bail!("Block: x has no positions, its shape is {:?}", x.dims())
        }
        let (layer, training, hooks) = (self.attn.layer_idx(), pass.training, pass.hooks());
        let (last, output_attention, wanted) =
            (pass.last_position_only, pass.output_attention_outputs, pass.wanted());
        let (encoder, chosen_cross) = (pass.encoder, pass.cross_weights);
        self.check_cross_attention(&pass)?;
        let mut cache = pass.cache;

        let x = hooks.pass(Point::ResidPre(layer), x.clone())?;
        let inputs = HeadInputs::of(&x, &self.ln_1, self.attn.heads(), (layer, hooks))?;
        let points = [Point::Ln1Scale(layer), Point::Ln1Normalized(layer), Point::Ln1(layer)];
        let normed = self.ln_1.forward_hooked(&x, points, hooks)?; // (B, T, C)
        let own = Pass { cache: cache.as_deref_mut(), ..pass };
        let attended = self.attn.attend_from(&normed, &inputs, own, wanted)?;
        let context = &attended.context; // (B, T, C), or (B, 1, C) for the last position
        let x = if last { last_position(&x)? } else { x };

        let results = hooks.read(Point::Result(layer), || self.attn.results(context))?; // (B, T, H, C)
        let project = || match &results {
            Some(results) => self.attn.sum_of(results, training),
            None => self.attn.project(context, training),
        };
        let mut attention_output = hooks.read(Point::AttnOut(layer), project)?;
        if attention_output.is_none() && (output_attention || results.is_some()) {
            attention_output = Some(project()?);
        }
        let x = match &attention_output {
            Some(output) => (&x + output)?,
            None => self.attn.project_onto(&x, context, training)?,
        };
        let (x, cross_weights) = match (encoder, &self.crossattention, &self.ln_cross_attn) {
            (Some(encoder), Some(crossattention), Some(norm)) => {
                let wanted = Wanted { weights: chosen_cross, summary: false };
                let attended = crossattention.attend(&norm.forward(&x)?, encoder, cache, training, wanted)?;
                (crossattention.project_onto(&x, &attended.context, training)?, attended.weights)
            }
            _ => (x, vec![]),
        };
        let x = hooks.pass(Point::ResidMid(layer), x)?;
        let copy = hooks.pass(Point::MlpIn(layer), x.clone())?;
        let points = [Point::Ln2Scale(layer), Point::Ln2Normalized(layer), Point::Ln2(layer)];
        let normed = self.ln_2.forward_hooked(&copy, points, hooks)?; // (B, T, C)
        let x = self.mlp.forward_hooked_onto(&x, &normed, training, hooks)?;
        Ok(BlockOutput {
            hidden_state: hooks.pass(Point::ResidPost(layer), x)?,
            attention_output: attention_output.filter(|_| output_attention),
            weights: attended.weights,
            cross_weights,
            summary: attended.summary,
        })
    }

    /// Fails if there is an encoder and nothing attends to it, or the other way round.
    fn check_cross_attention(&self, pass: &Pass) -> Result<()> {
        let layer = self.attn.layer_idx();
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
        let (attn, mlp) = (&mut self.attn, &mut self.mlp);
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
