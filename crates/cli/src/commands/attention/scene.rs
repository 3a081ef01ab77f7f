//! A run of `gpt2 attention`: the model, the prompt, and the chosen layers and heads.

use crate::args::AttentionArgs;
use crate::prompt::Prompt;
use crate::provenance::Provenance;
use crate::session::Session;
use candle_core::Tensor;
use gpt2_model::hooks::{Chain, Hooks, Interventions, Point, on};
use gpt2_model::{ForwardArgs, ModelOutput};
use std::cell::RefCell;

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
    pub(super) interventions: Interventions,
    pub(super) made_by: Provenance,
}

impl Scene<'_> {
    /// Whether the user named any layers or heads.
    pub(super) fn is_chosen(&self) -> bool {
        !(self.args.layer.is_empty() && self.args.head.is_empty())
    }

    /// Runs the transformer and calls `each` with every layer that it names and the layer's weights (1, H, T, T), one at a
    /// time, while the model runs. It leaves out the output projection, since it does not show the logits.
    pub(super) fn run(
        &self,
        args: ForwardArgs,
        layers: &[usize],
        each: impl FnMut(usize, &Tensor) -> anyhow::Result<()>,
    ) -> anyhow::Result<ModelOutput> {
        let state = RefCell::new((each, None));
        let reader = on(layers.iter().map(|&layer| Point::Pattern(layer)), |at, weights| {
            let Point::Pattern(layer) = at.point else { return Ok(None) };
            let (each, failed) = &mut *state.borrow_mut();
            self.check_finite([weights]).and_then(|()| each(layer, weights)).map_err(|e| {
                let error = candle_core::Error::msg(format!("{e:#}"));
                *failed = Some(e);
                error
            })?;
            Ok(None)
        });
        let hooks: [&dyn Hooks; 2] = [&self.interventions, &reader];
        let args = ForwardArgs { hooks: Some(&Chain(&hooks)), ..args };
        let output = self.session.model.transformer.forward(&self.ids, args);
        drop(reader);
        if let Some(error) = state.into_inner().1 {
            return Err(error);
        }
        let output = output?;
        let summaries = output.summaries.iter().flat_map(|of| [&of.entropy, &of.mean_distance, &of.on_first]);
        let others = output.attention_outputs.iter().chain([&output.last_hidden_state]);
        self.check_finite(summaries.chain(others))?;
        Ok(output)
    }

    /// Refuses numbers that are not finite, unless the user allows them.
    pub(super) fn check_finite<'t>(
        &self,
        results: impl IntoIterator<Item = &'t Tensor>,
    ) -> anyhow::Result<()> {
        self.args.finite.check(self.session, &self.ids, Some(&self.interventions), results)
    }
}
