//! The subject of attention weights: the model, the text, and the chosen layers and heads; and the model's predictions
//! there.

use crate::model::args::FiniteArgs;
use candle_core::{DType, Device, Module, Tensor};
use gpt2_engine::Opened;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Applied;
use gpt2_model::analysis::most_likely;
use gpt2_model::hooks::Head;
use gpt2_view::{LikelyJson, NextToken, Silenced};
use rayon::prelude::*;

/// The number of next tokens that the page shows for each position.
const LIKELY: usize = 5;
/// The number of positions whose logits are in memory at a time.
const CHUNK: usize = 64;

/// The model, text, layers and heads that attention weights belong to.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) opened: &'a Opened,
    /// The text's ids, and the label of each.
    pub(crate) ids: &'a [u32],
    pub(crate) tokens: &'a [String],
    /// The labels for a reader: see [`Opened::shown`].
    pub(crate) shown: &'a [String],
    /// The chosen layers, and the chosen heads of each.
    pub(crate) layers: &'a [usize],
    pub(crate) heads: &'a [usize],
    pub(crate) changes: &'a Applied,
    pub(crate) finite: &'a FiniteArgs,
    pub(crate) made_by: &'a RunProvenance,
}

impl Subject<'_> {
    /// Refuses numbers that are not finite, unless the user allows them.
    pub(crate) fn check_finite<'t>(
        &self,
        results: impl IntoIterator<Item = &'t Tensor>,
    ) -> anyhow::Result<()> {
        let ids = self.opened.input_ids(self.ids)?;
        self.finite.check(self.opened, &ids, Some(&self.changes.list), results)
    }

    /// The chosen heads whose output the run does not use.
    pub(crate) fn silenced(&self) -> Silenced {
        let config = self.opened.model.config();
        let chosen = |head: &Head| self.layers.contains(&head.layer) && self.heads.contains(&head.head);
        let mut all = Silenced::default();
        for (head, how) in self.changes.list.silenced(config, self.ids.len()).filter(|(head, _)| chosen(head))
        {
            all.insert(head.layer, head.head, how);
        }
        all
    }

    /// The logits of some positions, from their inputs of the output projection: (rows, C) -> (rows, V)
    fn logits(&self, rows: &Tensor) -> anyhow::Result<Vec<Vec<f32>>> {
        let logits =
            self.opened.model.lm_head.forward(rows)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        self.check_finite([&logits])?;
        Ok(logits.to_vec2()?)
    }

    /// The weights of the chosen heads, in f32, from those of all heads: (1, H, T, T) -> (heads, T, T)
    pub(crate) fn of_chosen(&self, weights: &Tensor) -> anyhow::Result<Tensor> {
        let index = self.heads.iter().map(|&h| u32::try_from(h)).collect::<Result<Vec<_>, _>>()?;
        let index = Tensor::new(index, weights.device())?;
        Ok(weights.squeeze(0)?.index_select(&index, 0)?.to_dtype(candle_core::DType::F32)?)
    }
}

/// The model's predictions after the last positions, from their inputs of the output projection, (rows, C). A prediction
/// after the last of them is compared with `last`, the token that came, if there is one.
pub(crate) fn predictions(
    subject: &Subject,
    hidden: &Tensor,
    last: Option<u32>,
) -> anyhow::Result<Vec<NextToken>> {
    let Subject { opened, ids, .. } = subject;
    let t = hidden.dim(0)?;
    let first = ids.len() - hidden.dim(0)?;
    let mut all = Vec::with_capacity(t);
    for from in (0..t).step_by(CHUNK) {
        let likely: Vec<_> = subject
            .logits(&hidden.narrow(0, from, CHUNK.min(t - from))?)?
            .par_iter()
            .enumerate()
            .map(|(i, row)| most_likely(row, LIKELY, ids.get(first + from + i + 1).copied().or(last)))
            .collect();
        all.extend(likely.into_iter().map(|likely| {
            let (ids, probabilities): (Vec<u32>, Vec<f32>) = likely.tokens.into_iter().unzip();
            let shown = opened.shown(&ids).into_iter().zip(probabilities).collect();
            NextToken { likely: shown, actual: likely.actual }
        }));
    }
    Ok(all)
}

/// The most probable tokens after a position, from its input of the output projection, (1, C).
pub(crate) fn next_tokens(subject: &Subject, hidden: &Tensor) -> anyhow::Result<Vec<LikelyJson>> {
    let row = subject.logits(hidden)?.concat();
    let likely = most_likely(&row, LIKELY, None).tokens.into_iter();
    let token = |id: u32| subject.opened.labels(&[id]).concat();
    Ok(likely.map(|(id, probability)| LikelyJson { id, token: token(id), probability }).collect())
}

/// The most probable token after each position, and its probability, if the residual stream after a block were the last:
/// `hidden` (T, C), normalized by `ln_f` already or not.
pub(crate) fn likely_by_layer(
    subject: &Subject,
    hidden: &Tensor,
    normed: bool,
) -> anyhow::Result<Vec<(String, f32)>> {
    let model = &subject.opened.model;
    let mut all = vec![];
    let t = hidden.dim(0)?;
    for from in (0..t).step_by(CHUNK) {
        let rows = hidden.narrow(0, from, CHUNK.min(t - from))?;
        let rows = if normed { rows } else { model.transformer.ln_f.forward(&rows)? };
        let best =
            |row: &Vec<f32>| most_likely(row, 1, None).tokens.first().copied().unwrap_or((0, f32::NAN));
        let (ids, likely): (Vec<u32>, Vec<f32>) = subject.logits(&rows)?.par_iter().map(best).unzip();
        all.extend(subject.opened.shown(&ids).into_iter().zip(likely));
    }
    Ok(all)
}
