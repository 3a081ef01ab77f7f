//! Patching over many pairs: means with their standard errors.

use super::agreement::{check_difference, correlation};
use super::options::Options;
use super::paths::{PathPatch, measure};
use crate::interventions::Reads;
use crate::provenance::RunProvenance;
use crate::studies::interpret::measure::Measured;
use crate::studies::study::{Mean, Run};
use candle_core::{DType, Device, Tensor};
use gpt2_circuits::discovery::Pair;
use gpt2_model::analysis::{Contrast, Parts, activation_patching, attribution_patching};
use gpt2_model::hooks::Hooks;
use serde::Serialize;

/// Means over all pairs.
#[derive(Debug, Serialize)]
pub struct PairsReport {
    /// The facts that it depends on.
    pub provenance: RunProvenance,
    /// The source of the pairs.
    pub settings: serde_json::Value,
    /// The number of pairs.
    pub pairs: usize,
    /// The metric; null for the logit difference of the answers, or the log-probability of the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// The metric after the clean texts.
    pub clean_difference: Mean,
    /// The metric after the corrupted texts.
    pub corrupt_difference: Mean,
    /// Each head at all positions, as a share of the mean difference.
    pub heads: Vec<HeadMeans>,
    /// Pearson's correlation between the means of the estimates and those of the exact numbers.
    pub correlation: Option<f64>,
    /// Each layer's halves at all positions.
    pub layers: Vec<LayerMeans>,
    /// The loss of the clean runs along each path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathPatch>,
    /// The numbers of each pair.
    pub each: Vec<PairDifferences>,
}

/// A head's patches.
#[derive(Debug, Serialize)]
pub struct HeadMeans {
    /// Its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// The share of the mean difference that it brings back.
    pub exact: Mean,
    /// The estimate of `exact` by attribution patching.
    pub estimated: Mean,
}

/// The patches of a layer's two halves.
#[derive(Debug, Serialize)]
pub struct LayerMeans {
    /// The layer.
    pub layer: usize,
    /// The share that its attention brings back.
    pub attention: Mean,
    /// The share that its MLP brings back.
    pub mlp: Mean,
}

/// The numbers of one pair: logit differences, not shares.
#[derive(Debug, Serialize)]
pub struct PairDifferences {
    /// After the clean text.
    pub clean: f64,
    /// After the corrupted text.
    pub corrupt: f64,
    /// The difference that each head at all positions brings back, by layer and head.
    pub heads: Vec<Vec<f64>>,
    /// The estimates of `heads`.
    pub heads_estimated: Vec<Vec<f64>>,
    /// The difference that each layer's attention brings back.
    pub attention: Vec<f64>,
    /// The difference that each layer's MLP brings back.
    pub mlps: Vec<f64>,
}

const PARTS: [Parts; 3] = [Parts::Heads, Parts::Attention, Parts::Mlps];

impl Options {
    pub(super) fn many(&self, run: &Run, measured: Measured) -> anyhow::Result<PairsReport> {
        let opened = run.opened;
        let pairs = &measured.pairs[..];
        let applied = run.interventions.of(Reads::Others("pairs of prompts"))?;
        let hooks = (!applied.list.is_empty()).then_some(&applied.list as &dyn Hooks);
        let mut each = vec![];
        for (done, pair) in pairs.iter().enumerate() {
            each.push(of_pair(run, pair, hooks)?);
            run.observer.step("pairs", done as u64 + 1, Some(pairs.len() as u64))?;
        }
        let mean = |of: &dyn Fn(&PairDifferences) -> f64| Mean::of(&each.iter().map(of).collect::<Vec<_>>());
        let clean = mean(&|pair| pair.clean);
        let corrupt = mean(&|pair| pair.corrupt);
        let difference = clean.mean - corrupt.mean;
        let wrong = measured.is_difference.then_some("the wrong one");
        check_difference(run, clean.mean, difference, "the right answer", wrong, self.metric)?;
        let share = |of: &dyn Fn(&PairDifferences) -> f64| mean(&|pair| of(pair) / difference);
        let layers = opened.model.config().n_layer;
        let count = opened.model.config().n_head;
        let of_head = |(layer, head): (usize, usize)| HeadMeans {
            layer,
            head,
            exact: share(&|pair| pair.heads[layer][head]),
            estimated: share(&|pair| pair.heads_estimated[layer][head]),
        };
        let heads: Vec<HeadMeans> =
            (0..layers).flat_map(|layer| (0..count).map(move |head| (layer, head))).map(of_head).collect();
        let of_layer = |layer: usize| LayerMeans {
            layer,
            attention: share(&|pair| pair.attention[layer]),
            mlp: share(&|pair| pair.mlps[layer]),
        };
        let layers = (0..layers).map(of_layer).collect();
        let paths = match &self.path[..] {
            [] => vec![],
            paths => measure(run, pairs, &applied, paths, self.freeze)?.paths,
        };
        let longest = pairs.first().map_or(1, |pair| pair.clean.len());
        Ok(PairsReport {
            provenance: RunProvenance::of_tokens(opened, longest)?.under(&applied),
            settings: measured.facts,
            pairs: pairs.len(),
            metric: measured.metric,
            clean_difference: clean,
            corrupt_difference: corrupt,
            correlation: correlation(&heads, |head| (head.exact.mean, head.estimated.mean)),
            heads,
            layers,
            paths,
            each,
        })
    }
}

fn of_pair(run: &Run, pair: &Pair, hooks: Option<&dyn Hooks>) -> anyhow::Result<PairDifferences> {
    let opened = run.opened;
    let clean = opened.input_ids(&pair.clean)?;
    let corrupt = opened.input_ids(&pair.corrupt)?;
    let contrast = Contrast { clean: &clean, corrupt: &corrupt, metric: &pair.metric, hooks };
    // A step is a whole pair.
    let mut quiet = |_, _| Ok(());
    let patched = activation_patching(&opened.model, &contrast, &PARTS, &mut quiet)?;
    let estimate = attribution_patching(&opened.model, &contrast)?.heads.sum(2)?; // (L, H)
    let number = Tensor::new(&[patched.clean, patched.corrupt], &Device::Cpu)?;
    run.check_finite(&clean, hooks, patched.maps.iter().chain([&number, &estimate]))?;
    let gained = |map: &Tensor| map.to_dtype(DType::F64)? - patched.corrupt;
    Ok(PairDifferences {
        clean: patched.clean,
        corrupt: patched.corrupt,
        heads: gained(&patched.maps[0])?.to_vec2()?,
        heads_estimated: estimate.to_vec2()?,
        attention: gained(&patched.maps[1])?.to_vec1()?,
        mlps: gained(&patched.maps[2])?.to_vec1()?,
    })
}
