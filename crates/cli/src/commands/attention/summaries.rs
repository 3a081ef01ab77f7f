//! The kernel's summaries, as the numbers of each head.

use super::scene::Scene;
use candle_core::Tensor;
use gpt2_model::Summary;
use gpt2_view::{HeadJson, HeadSummary, LayerJson, QueryNumbers};

/// Picks the summaries of the chosen layers and heads from those of all, each (1, H, T).
pub(super) fn summaries(scene: &Scene, all: &[Summary]) -> anyhow::Result<Vec<LayerJson>> {
    let numbers = |tensor: &Tensor, head: usize| tensor.get(0)?.get(head)?.to_vec1::<f32>();
    let head = |of: &Summary, head: usize| -> anyhow::Result<HeadJson> {
        let numbers = QueryNumbers {
            entropy: &numbers(&of.entropy, head)?,
            mean_distance: &numbers(&of.mean_distance, head)?,
            on_self: &numbers(&of.on_self, head)?,
            on_previous: &numbers(&of.on_previous, head)?,
            on_first: &numbers(&of.on_first, head)?,
        };
        Ok(HeadJson { head, summary: HeadSummary::of_queries(0, numbers)?, weights: None })
    };
    let layer = |&layer: &usize| -> anyhow::Result<LayerJson> {
        let heads = scene.heads.iter().map(|&i| head(&all[layer], i)).collect::<anyhow::Result<_>>()?;
        Ok(LayerJson { layer, heads })
    };
    scene.layers.iter().map(layer).collect()
}
