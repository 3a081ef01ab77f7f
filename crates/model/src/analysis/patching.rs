//! Activation patching: which parts of a run carry what makes two texts differ.

use super::{Metric, branches::Branches, wide::wide};
use crate::hooks::{Head, Hooks, Intervention, Interventions, Patch, Place, Point, Recorder};
use crate::{ForwardArgs, Gpt2LMHeadModel};
use candle_core::{Device, Result, Tensor};
use std::collections::BTreeMap;

/// Which parts of the corrupted run to replace by those of the clean one, each in a run of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parts {
    /// Each head's context z at all positions: a map (L, H).
    Heads,
    /// Each head's context z at each position: a map (L, H, T).
    HeadsByPosition,
    /// The residual stream before each block, at each position: a map (L, T).
    Streams,
    /// What each attention block adds to the stream, at each position: a map (L, T).
    Attention,
    /// What each MLP adds to the stream, at each position: a map (L, T).
    Mlps,
}

/// Two texts of the same length that differ in what matters, and how to tell: the clean one, which the model should get
/// right, and the corrupted one.
#[derive(Debug, Clone, Copy)]
pub struct Contrast<'a> {
    /// (1, T)
    pub clean: &'a Tensor,
    /// (1, T)
    pub corrupt: &'a Tensor,
    /// What to measure after the last token.
    pub metric: Metric,
    /// Hooks for every run of either text, such as [`Interventions`] with fixed means. They must treat the rows of a
    /// batch alike and apart.
    pub hooks: Option<&'a dyn Hooks>,
}

/// What patching shows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Patched {
    /// The metric of the clean run.
    pub clean: f64,
    /// The metric of the corrupted run.
    pub corrupt: f64,
    /// The metric of the corrupted run with each part replaced by the clean run's, in f64, in the shape that [`Parts`] names;
    /// one map for each entry of the request.
    pub maps: Vec<Tensor>,
}

/// Replaces parts of the corrupted run by those of the clean one, one at a time, and measures each run: activation patching
/// (Vig et al. 2020; Meng et al. 2022, "Locating and Editing Factual Associations in GPT"; Wang et al. 2022). A part that
/// brings the metric back towards the clean run's carries what the texts differ in.
///
/// The layers below a part run once, and several parts run at a time. `progress` is called with the number of runs done
/// and their total.
///
/// # Errors
/// When the texts are not (1, T) each, with ids below V and T at most N, for an answer that is not below V, and for the errors
/// of the hooks.
pub fn activation_patching(
    model: &Gpt2LMHeadModel,
    contrast: &Contrast,
    parts: &[Parts],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Patched> {
    let t = contrast.check()?;
    let config = model.config();
    let (layers, heads) = (config.n_layer, config.n_head);
    let recorder =
        Recorder::new((0..layers).flat_map(|layer| parts.iter().map(move |parts| parts.point(layer))));
    let clean = contrast.run(model, contrast.clean, &recorder)?;
    let count = |parts: &Parts| match parts {
        Parts::Heads => layers * heads,
        Parts::HeadsByPosition => layers * heads * t,
        Parts::Streams | Parts::Attention | Parts::Mlps => layers * t,
    };
    let (mut done, total) = (0, parts.iter().map(count).sum());
    let branches = Branches { model, metric: contrast.metric, hooks: contrast.hooks };
    // All parts of a layer run together; their results are told apart by their order.
    let of_layer = |layer: usize| -> Result<Vec<Interventions>> {
        let mut all = vec![];
        for parts in parts {
            let from = recorder.value(parts.point(layer))?;
            for (place, position) in parts.of_layer(layer, (heads, t)) {
                let patch = Intervention::Patch(Patch { place, position, from: from.clone() });
                all.push(Interventions::new([patch], config)?);
            }
        }
        Ok(all)
    };
    let (corrupt, found) = branches.run(contrast.corrupt, of_layer, &mut |more| {
        done += more;
        progress(done, total);
    })?;
    let mut values: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for of_layer in found {
        let mut rest = &of_layer[..];
        for (i, parts) in parts.iter().enumerate() {
            let (mine, others) = rest.split_at(count(parts) / layers);
            values.entry(i).or_default().extend(mine);
            rest = others;
        }
    }
    let map = |(i, parts): (usize, &Parts)| {
        let values = values.remove(&i).unwrap_or_default();
        match parts {
            Parts::Heads => Tensor::from_vec(values, (layers, heads), &Device::Cpu),
            Parts::HeadsByPosition => Tensor::from_vec(values, (layers, heads, t), &Device::Cpu),
            Parts::Streams | Parts::Attention | Parts::Mlps => {
                Tensor::from_vec(values, (layers, t), &Device::Cpu)
            }
        }
    };
    let maps = parts.iter().enumerate().map(map).collect::<Result<_>>()?;
    Ok(Patched { clean, corrupt, maps })
}

impl Parts {
    fn point(self, layer: usize) -> Point {
        match self {
            Self::Heads | Self::HeadsByPosition => Point::Z(layer),
            Self::Streams => Point::ResidPre(layer),
            Self::Attention => Point::AttnOut(layer),
            Self::Mlps => Point::MlpOut(layer),
        }
    }

    /// A layer's parts, in the order of the map.
    fn of_layer(self, layer: usize, (heads, t): (usize, usize)) -> Vec<(Place, Option<usize>)> {
        let head = |head| Place::Head(Head { layer, head });
        let by_position = |place: Place| (0..t).map(move |position| (place, Some(position)));
        match self {
            Self::Heads => (0..heads).map(|h| (head(h), None)).collect(),
            Self::HeadsByPosition => (0..heads).flat_map(|h| by_position(head(h))).collect(),
            Self::Streams => by_position(Place::Stream(layer)).collect(),
            Self::Attention => by_position(Place::Attention(layer)).collect(),
            Self::Mlps => by_position(Place::Mlp(layer)).collect(),
        }
    }
}

impl Contrast<'_> {
    /// T, if the texts fit each other.
    pub(super) fn check(&self) -> Result<usize> {
        let ((b, t), other) = (self.clean.dims2()?, self.corrupt.dims2()?);
        if b != 1 || other != (b, t) || t == 0 {
            candle_core::bail!(
                "patching: the clean text is {:?} and the corrupted one {:?}, expected [1, T] each, of the same length",
                self.clean.dims(),
                self.corrupt.dims()
            )
        }
        Ok(t)
    }

    /// The metric of a run over `ids` (1, T), with hooks that come after the contrast's own.
    pub(super) fn run(&self, model: &Gpt2LMHeadModel, ids: &Tensor, hooks: &dyn Hooks) -> Result<f64> {
        let logits = self.logits(model, ids, hooks)?;
        wide(&self.metric.of(&logits)?.flatten_all()?.get(0)?)?.to_scalar()
    }

    /// The last position's logits, (1, 1, V).
    pub(super) fn logits(&self, model: &Gpt2LMHeadModel, ids: &Tensor, hooks: &dyn Hooks) -> Result<Tensor> {
        let all: Vec<&dyn Hooks> = self.hooks.into_iter().chain([hooks]).collect();
        let chain = crate::hooks::Chain(&all);
        let args = ForwardArgs { hooks: Some(&chain), last_logits_only: true, ..Default::default() };
        Ok(model.forward(ids, args)?.logits)
    }
}
