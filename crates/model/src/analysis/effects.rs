//! The total effect of heads on a prediction, by ablation.

use super::{Metric, branches::Branches};
use crate::Gpt2LMHeadModel;
use crate::hooks::{Head, Hooks, Intervention, Interventions};
use candle_core::{Result, Tensor};

/// The value that replaces a head's context z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ablation {
    /// Zero (Michel et al. 2019).
    #[default]
    Zero,
    /// The mean of z over the text's positions, the same vector at each position (after Wang et al. 2022).
    Mean,
}

/// The effect of ablating each head on the prediction at the end of a text.
#[derive(Debug, Clone)]
pub struct AblationEffects {
    /// The metric with all heads in place.
    pub plain: f64,
    /// How much ablating the head at every position changes it, (L, H) in f64. Below 0, the head helped.
    pub change: Tensor,
}

/// For every head, the change in `metric` after the text when the head is ablated: its total effect, through everything that
/// reads it later. The numbers are the same as from one forward pass per head under
/// [`Interventions`](crate::hooks::Interventions), on top of `hooks`, which act in every run and must treat the rows of a
/// batch alike and apart.
///
/// The layers below a head run once; those above it run on copies of the text, several heads at a time; without hooks, the
/// last block runs for the last position only.
///
/// # Shapes
/// `input_ids` (1, T) -> see [`AblationEffects`]
///
/// # Errors
/// When the ids are not one text of 1 to N ids below V, a token of the metric is not below V, or a hook fails.
pub fn ablation_effects(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    metric: Metric,
    ablation: Ablation,
    hooks: Option<&dyn Hooks>,
) -> Result<AblationEffects> {
    if input_ids.dims2()?.0 != 1 {
        candle_core::bail!("input_ids {:?}: expected one text of shape [1, T]", input_ids.dims())
    }
    let config = model.config();
    let (layers, heads) = (config.n_layer, config.n_head);
    let of_layer = |layer: usize| {
        let ablated = |head: usize| {
            let head = Head { layer, head };
            let change = match ablation {
                Ablation::Zero => Intervention::ZeroAblate(head),
                Ablation::Mean => Intervention::MeanAblate(head),
            };
            Interventions::new([change], config)
        };
        (0..heads).map(ablated).collect()
    };
    let (plain, found) = Branches { model, metric, hooks }.run(input_ids, of_layer, &mut |_| {})?;
    let change: Vec<f64> = found.into_iter().flatten().map(|ablated| ablated - plain).collect();
    Ok(AblationEffects {
        plain,
        change: Tensor::from_vec(change, (layers, heads), &candle_core::Device::Cpu)?,
    })
}
