//! A run of `gpt2 attention`: the model, the prompt, and the chosen layers and heads.

use crate::args::AttentionArgs;
use crate::changes::Changes;
use crate::prompt::Prompt;
use crate::provenance::Provenance;
use crate::session::Session;
use crate::weights::{LayerValues, Subject};
use candle_core::Tensor;
use gpt2_model::hooks::{Chain, Hooks, Interventions, Point, on};
use gpt2_model::{ForwardArgs, ModelOutput};
use std::cell::RefCell;

/// The most columns that a key takes in a heat map.
pub(super) const CELL: usize = 4;

/// The model and the prompt to look at.
pub(super) struct Scene<'a> {
    pub(super) args: &'a AttentionArgs,
    pub(super) session: &'a Session,
    pub(super) prompt: &'a Prompt,
    /// The prompt's ids, (1, T).
    pub(super) ids: Tensor,
    /// The chosen layers, and the chosen heads of each.
    pub(super) layers: Vec<usize>,
    pub(super) heads: Vec<usize>,
    pub(super) changes: Changes,
    pub(super) made_by: Provenance,
}

impl Scene<'_> {
    /// Whether the user named any layers or heads.
    pub(super) fn is_chosen(&self) -> bool {
        !(self.args.layer.is_empty() && self.args.head.is_empty())
    }

    /// What its weights are about.
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject {
            session: self.session,
            ids: &self.prompt.ids,
            tokens: &self.prompt.tokens,
            layers: &self.layers,
            heads: &self.heads,
            changes: &self.changes,
            finite: &self.args.finite,
            made_by: &self.made_by,
        }
    }

    /// Runs the transformer under `changes` and calls `each` with every layer that it names, the layer's weights (1, H, T, T), one
    /// at a time, while the model runs, and the values at those points of `kinds` (of queries, keys and values) that come before
    /// the weights. It leaves out the output projection, since it does not show the logits.
    pub(super) fn run_under(
        &self,
        changes: &Interventions,
        args: ForwardArgs,
        layers: &[usize],
        kinds: &[fn(usize) -> Point],
        each: impl FnMut(usize, &Tensor, &LayerValues) -> anyhow::Result<()>,
    ) -> anyhow::Result<ModelOutput> {
        let state = RefCell::new((each, None, LayerValues::default()));
        let points = layers.iter().flat_map(|&layer| kinds.iter().map(move |kind| kind(layer)));
        let points: Vec<_> = points.chain(layers.iter().map(|&layer| Point::Pattern(layer))).collect();
        let reader = on(points, |at, value| {
            let (each, failed, values) = &mut *state.borrow_mut();
            match at.point {
                Point::Q(_) => values.q = Some(value.clone()),
                Point::K(_) => values.k = Some(value.clone()),
                Point::V(_) => values.v = Some(value.clone()),
                Point::Pattern(layer) => {
                    let values = std::mem::take(values);
                    self.subject().check_finite([value]).and_then(|()| each(layer, value, &values)).map_err(
                        |e| {
                            let error = candle_core::Error::msg(format!("{e:#}"));
                            *failed = Some(e);
                            error
                        },
                    )?;
                }
                _ => {}
            }
            Ok(None)
        });
        let hooks: [&dyn Hooks; 2] = [changes, &reader];
        let args = ForwardArgs { hooks: Some(&Chain(&hooks)), ..args };
        let output = self.session.model.transformer.forward(&self.ids, args);
        drop(reader);
        if let Some(error) = state.into_inner().1 {
            return Err(error);
        }
        let output = output?;
        let summaries = output.summaries.iter().flat_map(|of| [&of.entropy, &of.mean_distance, &of.on_first]);
        let others = output.attention_outputs.iter().chain([&output.last_hidden_state]);
        self.subject().check_finite(summaries.chain(others))?;
        Ok(output)
    }
}
