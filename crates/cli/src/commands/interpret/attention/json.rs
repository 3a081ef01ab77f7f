//! A run of `gpt2 attention` as JSON.

use super::scene::AttentionScene;
use crate::results::subject::next_tokens;
use candle_core::Tensor;
use gpt2_model::ModelOutput;
use gpt2_view::{FirstLook, LayerJson, RunJson, Silenced};

/// The most tokens among which a first look searches for links: the search reads all weights of a layer, and their
/// number grows with the square of the tokens.
pub(super) const MOST_LINKED: usize = 2048;

/// A run for JSON: `layers` with what the first look has found of their heads.
pub(super) fn run_json(
    scene: &AttentionScene,
    first: Option<&FirstLook>,
    mut layers: Vec<LayerJson>,
    output: &ModelOutput,
    silenced: &Silenced,
) -> anyhow::Result<RunJson> {
    // What was not looked for is left out.
    let looked = first.filter(|_| scene.subject.ids.len() <= MOST_LINKED);
    for of in &mut layers {
        for head in &mut of.heads {
            head.silenced = silenced.how(of.layer, head.head);
            head.kind = looked.map(|first| head.summary.focus(first.looks(of.layer, head.head)));
        }
    }
    let next = next_tokens(&scene.subject, &last_hidden(scene, output)?)?;
    Ok(RunJson { next, links: looked.map(|first| first.links().to_vec()), layers })
}

/// The input of the output projection at the last position: (1, C)
pub(super) fn last_hidden(scene: &AttentionScene, output: &ModelOutput) -> anyhow::Result<Tensor> {
    Ok(output.last_hidden_state.squeeze(0)?.narrow(0, scene.subject.ids.len() - 1, 1)?)
}
