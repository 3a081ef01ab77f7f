//! Ablation and activation patching: heads ablated one at a time, and parts of a run replaced by those of another text.

use super::metric::{Metric, wide};
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::attention::pass::Pass;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::{
    At, Chain, Head, Hooks, Intervention, Interventions, PassHooks, Patch, Place, Point, Recorder,
};
use candle_core::{Device, Module, Result, Tensor};

/// The parts of the corrupted run to replace by the clean run's, each in a run of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parts {
    /// Each head's context z at all positions: a map (L, H).
    Heads,
    /// Each head's context z at each position: a map (L, H, T).
    HeadsByPosition,
    /// The residual stream before each block, at each position: a map (L, T).
    Streams,
    /// Each attention block's output, at all positions: a map (L).
    Attention,
    /// Each attention block's output, at each position: a map (L, T).
    AttentionByPosition,
    /// Each MLP's output, at all positions: a map (L).
    Mlps,
    /// Each MLP's output, at each position: a map (L, T).
    MlpsByPosition,
}

/// A clean text, which the model should get right, a corrupted text of the same length, and the metric that tells them
/// apart.
#[derive(Debug, Clone, Copy)]
pub struct Contrast<'a> {
    /// (1, T)
    pub clean: &'a Tensor,
    /// (1, T)
    pub corrupt: &'a Tensor,
    /// The metric: of the prediction after the last token, or of the text.
    pub metric: &'a Metric,
    /// Hooks for every run of either text, such as [`Interventions`] with fixed means. They must treat the rows of a
    /// batch alike and apart.
    pub hooks: Option<&'a dyn Hooks>,
}

/// The result of activation patching.
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
/// and their total; its error ends the work.
///
/// # Errors
/// When the texts are not (1, T) each, with ids below V and T at most N, for an answer that is not below V, and for the errors
/// of the hooks.
pub fn activation_patching(
    model: &Gpt2LMHeadModel,
    contrast: &Contrast,
    parts: &[Parts],
    progress: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<Patched> {
    let t = contrast.check()?;
    contrast.metric.check_of_each("patching")?;
    let config = model.config();
    let (layers, heads) = (config.n_layer, config.n_head);
    let recorder =
        Recorder::new((0..layers).flat_map(|layer| parts.iter().map(move |parts| parts.point(layer))));
    let clean = contrast.run(model, contrast.clean, &recorder)?;
    let shape = |parts: &Parts| match parts {
        Parts::Heads => vec![layers, heads],
        Parts::HeadsByPosition => vec![layers, heads, t],
        Parts::Attention | Parts::Mlps => vec![layers],
        Parts::Streams | Parts::AttentionByPosition | Parts::MlpsByPosition => vec![layers, t],
    };
    let count = |parts: &Parts| shape(parts).iter().product::<usize>();
    let mut done = 0;
    let total = parts.iter().map(count).sum();
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
        progress(done, total)
    })?;
    let mut values: Vec<Vec<f64>> = vec![vec![]; parts.len()];
    for of_layer in found {
        let mut rest = of_layer.into_iter();
        for (values, parts) in values.iter_mut().zip(parts) {
            values.extend(rest.by_ref().take(count(parts) / layers));
        }
    }
    let map = |(values, parts): (Vec<f64>, &Parts)| Tensor::from_vec(values, shape(parts), &Device::Cpu);
    let maps = values.into_iter().zip(parts).map(map).collect::<Result<_>>()?;
    Ok(Patched { clean, corrupt, maps })
}

impl Parts {
    fn point(self, layer: usize) -> Point {
        match self {
            Self::Heads | Self::HeadsByPosition => Point::Z(layer),
            Self::Streams => Point::ResidPre(layer),
            Self::Attention | Self::AttentionByPosition => Point::AttnOut(layer),
            Self::Mlps | Self::MlpsByPosition => Point::MlpOut(layer),
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
            Self::Attention => vec![(Place::Attention(layer), None)],
            Self::AttentionByPosition => by_position(Place::Attention(layer)).collect(),
            Self::Mlps => vec![(Place::Mlp(layer), None)],
            Self::MlpsByPosition => by_position(Place::Mlp(layer)).collect(),
        }
    }
}

