//! The effect of heads on a prediction.

use crate::hooks::{At, Head, Hooks, Intervention, Interventions, Point, Recorder};
use crate::{ForwardArgs, Gpt2LMHeadModel, Pass};
use candle_core::{D, DType, Module, Result, Tensor};
use candle_fused::attention::Wanted;
use candle_nn::ops::log_softmax;

/// The value that replaces a head's context z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ablation {
    /// Zero (Michel et al. 2019).
    #[default]
    Zero,
    /// The mean of z over the text's positions, the same vector at each position (after Wang et al. 2022).
    Mean,
}

/// The effect of ablating each head on a token's probability at the end of a text.
#[derive(Debug, Clone)]
pub struct AblationEffects {
    /// The log-probability of the token with all heads in place, in nats.
    pub log_prob: f32,
    /// How much ablating a head at every position changes it: f32 (L, H). Below 0, the head helped.
    pub change: Tensor,
}

/// The number of positions to run at a time, over all copies of the text: enough to keep the matrix products
/// busy, few enough for memory.
const POSITIONS: usize = 1024;

/// For every head, the change in `target`'s log-probability after the text when the head is ablated: its
/// total effect, through everything that reads it later. The numbers are the same as from one forward pass
/// per head under [`Interventions`](crate::hooks::Interventions).
///
/// The layers below a head run once; those above it run on copies of the text, several heads at a time; the last
/// block runs for the last position only.
///
/// # Shapes
/// `input_ids` (1, T) -> see [`AblationEffects`]
///
/// # Errors
/// When the ids are not one text of 1 to N ids below V, or the target is not below V.
pub fn ablation_effects(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    target: u32,
    ablation: Ablation,
) -> Result<AblationEffects> {
    check(model, input_ids, target)?;
    let (layers, heads) = (model.config().n_layer, model.config().n_head);
    let mut x = model.transformer.embedded(input_ids, None, None)?; // (1, T, C)
    let t = x.dim(1)?;
    let at_once = (POSITIONS / t).clamp(1, heads);
    let mut log_probs = vec![];
    for (layer, block) in model.transformer.h.iter().enumerate() {
        let attended = block.attn.attend(&block.ln_1.forward(&x)?, Pass::default(), Wanted::default())?;
        let context = attended.context; // (1, T, C)
        let z = context.reshape((1, t, heads, ()))?; // (1, T, H, D)
        // Nothing reads the other positions after the last block.
        let kept = if layer + 1 == layers { 1 } else { t };
        let residual = x.narrow(1, t - kept, kept)?;
        for first in (0..heads).step_by(at_once) {
            let copies = (first..heads.min(first + at_once)).map(|head| {
                ablated(model, &z, Head { layer, head }, ablation)?.flatten_from(2)?.narrow(1, t - kept, kept)
            });
            let copies = Tensor::cat(&copies.collect::<Result<Vec<_>>>()?, 0)?; // (copies, kept, C)
            let residual = residual.broadcast_as(copies.shape())?.contiguous()?;
            let mid = block.attn.project_onto(&residual, &copies.contiguous()?, None)?;
            log_probs.extend(finish(model, layer, &mid, target)?);
        }
        let mid = block.attn.project_onto(&x, &context, None)?;
        x = block.mlp.forward_onto(&mid, &block.ln_2.forward(&mid)?, None)?;
    }
    let log_prob = log_prob(model, &x.narrow(1, t - 1, 1)?, target)?.first().copied().unwrap_or(f32::NAN);
    let change: Vec<f32> = log_probs.into_iter().map(|ablated| ablated - log_prob).collect();
    Ok(AblationEffects { log_prob, change: Tensor::from_vec(change, (layers, heads), x.device())? })
}

/// z (1, T, H, D) of a layer with one head ablated.
fn ablated(model: &Gpt2LMHeadModel, z: &Tensor, head: Head, ablation: Ablation) -> Result<Tensor> {
    let change = match ablation {
        Ablation::Zero => Intervention::ZeroAblate(head),
        Ablation::Mean => Intervention::MeanAblate(head),
    };
    let at = At { point: Point::Z(head.layer), past: 0, cached: false, padding: None };
    let changed = Interventions::new([change], model.config())?.at(at, z)?;
    Ok(changed.unwrap_or_else(|| z.clone()))
}

