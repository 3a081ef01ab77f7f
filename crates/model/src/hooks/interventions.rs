//! A list of interventions, as hooks.

use super::features::{Activity, FeatureChange};
use super::hook::{At, Hooks, KnockOut};
use super::intervention::{Head, Intervention, MEAN_ABLATED, Patch, Place};
use super::point::Point;
use crate::config::Config;
use candle_core::{Result, Tensor};
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::sync::Arc;

/// Interventions, checked against a model's config: [`Hooks`] for [`ForwardArgs::hooks`](crate::ForwardArgs::hooks).
///
/// Interventions on the same head apply in list order.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_model::hooks::{Head, Intervention, Interventions, KnockOut};
/// use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
///
/// # fn main() -> candle_core::Result<()> {
/// # let config = Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
/// # let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
/// # let input_ids = Tensor::new(&[[3u32, 1, 4, 1, 5]], &Device::Cpu)?;
/// let changes = Interventions::new(
///     [
///         Intervention::ZeroAblate(Head { layer: 1, head: 0 }),
///         Intervention::KnockOut(None, KnockOut { head: None, query: 4, key: 2 }),
///     ],
///     model.config(),
/// )?;
/// let output = model.forward(&input_ids, ForwardArgs { hooks: Some(&changes), ..Default::default() })?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Interventions {
    pub(crate) list: Vec<Intervention>,
    /// The indices of the list's entries that were mean ablations until their means were fixed.
    pub(crate) fixed_means: BTreeSet<usize>,
}

impl Interventions {
    /// Checks a list of interventions.
    ///
    /// # Errors
    /// When a layer, head or position does not exist in the model, a factor is not finite, a temperature is not above 0, a
    /// vector or another run's value has another shape than the model's, or a key comes after its query, which never sees it.
    pub fn new(list: impl IntoIterator<Item = Intervention>, config: &Config) -> Result<Self> {
        let list: Vec<_> = list.into_iter().collect();
        list.iter().try_for_each(|one| check(one, config))?;
        Ok(Self { list, fixed_means: BTreeSet::new() })
    }

    /// The interventions, in list order.
    pub fn iter(&self) -> impl Iterator<Item = &Intervention> {
        self.list.iter()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// A word for how the list silences a head; see [`Intervention::silences`].
    #[must_use]
    pub fn silence(&self, head: Head, tokens: usize) -> Option<&'static str> {
        self.list.iter().enumerate().find_map(|(i, one)| {
            let how = one.silences(head, tokens)?;
            Some(if self.fixed_means.contains(&i) { MEAN_ABLATED } else { how })
        })
    }

    /// The heads of a model that the list silences in a text of `tokens` tokens, each with the word of
    /// [`silence`](Self::silence).
    pub fn silenced(&self, config: &Config, tokens: usize) -> impl Iterator<Item = (Head, &'static str)> {
        let heads =
            (0..config.n_layer).flat_map(|layer| (0..config.n_head).map(move |head| Head { layer, head }));
        heads.filter_map(move |head| Some((head, self.silence(head, tokens)?)))
    }

    /// The interventions at a point, each with its index in the list.
    fn at_point(&self, point: Point) -> impl Iterator<Item = (usize, &Intervention)> {
        self.list.iter().enumerate().filter(move |(_, one)| one.acts_at(point))
    }

