//! The subject of attention weights: the model, the text, and the chosen layers and heads; and the model's predictions
//! there.

use crate::interventions::Applied;
use crate::open::{Opened, check_finite};
use crate::provenance::RunProvenance;
use crate::texts::Prompt;
use candle_core::{DType, Device, Module, Tensor};
use gpt2_model::analysis::most_likely;
use gpt2_model::hooks::{Chain, Head, Hooks, Point, on};
use gpt2_model::{Config, ForwardArgs, ModelOutput, Summary};
use gpt2_view::{
    FirstLook, HeadJson, HeadSummary, LayerJson, LikelyJson, NextToken, QueryNumbers, RunJson, Silenced,
};
use rayon::prelude::*;
use std::cell::RefCell;

/// The number of next tokens that the page shows for each position.
const LIKELY: usize = 5;
/// The number of positions whose logits are in memory at a time.
const CHUNK: usize = 64;

/// The most tokens among which a first look searches for links: the search reads all weights of a layer, and their
/// number grows with the square of the tokens.
pub const MOST_LINKED: usize = 2048;

/// Layers, and heads of each.
#[derive(Debug, Clone, Copy)]
pub struct ChosenHeads<'a> {
    /// The layers.
    pub layers: &'a [usize],
    /// The heads of each.
    pub heads: &'a [usize],
}

/// All layers of a model, and all heads of each.
#[must_use]
pub fn all_heads(config: &Config) -> [Vec<usize>; 2] {
    [config.n_layer, config.n_head].map(|count| (0..count).collect())
}

/// The model, text, layers and heads that attention weights belong to.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The model.
    pub opened: &'a Opened,
    /// The text's ids.
    pub ids: &'a [u32],
    /// The text of each token.
    pub tokens: &'a [String],
    /// The labels for a reader: see [`Opened::shown`].
    pub shown: &'a [String],
    /// The chosen layers.
    pub layers: &'a [usize],
    /// The chosen heads of each layer.
    pub heads: &'a [usize],
    /// The interventions.
    pub changes: &'a Applied,
    /// Whether NaN and infinity are results instead of errors.
    pub allow_nonfinite: bool,
    /// The facts that the weights depend on.
    pub made_by: RunProvenance,
}

/// The queries, keys and values of a layer's attention at its hook points, (1, T, heads, D) each.
#[derive(Debug, Default)]
pub struct LayerValues {
    /// The queries.
    pub q: Option<Tensor>,
    /// The keys.
    pub k: Option<Tensor>,
    /// The values.
    pub v: Option<Tensor>,
}

impl<'a> Subject<'a> {
    /// The heads of a run over a prompt.
    ///
    /// # Errors
    /// When no attention can run for its tokens.
    pub fn new(
        opened: &'a Opened,
        prompt: &'a Prompt,
        ChosenHeads { layers, heads }: ChosenHeads<'a>,
        changes: &'a Applied,
        allow_nonfinite: bool,
    ) -> anyhow::Result<Self> {
        let Prompt { ids, tokens, shown, .. } = prompt;
        let made_by = RunProvenance::new(opened, ids)?.of(layers, heads).under(changes);
        Ok(Self { opened, ids, tokens, shown, layers, heads, changes, allow_nonfinite, made_by })
    }

    /// Refuses numbers that are not finite, unless the caller allows them.
    ///
    /// # Errors
    /// When there is one.
    pub fn check_finite<'t>(&self, results: impl IntoIterator<Item = &'t Tensor>) -> anyhow::Result<()> {
        if self.allow_nonfinite {
            return Ok(());
        }
        check_finite(self.opened, &self.opened.input_ids(self.ids)?, Some(&self.changes.list), results)
    }

    /// The chosen heads whose output the run does not use.
    #[must_use]
    pub fn silenced(&self) -> Silenced {
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
    ///
    /// # Errors
    /// When there are other heads.
    pub fn of_chosen(&self, weights: &Tensor) -> anyhow::Result<Tensor> {
        let index = self.heads.iter().map(|&h| u32::try_from(h)).collect::<Result<Vec<_>, _>>()?;
        let index = Tensor::new(index, weights.device())?;
        Ok(weights.squeeze(0)?.index_select(&index, 0)?.to_dtype(DType::F32)?)
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
                    let taken = self.check_finite([value]).and_then(|()| each(layer, value, &values));
                    taken.map_err(|error| candle_core::Error::msg(format!("{error:#}")))?;
                }
                _ => {}
            }
            Ok(None)
        });
        let hooks: [&dyn Hooks; 2] = [changes, &reader];
        let args = ForwardArgs { hooks: Some(&Chain(&hooks)), ..args };
        let output = self.opened.model.transform(&self.opened.input_ids(self.ids)?, args)?;
        let summaries = output.summaries.iter().flat_map(|of| [&of.entropy, &of.mean_distance, &of.on_first]);
        let others = output.attention_outputs.iter().chain([&output.last_hidden_state]);
        self.check_finite(summaries.chain(others))?;
        Ok(output)
    }

    /// Picks the summaries of the chosen layers and heads from those of all, each (1, H, T).
    pub(super) fn summaries(&self, all: &[Summary]) -> anyhow::Result<Vec<LayerJson>> {
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
            let heads = self.heads.iter().map(|&i| head(&all[layer], i)).collect::<anyhow::Result<_>>()?;
            Ok(LayerJson { layer, heads })
        };
        self.layers.iter().map(layer).collect()
    }

    /// The input of the output projection at the last position: (1, C)
    fn last_hidden(&self, output: &ModelOutput) -> anyhow::Result<Tensor> {
        Ok(output.last_hidden_state.squeeze(0)?.narrow(0, self.ids.len() - 1, 1)?)
    }

    /// The most probable tokens after the text.
    ///
    /// # Errors
    /// When the logits are not finite.
    pub fn next_tokens(&self, output: &ModelOutput) -> anyhow::Result<Vec<LikelyJson>> {
        let row = self.logits(&self.last_hidden(output)?)?.concat();
        let likely = most_likely(&row, LIKELY, None).tokens.into_iter();
        let token = |id: u32| self.opened.labels(&[id]).concat();
        Ok(likely.map(|(id, probability)| LikelyJson { id, token: token(id), probability }).collect())
    }
}

/// The model's predictions after the last positions, from their inputs of the output projection, (rows, C). A prediction
/// after the last of them is compared with `last`, the token that came, if there is one.
///
/// # Errors
/// When the logits are not finite.
pub fn predictions(subject: &Subject, hidden: &Tensor, last: Option<u32>) -> anyhow::Result<Vec<NextToken>> {
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

/// The most probable token after each position, and its probability, if the residual stream after a block were the last:
/// `hidden` (T, C), normalized by `ln_f` already or not.
pub(super) fn likely_by_layer(
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

/// A run for the report: `layers` with what the first look has found of their heads.
pub(super) fn run_json(
    subject: &Subject,
    first: Option<&FirstLook>,
    mut layers: Vec<LayerJson>,
    output: &ModelOutput,
    silenced: &Silenced,
) -> anyhow::Result<RunJson> {
    // What was not looked for is left out.
    let looked = first.filter(|_| subject.ids.len() <= MOST_LINKED);
    for of in &mut layers {
        for head in &mut of.heads {
            head.silenced = silenced.how(of.layer, head.head);
            head.kind = looked.map(|first| head.summary.focus(first.looks(of.layer, head.head)));
        }
    }
    let next = subject.next_tokens(output)?;
    Ok(RunJson { next, links: looked.map(|first| first.links().to_vec()), layers })
}
