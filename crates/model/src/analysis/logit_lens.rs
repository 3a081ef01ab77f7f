//! Explains logits: the logit lens, and direct logit attribution, the share of each part of the model in a logit.

use super::metric::{Metric, wide};
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::attention::qkv::HeadWeights;
use crate::gpt2::block::Block;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::{Chain, Hooks, Point, Recorder};
use candle_core::{DType, Device, Module, Result, Tensor};

/// The logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens"): the logits of one position, read from the
/// residual stream before the first block and after each block by applying `ln_f` and `lm_head` directly. `hooks` act
/// in the run. The last row holds the model's own logits.
///
/// # Shapes
/// `input_ids` (B, T), `position` below T -> (L + 1, B, V)
///
/// # Errors
/// When `position` is not below T, and for the errors of [`Gpt2LMHeadModel::forward`].
pub fn logit_lens(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    position: usize,
    hooks: Option<&dyn Hooks>,
) -> Result<Tensor> {
    let t = input_ids.dim(1)?;
    if position >= t {
        candle_core::bail!(
            "logit lens: position {position} of a text of {t} tokens, expected 0 to {}",
            t.saturating_sub(1)
        )
    }
    let args = ForwardArgs { output_hidden_states: true, hooks, ..Default::default() };
    let states = model.transform(input_ids, args)?.hidden_states; // L + 1 of (B, T, C), the last one after `ln_f`
    let rows = states.iter().enumerate().map(|(i, state)| {
        let row = state.narrow(1, position, 1)?.squeeze(1)?; // (B, C)
        if i + 1 == states.len() { Ok(row) } else { model.transformer.ln_f.forward(&row) }
    });
    let rows = Tensor::stack(&rows.collect::<Result<Vec<_>>>()?, 0)?; // (L + 1, B, C)
    model.lm_head.forward(&rows)
}

/// The convention of direct logit attribution: whether the unembedding is centered, and where value biases count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Centering {
    /// TransformerLens' convention. The unembedding is centered over the vocabulary, because adding one number to all
    /// logits changes no probability. A head's value biases add a constant whatever the head attends to, so their share
    /// counts with the biases.
    #[default]
    Centered,
    /// The checkpoint's own unembedding, and value biases count with their heads: the shares sum to the logit itself.
    Raw,
}

/// The share of each part of the model in a logit, or in a difference of logits, at the end of a text. All shares sum
/// to [`total`](Self::total).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DirectAttribution {
    /// The share of each head, f64 (L, H).
    pub heads: Tensor,
    /// The share of the biases of each attention block, f64 (L).
    pub attention_biases: Tensor,
    /// The share of each MLP with its bias, f64 (L).
    pub mlps: Tensor,
    /// The share of the last token's embedding.
    pub embed: f64,
    /// The share of the last position's embedding.
    pub pos_embed: f64,
    /// The share of `ln_f`'s β, and of the unembedding's bias in a processed model.
    pub final_bias: f64,
    /// The share of the changes that hooks make to the residual stream itself, such as added vectors and patched
    /// streams.
    pub interventions: f64,
    /// The logit or the difference of logits that the model returns, less the mean logit if a single logit is centered.
    pub total: f64,
}

impl DirectAttribution {
    /// The sum of all shares, which is [`total`](Self::total) but for rounding.
    ///
    /// # Errors
    /// When a tensor is not on the CPU.
    pub fn sum(&self) -> Result<f64> {
        let of = |x: &Tensor| x.sum_all()?.to_scalar::<f64>();
        let layers = of(&self.heads)? + of(&self.attention_biases)? + of(&self.mlps)?;
        Ok(layers + self.embed + self.pos_embed + self.final_bias + self.interventions)
    }
}