    /// The value at a point after the interventions there. Calls `meet` before each of them, with its index and the value
    /// that it is about to change: q or z (B, T, 1, D) of its head, a stream (B, T, C), or for custom hooks the whole value.
    pub(crate) fn change(
        &self,
        at: At,
        x: &Tensor,
        mut meet: impl FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Option<Tensor>> {
        if x.rank() == 3 {
            let mut x = x.clone();
            let mut left = self.at_point(at.point).peekable();
            while let Some((i, one)) = left.next() {
                meet(i, &x)?;
                let Intervention::Feature(first) = one else {
                    x = one.changed(at, &x)?;
                    continue;
                };
                x = features(first, &mut left, at, &x, &mut meet)?;
            }
            return Ok(Some(x));
        }
        // Heads apart, as long as one of them changes alone.
        let (mut whole, mut parts): (Tensor, Vec<Tensor>) = (x.clone(), vec![]);
        let mut left = self.at_point(at.point).peekable();
        while let Some((i, one)) = left.next() {
            let Some(Head { layer, head }) = one.head() else {
                whole = joined(whole, &mut parts)?;
                meet(i, &whole)?;
                whole = match one {
                    Intervention::Feature(first) => features(first, &mut left, at, &whole, &mut meet)?,
                    _ => one.changed(at, &whole)?,
                };
                continue;
            };
            let heads = whole.dim(2)?;
            if parts.is_empty() {
                parts = (0..heads).map(|head| whole.narrow(2, head, 1)).collect::<Result<_>>()?; // (B, T, 1, D)
            }
            let Some(part) = parts.get_mut(head) else {
                candle_core::bail!("head {head} of layer {layer}: the model has heads 0 to {}", heads - 1)
            };
            meet(i, part)?;
            *part = one.changed(at, part)?;
        }
        joined(whole, &mut parts).map(Some)
    }
}

/// Changes a feature, and those that follow of the same site, together.
fn features<'a>(
    first: &'a FeatureChange,
    left: &mut Peekable<impl Iterator<Item = (usize, &'a Intervention)>>,
    at: At,
    x: &Tensor,
    meet: &mut impl FnMut(usize, &Tensor) -> Result<()>,
) -> Result<Tensor> {
    let mut together = vec![first];
    while let Some((i, Intervention::Feature(next))) = left.next_if(
        |(_, one)| matches!(one, Intervention::Feature(next) if Arc::ptr_eq(&next.site, &first.site)),
    ) {
        meet(i, x)?;
        together.push(next);
    }
    FeatureChange::all_on(&together, at, x)
}

/// The heads together again, if they are apart.
fn joined(whole: Tensor, parts: &mut Vec<Tensor>) -> Result<Tensor> {
    if parts.is_empty() { Ok(whole) } else { Tensor::cat(&std::mem::take(parts), 2) }
}

fn check(one: &Intervention, config: &Config) -> Result<()> {
    let (layers, heads, positions, d) =
        (config.n_layer, config.n_head, config.n_positions, config.head_dim());
    let (layer, head) = match one {
        Intervention::KnockOut(layer, pair) => (*layer, pair.head),
        Intervention::Patch(patch) => (Some(patch.place.layer()), one.head().map(|head| head.head)),
        Intervention::Add { layer, .. } => (Some(*layer), None),
        Intervention::Feature(change) => (change.site.hook_out().layer(), None),
        _ => (one.head().map(|head| head.layer), one.head().map(|head| head.head)),
    };
    if let Some(layer) = layer.filter(|&layer| layer >= layers) {
        candle_core::bail!("layer {layer}: the model has layers 0 to {}", layers - 1)
    }
    if let Some(head) = head.filter(|&head| head >= heads) {
        let of_layer = layer.map_or_else(String::new, |layer| format!(" of layer {layer}"));
        candle_core::bail!("head {head}{of_layer}: the model has heads 0 to {}", heads - 1)
    }
    match one {
        Intervention::Replace(head, value) if value.dims() != [d] => {
            candle_core::bail!("head {head}: expected a vector of [{d}], got {:?}", value.dims())
        }
        Intervention::Scale(head, factor) if !factor.is_finite() => {
            candle_core::bail!("head {head}: the factor is {factor}, expected a finite number")
        }
        Intervention::Temperature(head, temperature)
            if !(*temperature > 0.0 && temperature.recip().is_finite() && temperature.is_finite()) =>
        {
            candle_core::bail!("head {head}: the temperature is {temperature}, expected a number above 0")
        }
        Intervention::Add { layer, position, vector } => {
            if vector.dims() != [config.n_embd] {
                candle_core::bail!(
                    "vector for layer {layer}: expected {} numbers (n_embd), got {:?}",
                    config.n_embd,
                    vector.dims()
                )
            }
            check_position(*position, positions)
        }
        Intervention::Patch(patch) => check_patch(patch, config),
        Intervention::Feature(change) => check_feature(change, config),
        Intervention::KnockOut(_, KnockOut { query, .. }) if *query >= positions => {
            candle_core::bail!("position {query}: the model has positions 0 to {}", positions - 1)
        }
        Intervention::KnockOut(_, KnockOut { query, key, .. }) if key > query => candle_core::bail!(
            "block {query}:{key}: position {query} attends to positions 0 to {query} alone; the query stands first, as in \
             {key}:{query}"
        ),
        _ => Ok(()),
    }
}

fn check_position(position: Option<usize>, positions: usize) -> Result<()> {
    match position.filter(|&position| position >= positions) {
        Some(position) => {
            candle_core::bail!("position {position}: the model has positions 0 to {}", positions - 1)
        }
        None => Ok(()),
    }
}

fn check_feature(change: &FeatureChange, config: &Config) -> Result<()> {
    let FeatureChange { site, feature, to, position } = change;
    let (Activity::Times(number) | Activity::Set(number)) = to;
    if !number.is_finite() {
        candle_core::bail!("feature {feature}: {number} is not a finite number")
    }
    let dictionary = site.dictionary();
    if *feature as usize >= dictionary.features() {
        candle_core::bail!(
            "feature {feature}: the dictionary has features 0 to {}",
            dictionary.features() - 1
        )
    }
    // In the order of the forward pass.
    let place = |point: Point| match point {
        Point::Embed | Point::PosEmbed => None,
        _ => Point::of_model(config.n_layer).position(|other| other == point),
    };
    let hook = site.hook();
    let hook_out = site.hook_out();
    if place(hook) > place(hook_out) {
        candle_core::bail!(
            "feature {feature}: it would change {hook_out}, which comes before {hook}, where it fires"
        )
    }
    hook.check_width(dictionary.d(), config)?;
    hook_out.check_width(dictionary.d_out(), config)?;
    check_position(*position, config.n_positions)
}

fn check_patch(Patch { place, position, from }: &Patch, config: &Config) -> Result<()> {
    let width: &[usize] = match place {
        Place::Head(_) => &[config.n_head, config.head_dim()],
        _ => &[config.n_embd],
    };
    let dims = from.dims();
    if dims.len() != 2 + width.len() || dims[2..] != *width {
        candle_core::bail!(
            "patch of {place}: expected another run's value of [B, T, {width:?}], got {dims:?}"
        )
    }
    match position.filter(|&position| position >= dims[1]) {
        Some(position) => candle_core::bail!(
            "patch of {place} at position {position}: the other text has positions 0 to {}",
            dims[1].saturating_sub(1)
        ),
        None => Ok(()),
    }
}

impl Hooks for Interventions {
    fn wants(&self, point: Point) -> bool {
        self.at_point(point).next().is_some()
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        self.change(at, value, |_, _| Ok(()))
    }

    fn knocked_out(&self, layer: usize) -> Vec<KnockOut> {
        let pairs = |one: &Intervention| match one {
            Intervention::KnockOut(only, pair) if only.is_none_or(|only| only == layer) => vec![*pair],
            Intervention::Custom(custom) => custom.hooks.knocked_out(layer),
            _ => vec![],
        };
        self.list.iter().flat_map(pairs).collect()
    }
}