/// The target's log-probabilities, continuing from the residual stream between attention and MLP of
/// `layer`: (copies, T, C) -> copies
fn finish(model: &Gpt2LMHeadModel, layer: usize, mid: &Tensor, target: u32) -> Result<Vec<f32>> {
    let blocks = &model.transformer.h;
    let mut x = blocks[layer].mlp.forward_onto(mid, &blocks[layer].ln_2.forward(mid)?, None)?;
    for (i, block) in blocks.iter().enumerate().skip(layer + 1) {
        let pass = Pass { last_position_only: i + 1 == blocks.len(), ..Pass::default() };
        x = block.forward(&x, pass)?.hidden_state;
    }
    log_prob(model, &x, target)
}

/// The target's log-probability after the last block: (copies, 1, C) -> copies
fn log_prob(model: &Gpt2LMHeadModel, x: &Tensor, target: u32) -> Result<Vec<f32>> {
    let normed = model.transformer.ln_f.forward(x)?;
    let logits = model.lm_head.forward(&normed)?.to_dtype(DType::F32)?;
    log_softmax(&logits, D::Minus1)?.narrow(2, target as usize, 1)?.flatten_all()?.to_vec1()
}

/// How much each head contributes directly to `target`'s logit after the text: direct logit attribution (Elhage
/// et al. 2021, "A Mathematical Framework for Transformer Circuits"; nostalgebraist 2020, the logit lens).
///
/// A logit is linear in the residual stream once `ln_f`'s deviation σ is fixed at its value in this run. The head adds
/// `o = z_h·W_O_h` to the stream at the last position, and its share is `((o - mean(o)) / σ · γ) · lm_head[target]`.
/// The shares of all heads, the MLPs, the embeddings, `c_proj`'s biases and `ln_f`'s β sum to the logit.
///
/// # Shapes
/// `input_ids` (1, T) -> f32 (L, H)
///
/// # Errors
/// When the ids are not one text of 1 to N ids below V, or the target is not below V.
pub fn direct_logit_attribution(model: &Gpt2LMHeadModel, input_ids: &Tensor, target: u32) -> Result<Tensor> {
    check(model, input_ids, target)?;
    let (heads, d) = (model.config().n_head, model.config().head_dim());
    let (blocks, t) = (&model.transformer.h, input_ids.dim(1)?);
    let end = Point::ResidPost(blocks.len() - 1);
    let recorder = Recorder::new((0..blocks.len()).map(Point::Z).chain([end]));
    model.transformer.forward(input_ids, ForwardArgs { hooks: Some(&recorder), ..Default::default() })?;
    let written = blocks.iter().enumerate().map(|(layer, block)| {
        let z = recorder.value(Point::Z(layer))?.narrow(1, t - 1, 1)?.reshape((heads, 1, d))?; // (H, 1, D)
        let w_o = block.attn.c_proj.weight()?.reshape((heads, d, ()))?; // (H, D, C)
        z.contiguous()?.matmul(&w_o)?.squeeze(1)?.to_dtype(DType::F32) // (H, C)
    });
    let written = written.collect::<Result<Vec<_>>>()?;
    let x = recorder.value(end)?; // (1, T, C)
    let centred = |x: &Tensor| x.broadcast_sub(&x.mean_keepdim(D::Minus1)?);
    let last = centred(&x.narrow(1, t - 1, 1)?.flatten_all()?.to_dtype(DType::F32)?)?; // (C)
    let deviation = (last.sqr()?.mean_all()? + model.config().layer_norm_epsilon)?.sqrt()?;
    let gamma = model.transformer.ln_f.weight.to_dtype(DType::F32)?;
    let direction = (gamma * model.lm_head.direction(target)?.to_dtype(DType::F32)?)?; // (C)
    let shares = centred(&Tensor::stack(&written, 0)?)?.broadcast_mul(&direction)?.sum(2)?; // (L, H)
    shares.broadcast_div(&deviation)
}

fn check(model: &Gpt2LMHeadModel, input_ids: &Tensor, target: u32) -> Result<()> {
    let v = model.config().vocab_size;
    if input_ids.dims2()?.0 != 1 {
        candle_core::bail!("input_ids {:?}: expected one text of shape [1, T]", input_ids.dims())
    }
    if target as usize >= v {
        candle_core::bail!("target {target} is not in 0..{v} (vocab_size)")
    }
    Ok(())
}