impl Contrast<'_> {
    /// T, if the texts fit each other.
    pub(super) fn check(&self) -> Result<usize> {
        let ((b, t), other) = (self.clean.dims2()?, self.corrupt.dims2()?);
        if b != 1 || other != (b, t) {
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
        wide(&self.metric.of_texts(&logits)?.get(0)?)?.to_scalar()
    }

    /// The logits that the metric reads: the last position's, (1, 1, V), or all, (1, T, V).
    pub(super) fn logits(&self, model: &Gpt2LMHeadModel, ids: &Tensor, hooks: &dyn Hooks) -> Result<Tensor> {
        let all: Vec<&dyn Hooks> = self.hooks.into_iter().chain([hooks]).collect();
        let chain = Chain(&all);
        let last_logits_only = !self.metric.reads_all_positions();
        let args = ForwardArgs { hooks: Some(&chain), last_logits_only, ..Default::default() };
        Ok(model.forward(ids, args)?.logits)
    }
}

/// The value that replaces a head's context z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ablation {
    /// Zero (Michel et al. 2019).
    #[default]
    Zero,
    /// The mean of z over the text's positions, the same vector at each position (after Wang et al. 2022).
    Mean,
}

/// The effect of ablating each head on the prediction at the end of a text.
#[derive(Debug, Clone)]
pub struct AblationEffects {
    /// The metric with all heads in place.
    pub plain: f64,
    /// The change of the metric when the head is ablated at every position, (L, H) in f64. Below 0, the head helped.
    pub change: Tensor,
}

/// For every head, the change in `metric` after the text when the head is ablated: its total effect, through everything that
/// reads it later. The numbers are the same as from one forward pass per head under
/// [`Interventions`](crate::hooks::Interventions), on top of `hooks`, which act in every run and must treat the rows of a
/// batch alike and apart.
///
/// The layers below a head run once; those above it run on copies of the text, several heads at a time; without hooks, the
/// last block runs for the last position only.
///
/// # Shapes
/// `input_ids` (1, T) -> see [`AblationEffects`]
///
/// # Errors
/// When the ids are not one text of 1 to N ids below V, a token of the metric is not below V, or a hook fails.
pub fn ablation_effects(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    metric: &Metric,
    ablation: Ablation,
    hooks: Option<&dyn Hooks>,
) -> Result<AblationEffects> {
    if input_ids.dims2()?.0 != 1 {
        candle_core::bail!("input_ids {:?}: expected one text of shape [1, T]", input_ids.dims())
    }
    metric.check_of_each("ablation effects")?;
    let config = model.config();
    let (layers, heads) = (config.n_layer, config.n_head);
    let of_layer = |layer: usize| {
        let ablated = |head: usize| {
            let head = Head { layer, head };
            let change = match ablation {
                Ablation::Zero => Intervention::ZeroAblate(head),
                Ablation::Mean => Intervention::MeanAblate(head),
            };
            Interventions::new([change], config)
        };
        (0..heads).map(ablated).collect()
    };
    let (plain, found) = Branches { model, metric, hooks }.run(input_ids, of_layer, &mut |_| Ok(()))?;
    let change: Vec<f64> = found.into_iter().flatten().map(|ablated| ablated - plain).collect();
    Ok(AblationEffects { plain, change: Tensor::from_vec(change, (layers, heads), &Device::Cpu)? })
}

/// The number of positions to run at a time, over all copies of the text: enough to keep the matrix products
/// busy, few enough for memory.
const POSITIONS: usize = 1024;

/// A text, whose copies run from some layer on, each with its own change. The layers below run once.
struct Branches<'a> {
    model: &'a Gpt2LMHeadModel,
    metric: &'a Metric,
    /// Hooks for the text itself and all of its copies.
    hooks: Option<&'a dyn Hooks>,
}

