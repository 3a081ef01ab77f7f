//! Patching for one pair: shares of its own difference, also by position.

use super::agreement::{check_difference, correlation};
use super::options::Options;
use super::paths::{PathPatch, measure};
use crate::interventions::Reads;
use crate::observer::steps;
use crate::open::Label;
use crate::provenance::RunProvenance;
use crate::studies::interpret::measure::Measured;
use crate::studies::study::{Outcome, Run};
use crate::texts::{Answers, PairInput};
use anyhow::Context;
use candle_core::{Device, Tensor};
use gpt2_circuits::discovery::Pair;
use gpt2_model::analysis::{Contrast, Parts, activation_patching, attribution_patching};
use gpt2_model::hooks::Hooks;
use serde::Serialize;

/// The effect of each part of the clean run on the corrupted run's metric, as a share of the way to the clean one's.
#[derive(Debug, Serialize)]
pub struct PairReport {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The clean text's tokens.
    pub clean: Vec<Label>,
    /// The corrupted text's tokens.
    pub corrupt: Vec<Label>,
    /// The right answers.
    pub answer: Answers,
    /// The wrong ones; null where the metric is the right answer's log-probability.
    pub against: Option<Answers>,
    /// The metric; null for the logit difference of the answers, or the log-probability of the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// The answer's logit minus the other token's.
    pub clean_difference: f64,
    /// The difference after the corrupted text.
    pub corrupt_difference: f64,
    /// Each head at all positions.
    pub heads: Vec<HeadPatch>,
    /// Pearson's correlation between the estimates and the exact numbers of the heads.
    pub correlation: Option<f64>,
    /// The shares that each layer's attention and MLP bring back, at all positions.
    pub layers: Vec<LayerPatch>,
    /// The residual stream before each block, at each position: a row for each layer.
    pub streams: Vec<Vec<f64>>,
    /// The shares that each layer's attention brings back, at each position.
    pub attention: Option<Vec<Vec<f64>>>,
    /// The shares that each layer's MLP brings back, at each position.
    pub mlps: Option<Vec<Vec<f64>>>,
    /// Each head at each position, by layer, head and position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads_by_position: Option<Vec<Vec<Vec<f64>>>>,
    /// The estimates of each head at each position.
    pub heads_by_position_estimated: Vec<Vec<Vec<f64>>>,
    /// The loss of the clean run along each path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathPatch>,
}

/// A head's patch.
#[derive(Debug, Clone, Serialize)]
pub struct HeadPatch {
    /// Its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// The share of the difference that the head brings back: 0 as in the corrupted run, 1 as in the clean one.
    pub exact: f64,
    /// The estimate of `exact` by attribution patching.
    pub estimated: f64,
}

/// The patches of a layer's two halves.
#[derive(Debug, Serialize)]
pub struct LayerPatch {
    /// The layer.
    pub layer: usize,
    /// The share that its attention brings back.
    pub attention: f64,
    /// The share that its MLP brings back.
    pub mlp: f64,
}

/// The parts that are patched, and their metrics.
struct PatchedParts {
    parts: Vec<Parts>,
    maps: Vec<Tensor>,
    corrupt: f64,
    difference: f64,
}

impl PatchedParts {
    /// A part's metrics as shares of the difference; `None` if it was not patched.
    fn optional(&self, of: Parts) -> candle_core::Result<Option<Tensor>> {
        let map = self.parts.iter().zip(&self.maps).find(|(parts, _)| **parts == of).map(|(_, map)| map);
        map.map(|map| map.affine(1.0 / self.difference, -self.corrupt / self.difference)).transpose()
    }

    fn shares(&self, of: Parts) -> anyhow::Result<Tensor> {
        self.optional(of)?.with_context(|| format!("no map of {of:?}"))
    }

    /// The shares at each position.
    fn rows(&self, of: Parts) -> candle_core::Result<Option<Vec<Vec<f64>>>> {
        self.optional(of)?.map(|shares| shares.to_vec2()).transpose()
    }
}

impl Options {
    /// The parts to patch.
    fn parts(&self) -> Vec<Parts> {
        let mut parts = vec![Parts::Heads, Parts::Attention, Parts::Mlps, Parts::Streams];
        parts.extend(self.by_position.then_some(Parts::HeadsByPosition));
        if !self.summary {
            parts.extend([Parts::AttentionByPosition, Parts::MlpsByPosition]);
        }
        parts
    }