/// Direct logit attribution (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; nostalgebraist
/// 2020, the logit lens): the direct contribution of each part of the model to a logit after the text, or to a
/// difference of two.
///
/// A logit is linear in the residual stream once `ln_f`'s deviation σ is fixed at its value in this run. A part that adds `o` to
/// the stream at the last position has the share `((o - mean(o)) / σ · γ) · u`, with `u` the token's row of `lm_head`,
/// less the mean of all rows if centered, or the difference of two rows. Computed in f64 from the run's values.
///
/// # Shapes
/// `input_ids` (1, T)
///
/// # Errors
/// When the ids are not one text of 1 to N ids below V, a token is not below V, the metric is a log-probability, which is not
/// linear, or a hook fails.
pub fn direct_attribution(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    metric: &Metric,
    centering: Centering,
    hooks: Option<&dyn Hooks>,
) -> Result<DirectAttribution> {
    let (b, t) = input_ids.dims2()?;
    if b != 1 {
        candle_core::bail!("input_ids {:?}: expected one text of shape [1, T]", input_ids.dims())
    }
    let recorder = record_parts(model, input_ids, hooks)?;
    let last = |point: Point| -> Result<Tensor> {
        wide(&recorder.value(point)?.narrow(1, t - 1, 1)?.flatten_all()?) // (C), (H·D), (1) or (V)
    };
    let scale = last(Point::LnFinalScale)?.get(0)?.to_scalar::<f64>()?;
    let ln_f = &model.transformer.ln_f;
    let unembedding = unembedding(model, metric, centering)?; // (C)
    // The mean over C that `ln_f` subtracts is taken from the direction rather than from each part.
    let direction = (wide(&ln_f.weight)? * &unembedding)?;
    let direction = (direction.broadcast_sub(&direction.mean_keepdim(0)?)? / scale)?.unsqueeze(1)?; // (C, 1)
    let share = |x: &Tensor| -> Result<Tensor> { x.matmul(&direction)?.squeeze(1) }; // (rows, C) -> (rows)
    let one = |x: &Tensor| share(&x.unsqueeze(0)?)?.get(0)?.to_scalar::<f64>();

    let mut heads = vec![];
    let mut biases = vec![];
    let mut mlps = vec![];
    // The stream as it would be without a change, and what hooks have made of it.
    let mut stream = (last(Point::Embed)? + last(Point::PosEmbed)?)?;
    let mut changed = stream.zeros_like()?;
    let mut meet = |expected: &Tensor, point: Point| -> Result<Tensor> {
        let found = last(point)?;
        changed = (&changed + (&found - expected)?)?;
        Ok(found)
    };
    for (layer, block) in model.transformer.h.iter().enumerate() {
        let attn = &block.attn;
        let attention = last(Point::AttnOut(layer))?;
        let mlp = last(Point::MlpOut(layer))?;
        stream = meet(&stream, Point::ResidPre(layer))?;
        stream = meet(&(stream + &attention)?, Point::ResidMid(layer))?;
        stream = meet(&(stream + &mlp)?, Point::ResidPost(layer))?;
        let mut z = last(Point::Z(layer))?.reshape((attn.n_head(), 1, ()))?; // (H, 1, D)
        if centering == Centering::Centered {
            let constants = Tensor::stack(&constant_values(block)?, 0)?; // (H, D)
            z = (z - constants.unsqueeze(1)?)?;
        }
        let w_o = wide(&attn.c_proj.weight()?)?.reshape((attn.n_head(), z.dim(2)?, ()))?; // (H, D, C)
        let of_heads = share(&z.matmul(&w_o)?.squeeze(1)?)?; // (H)
        biases.push(one(&attention)? - of_heads.sum_all()?.to_scalar::<f64>()?);
        heads.push(of_heads);
        mlps.push(one(&mlp)?);
    }
    let logits = last(Point::Logits)?;
    let total = metric.of(&logits)?.to_scalar::<f64>()?
        - if centering == Centering::Centered && matches!(metric, Metric::Logit(_)) {
            logits.mean_all()?.to_scalar::<f64>()?
        } else {
            0.0
        };
    Ok(DirectAttribution {
        heads: Tensor::stack(&heads, 0)?,
        attention_biases: Tensor::new(biases, &Device::Cpu)?,
        mlps: Tensor::new(mlps, &Device::Cpu)?,
        embed: one(&last(Point::Embed)?)?,
        pos_embed: one(&last(Point::PosEmbed)?)?,
        interventions: one(&changed)?,
        final_bias: (wide(&ln_f.bias)? * unembedding)?.sum_all()?.to_scalar::<f64>()?
            + unembedding_bias(model, metric, centering)?,
        total,
    })
}