impl Branches<'_> {
    /// The metric without a change, and that with each of a layer's changes: `changes` gives those of a layer. Calls
    /// `done` with the number of changes that have run, after each group of them.
    ///
    /// `input_ids` (1, T)
    fn run(
        &self,
        input_ids: &Tensor,
        changes: impl Fn(usize) -> Result<Vec<Interventions>>,
        done: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<(f64, Vec<Vec<f64>>)> {
        let mut x = self.model.transformer.embedded(
            input_ids,
            None,
            None,
            PassHooks { hooks: self.hooks, ..PassHooks::default() },
        )?; // (1, T, C)
        let at_once = (POSITIONS / x.dim(1)?).max(1);
        let mut found = vec![];
        for layer in 0..self.model.transformer.h.len() {
            let mut of_layer = vec![];
            for some in changes(layer)?.chunks(at_once) {
                let copies = x.repeat((some.len(), 1, 1))?;
                let change = ByRow(some);
                let copies = self.block(layer, &copies, Some(&change))?;
                of_layer.extend(self.finish(layer + 1, copies)?);
                done(some.len())?;
            }
            found.push(of_layer);
            x = self.block(layer, &x, None)?;
        }
        let plain = self.finish(self.model.transformer.h.len(), x)?;
        Ok((plain.first().copied().unwrap_or(f64::NAN), found))
    }

    /// The metric at the end of each copy, from the stream before block `layer`: (copies, T, C) -> copies
    fn finish(&self, layer: usize, mut x: Tensor) -> Result<Vec<f64>> {
        let transformer = &self.model.transformer;
        let blocks = transformer.h.len();
        for layer in layer..blocks {
            // Nothing reads the other positions after the last block.
            let last_position_only =
                self.hooks.is_none() && layer + 1 == blocks && !self.metric.reads_all_positions();
            x = if last_position_only {
                transformer.h[layer]
                    .forward_with(&x, Pass { last_position_only, ..Pass::default() })?
                    .hidden_state
            } else {
                self.block(layer, &x, None)?
            };
        }
        let t = x.dim(1)?;
        let first = if self.metric.reads_all_positions() { 0 } else { t - 1 };
        let read = x.narrow(1, first, t - first)?.contiguous()?;
        let hooks = PassHooks { hooks: self.hooks, past: first, ..PassHooks::default() };
        let normed = transformer.ln_f.forward_hooked(&read, None, Point::LN_F, hooks)?;
        let logits = hooks.pass(Point::Logits, self.model.lm_head.forward(&normed)?)?;
        let metrics: Vec<f64> = wide(&self.metric.of_texts(&logits)?)?.to_vec1()?; // (copies, 1 or T, V) -> copies
        if metrics.len() != logits.dim(0)? {
            candle_core::bail!(
                "patching: {} metrics of {} texts; expected one of each",
                metrics.len(),
                logits.dim(0)?
            )
        }
        Ok(metrics)
    }

    fn block(&self, layer: usize, x: &Tensor, change: Option<&ByRow>) -> Result<Tensor> {
        let all: Vec<&dyn Hooks> =
            self.hooks.into_iter().chain(change.map(|change| change as &dyn Hooks)).collect();
        let chain = Chain(&all);
        let hooks: Option<&dyn Hooks> = if all.is_empty() { None } else { Some(&chain) };
        Ok(self.model.transformer.h[layer].forward_with(x, Pass { hooks, ..Pass::default() })?.hidden_state)
    }
}

/// A change of values, without knock-outs, for each row of the batch.
struct ByRow<'a>(&'a [Interventions]);

impl Hooks for ByRow<'_> {
    fn wants(&self, point: Point) -> bool {
        self.0.iter().any(|change| change.wants(point))
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let rows = self.0.iter().enumerate().map(|(i, change)| {
            let row = value.narrow(0, i, 1)?;
            if !change.wants(at.point) {
                return Ok(row);
            }
            Ok(change.at(at, &row)?.unwrap_or(row))
        });
        Ok(Some(Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)?))
    }
}