    /// The tensors are the shares of `heads`, (L, H), and of `streams`, (L, T).
    pub(super) fn one(
        &self,
        run: &Run,
        texts: &PairInput,
        pair: &Pair,
        measured: &Measured,
    ) -> anyhow::Result<Outcome<PairReport>> {
        let opened = run.opened;
        let Pair { clean, corrupt, metric } = pair;
        let applied = run.interventions.of(Reads::Branches(clean))?;
        let clean_ids = opened.input_ids(clean)?;
        let corrupt_ids = opened.input_ids(corrupt)?;
        let hooks = (!applied.list.is_empty()).then_some(&applied.list as &dyn Hooks);
        let contrast = Contrast { clean: &clean_ids, corrupt: &corrupt_ids, metric, hooks };
        let parts = self.parts();
        let patched =
            activation_patching(&opened.model, &contrast, &parts, &mut steps(run.observer, "runs"))?;
        let difference = patched.clean - patched.corrupt;
        let number = |x: f64| Tensor::new(x, &Device::Cpu);
        run.check_finite(&clean_ids, hooks, [&number(patched.clean)?])?;
        run.check_finite(&corrupt_ids, hooks, [&number(patched.corrupt)?])?;
        let wrong = texts.incorrect.as_ref().filter(|_| measured.is_difference).map(Answers::shown);
        check_difference(
            run,
            patched.clean,
            difference,
            &texts.correct.shown(),
            wrong.as_deref(),
            self.metric,
        )?;
        let estimate = attribution_patching(&opened.model, &contrast)?;
        run.check_finite(&corrupt_ids, hooks, patched.maps.iter().chain([&estimate.heads]))?;
        let paths = match &self.path[..] {
            [] => vec![],
            paths => measure(run, std::slice::from_ref(pair), &applied, paths, self.freeze)?.paths,
        };
        let patches = PatchedParts { parts, maps: patched.maps, corrupt: patched.corrupt, difference };
        let labels = |ids: &[u32]| ids.iter().map(|&id| opened.label(id)).collect();
        let mut provenance = RunProvenance::new(opened, clean)?.under(&applied);
        provenance.corrupt_ids.clone_from(corrupt);
        let exact = patches.shares(Parts::Heads)?; // (L, H)
        let streams = patches.shares(Parts::Streams)?; // (L, T)
        let by_position = patches.optional(Parts::HeadsByPosition)?; // (L, H, T)
        let heads = heads(&exact, &(estimate.heads.sum(2)? / difference)?)?;
        let report = PairReport {
            provenance,
            clean: labels(clean),
            corrupt: labels(corrupt),
            answer: texts.correct.clone(),
            against: texts.incorrect.clone(),
            metric: measured.metric.clone(),
            clean_difference: patched.clean,
            corrupt_difference: patched.corrupt,
            correlation: correlation(&heads, |head| (head.exact, head.estimated)),
            heads,
            layers: layers(&patches.shares(Parts::Attention)?, &patches.shares(Parts::Mlps)?)?,
            streams: streams.to_vec2()?,
            attention: patches.rows(Parts::AttentionByPosition)?,
            mlps: patches.rows(Parts::MlpsByPosition)?,
            heads_by_position: by_position.map(|map| map.to_vec3()).transpose()?,
            heads_by_position_estimated: (estimate.heads / difference)?.to_vec3()?,
            paths,
        };
        let tensors = vec![("heads".to_owned(), exact), ("streams".to_owned(), streams)];
        Ok(Outcome { report, tensors })
    }
}

/// Exact and estimated shares (L, H), head by head.
fn heads(exact: &Tensor, estimated: &Tensor) -> anyhow::Result<Vec<HeadPatch>> {
    let count = exact.dim(1)?;
    let both = exact.flatten_all()?.to_vec1()?.into_iter().zip(estimated.flatten_all()?.to_vec1()?);
    let of = |(i, (exact, estimated))| HeadPatch { layer: i / count, head: i % count, exact, estimated };
    Ok(both.enumerate().map(of).collect())
}

/// Attention and MLPs (L) each, by layer.
fn layers(attention: &Tensor, mlps: &Tensor) -> anyhow::Result<Vec<LayerPatch>> {
    let both = attention.to_vec1()?.into_iter().zip(mlps.to_vec1()?).enumerate();
    Ok(both.map(|(layer, (attention, mlp))| LayerPatch { layer, attention, mlp }).collect())
}
