//! A run of `gpt2 attention`: the model, the prompt, and the chosen layers and heads.

use super::args::AttentionArgs;
use crate::results::subject::Subject;
use crate::results::weights_page::LayerValues;
use candle_core::Tensor;
use gpt2_engine::studies::Points;
use gpt2_model::hooks::{Chain, Hooks, Point, on};
use gpt2_model::{ForwardArgs, ModelOutput, Summary};
use gpt2_view::{HeadJson, HeadSummary, LayerJson, QueryNumbers};
use std::cell::RefCell;

/// The most columns that a key takes in a heat map.
pub(super) const CELL: usize = 4;

pub(super) struct AttentionScene<'a> {
    pub(super) args: &'a AttentionArgs,
    pub(super) subject: Subject<'a>,
    /// The prompt as it was given; `None` for ids.
    pub(super) text: Option<&'a str>,
    /// The points whose values go into the export.
    pub(super) points: &'a Points,
}

impl AttentionScene<'_> {
    /// Whether the user named any layers or heads.
    pub(super) fn is_chosen(&self) -> bool {
        !(self.args.layer.is_empty() && self.args.head.is_empty())
    }

    /// Runs the transformer under `changes`, or other hooks, and calls `each` with every layer that it names, the layer's weights (1, H, T, T), one
    /// at a time, while the model runs, and the values at those points of `kinds` (of queries, keys and values) that come before
    /// the weights. It leaves out the output projection, unless a hook wants the logits.
    pub(super) fn run_under(
        &self,
        changes: &dyn Hooks,
        args: ForwardArgs,
        layers: &[usize],
        kinds: &[fn(usize) -> Point],
        each: impl FnMut(usize, &Tensor, &LayerValues) -> anyhow::Result<()>,
    ) -> anyhow::Result<ModelOutput> {
        let state = RefCell::new((each, LayerValues::default()));
        let points = layers.iter().flat_map(|&layer| kinds.iter().map(move |kind| kind(layer)));
        let points: Vec<_> = points.chain(layers.iter().map(|&layer| Point::Pattern(layer))).collect();
        let reader = on(points, |at, value| {
            let (each, values) = &mut *state.borrow_mut();
            match at.point {
                Point::Q(_) => values.q = Some(value.clone()),
                Point::K(_) => values.k = Some(value.clone()),
                Point::V(_) => values.v = Some(value.clone()),
                Point::Pattern(layer) => {
                    let values = std::mem::take(values);
                    let taken = self.subject.check_finite([value]).and_then(|()| each(layer, value, &values));
                    taken.map_err(|error| candle_core::Error::msg(format!("{error:#}")))?;
                }
                _ => {}
            }
            Ok(None)
        });
        let hooks: [&dyn Hooks; 2] = [changes, &reader];
        let args = ForwardArgs { hooks: Some(&Chain(&hooks)), ..args };
        let Subject { opened, ids, .. } = self.subject;
        let output = opened.model.transform(&opened.input_ids(ids)?, args)?;
        let summaries = output.summaries.iter().flat_map(|of| [&of.entropy, &of.mean_distance, &of.on_first]);
        let others = output.attention_outputs.iter().chain([&output.last_hidden_state]);
        self.subject.check_finite(summaries.chain(others))?;
        Ok(output)
    }
}

/// Picks the summaries of the chosen layers and heads from those of all, each (1, H, T).
pub(super) fn summaries(scene: &AttentionScene, all: &[Summary]) -> anyhow::Result<Vec<LayerJson>> {
    let numbers = |tensor: &Tensor, head: usize| tensor.get(0)?.get(head)?.to_vec1::<f32>();
    let head = |of: &Summary, head: usize| -> anyhow::Result<HeadJson> {
        let numbers = QueryNumbers {
            entropy: &numbers(&of.entropy, head)?,
            mean_distance: &numbers(&of.mean_distance, head)?,
            on_self: &numbers(&of.on_self, head)?,
            on_previous: &numbers(&of.on_previous, head)?,
            on_first: &numbers(&of.on_first, head)?,
        };
        Ok(HeadJson {
            head,
            kind: None,
            silenced: None,
            summary: HeadSummary::of_queries(0, numbers)?,
            weights: None,
        })
    };
    let layer = |&layer: &usize| -> anyhow::Result<LayerJson> {
        let heads =
            scene.subject.heads.iter().map(|&i| head(&all[layer], i)).collect::<anyhow::Result<_>>()?;
        Ok(LayerJson { layer, heads })
    };
    scene.subject.layers.iter().map(layer).collect()
}