/// Runs the model and records the values that direct attribution needs.
fn record_parts(model: &Gpt2LMHeadModel, input_ids: &Tensor, hooks: Option<&dyn Hooks>) -> Result<Recorder> {
    let of_layer = |layer| {
        let streams = [Point::ResidPre(layer), Point::ResidMid(layer), Point::ResidPost(layer)];
        [Point::Z(layer), Point::AttnOut(layer), Point::MlpOut(layer)].into_iter().chain(streams)
    };
    let points = (0..model.transformer.h.len()).flat_map(of_layer);
    let recorder =
        Recorder::new(points.chain([Point::Embed, Point::PosEmbed, Point::LnFinalScale, Point::Logits]));
    let all: Vec<&dyn Hooks> = hooks.into_iter().chain([&recorder as &dyn Hooks]).collect();
    model.forward(input_ids, ForwardArgs { hooks: Some(&Chain(&all)), ..Default::default() })?;
    Ok(recorder)
}

/// The part of each head's z that does not depend on what it attends to, as its weights sum to 1: `b_v + β·W_v` with β of the
/// layer norm before, (D) in f64.
fn constant_values(block: &Block) -> Result<Vec<Tensor>> {
    let bias = wide(&block.ln_1.bias)?.unsqueeze(0)?; // (1, C)
    let of_head = |head: &HeadWeights| bias.matmul(&wide(&head.v)?)?.squeeze(0)? + wide(&head.v_bias)?;
    block.attn.head_weights()?.iter().map(of_head).collect()
}

/// The direction of the metric in the output of `ln_f`, (C) in f64.
fn unembedding(model: &Gpt2LMHeadModel, metric: &Metric, centering: Centering) -> Result<Tensor> {
    let head = &model.lm_head;
    let v = model.config().vocab_size;
    metric.check(v)?;
    let row = |token: u32| wide(&head.direction(token)?);
    let mean = |tokens: &[u32]| {
        Tensor::stack(&tokens.iter().map(|&token| row(token)).collect::<Result<Vec<_>>>()?, 0)?.mean(0)
    };
    match (metric, centering) {
        (Metric::LogitDifference { answers, against }, _) => mean(answers)? - mean(against)?,
        (Metric::Logit(token), Centering::Raw) => row(*token),
        (Metric::Logit(token), Centering::Centered) => row(*token)? - mean_row(&head.weight()?)?,
        (Metric::LogProb(_), _) => {
            candle_core::bail!("direct attribution: a log-probability is no sum of shares; take a logit")
        }
        _ => candle_core::bail!(
            "direct attribution: only logits are sums of shares; take one, or a difference"
        ),
    }
}

/// The metric of the unembedding's bias; 0 if it has none.
fn unembedding_bias(model: &Gpt2LMHeadModel, metric: &Metric, centering: Centering) -> Result<f64> {
    let Some(bias) = model.lm_head.bias() else { return Ok(0.0) };
    let bias = wide(bias)?;
    let mean = match (metric, centering) {
        (Metric::Logit(_), Centering::Centered) => bias.mean_all()?.to_scalar::<f64>()?,
        _ => 0.0,
    };
    Ok(metric.of(&bias)?.to_scalar::<f64>()? - mean)
}

/// The mean of the rows of a table in f64, a part at a time: (V, C) -> (C)
fn mean_row(table: &Tensor) -> Result<Tensor> {
    const ROWS: usize = 4096;
    let (v, c) = table.dims2()?;
    let mut sum = Tensor::zeros(c, DType::F64, &Device::Cpu)?;
    for first in (0..v).step_by(ROWS) {
        sum = (sum + wide(&table.narrow(0, first, ROWS.min(v - first))?)?.sum(0)?)?;
    }
    sum / v as f64
}
