//! Changes to heads and to attention, as data.

use super::hook::{At, Hooks, KnockOut};
use super::point::Point;
use crate::Config;
use candle_core::{Result, Tensor};

/// A head of a layer, both counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Head {
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
}

/// A change to one head or to attention. Changes to a head apply to its context z, before `c_proj`, at every position.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Intervention {
    /// z becomes 0 (Michel et al. 2019, "Are Sixteen Heads Really Better than One?").
    ZeroAblate(Head),
    /// z becomes its own mean over the batch and the positions of this run that are not padding, the same vector
    /// at each position. This removes what the head says about this text and keeps its average (mean ablation of
    /// Wang et al. 2022, "Interpretability in the Wild"; they take the mean over other texts, for which use
    /// [`Self::Replace`]). It does not work with a cache; see [`Interventions::with_means_of`].
    MeanAblate(Head),
    /// z becomes this vector (D) at every position.
    Replace(Head, Tensor),
    /// z is multiplied by a factor.
    Scale(Head, f64),
    /// z becomes this head's part of another run's z, (B, T, H, D) as at [`Point::Z`]: activation patching (Vig et
    /// al. 2020; Wang et al. 2022). A batch of 1 serves every row. With a cache, positions from T on stay unchanged;
    /// without one, both texts must have the same length.
    Patch(Head, Tensor),
    /// Knocks out attention between two positions, in one layer or in all.
    KnockOut(Option<usize>, KnockOut),
}

impl Intervention {
    pub(crate) fn head(&self) -> Option<Head> {
        match self {
            Self::ZeroAblate(head)
            | Self::MeanAblate(head)
            | Self::Replace(head, _)
            | Self::Scale(head, _)
            | Self::Patch(head, _) => Some(*head),
            Self::KnockOut(..) => None,
        }
    }

    /// z (B, T, 1, D) of this head, after the change.
    fn changed(&self, at: At, z: &Tensor) -> Result<Tensor> {
        match self {
            Self::ZeroAblate(_) => z.zeros_like(),
            Self::MeanAblate(head) if at.cached => candle_core::bail!(
                "mean ablation of head {head}: a pass with a cache does not see the whole text; fix the mean \
                 beforehand (Interventions::with_means_of)"
            ),
            Self::MeanAblate(_) => mean(z, at)?.broadcast_as(z.shape())?.contiguous(),
            Self::Replace(_, value) => value
                .to_dtype(z.dtype())?
                .reshape((1, 1, 1, z.dim(3)?))?
                .broadcast_as(z.shape())?
                .contiguous(),
            Self::Scale(_, factor) => z * *factor,
            Self::Patch(head, other) => patched(*head, at, z, other),
            Self::KnockOut(..) => Ok(z.clone()),
        }
    }
}

/// The mean over rows and positions that are not padding: (B, T, 1, D) -> (1, 1, 1, D)
pub(crate) fn mean(z: &Tensor, at: At) -> Result<Tensor> {
    let wide = z.to_dtype(candle_fused::accumulator(z.dtype()))?;
    let sum = |x: &Tensor| x.sum_keepdim((0, 1));
    let mean = match at.padding {
        None => wide.mean_keepdim((0, 1))?,
        Some(padding) => {
            let visible = padding.unsqueeze(2)?.unsqueeze(3)?.to_dtype(wide.dtype())?; // (B, T, 1, 1)
            // If all positions are padding, the mean is 0.
            sum(&wide.broadcast_mul(&visible)?)?.broadcast_div(&sum(&visible)?.maximum(1.0)?)?
        }
    };
    mean.to_dtype(z.dtype())
}

fn patched(head: Head, at: At, z: &Tensor, other: &Tensor) -> Result<Tensor> {
    let ((b, t, _, d), (other_b, other_t, heads, other_d)) = (z.dims4()?, other.dims4()?);
    let fits = at.cached || at.past + t == other_t;
    if (other_b != 1 && other_b != b) || other_d != d || head.head >= heads || !fits {
        candle_core::bail!(
            "patch of head {head}: the run has z [{b}, {t}, H, {d}], the other run's is {:?}",
            other.dims()
        )
    }
    let known = other_t.saturating_sub(at.past).min(t);
    if known == 0 {
        return Ok(z.clone());
    }
    let other = other.narrow(1, at.past, known)?.narrow(2, head.head, 1)?.to_dtype(z.dtype())?;
    let other = other.broadcast_as((b, known, 1, d))?;
    Tensor::cat(&[&other, &z.narrow(1, known, t - known)?], 1)
}

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
}

impl Interventions {
    /// Checks a list of interventions.
    ///
    /// # Errors
    /// When a layer, head or position does not exist in the model, a factor is not finite, a vector does not have D
    /// numbers, or a key comes after its query, which never sees it.
    pub fn new(list: impl IntoIterator<Item = Intervention>, config: &Config) -> Result<Self> {
        let list: Vec<_> = list.into_iter().collect();
        list.iter().try_for_each(|one| check(one, config))?;
        Ok(Self { list })
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

    /// The interventions on a layer's heads, each with its index in the list.
    fn of_layer(&self, layer: usize) -> impl Iterator<Item = (usize, &Intervention, Head)> {
        let of_head = |(i, one)| Intervention::head(one).map(|head| (i, one, head));
        self.list.iter().enumerate().filter_map(of_head).filter(move |(.., head)| head.layer == layer)
    }

    /// z (B, T, H, D) after the interventions on its layer. Calls `meet` before each of them, with its
    /// index and the z (B, T, 1, D) that it is about to change.
    pub(crate) fn change(
        &self,
        at: At,
        z: &Tensor,
        mut meet: impl FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Option<Tensor>> {
        let Point::Z(layer) = at.point else { return Ok(None) };
        let heads = z.dim(2)?;
        let mut parts = (0..heads).map(|head| z.narrow(2, head, 1)).collect::<Result<Vec<_>>>()?; // (B, T, 1, D)
        for (i, one, Head { head, .. }) in self.of_layer(layer) {
            let Some(part) = parts.get_mut(head) else {
                candle_core::bail!("head {head} of layer {layer}: the model has heads 0 to {}", heads - 1)
            };
            meet(i, part)?;
            *part = one.changed(at, part)?;
        }
        Ok(Some(Tensor::cat(&parts, 2)?))
    }
}

fn check(one: &Intervention, config: &Config) -> Result<()> {
    let (layers, heads, positions, d) =
        (config.n_layer, config.n_head, config.n_positions, config.head_dim());
    let (layer, head) = match one {
        Intervention::KnockOut(layer, pair) => (*layer, pair.head),
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
        Intervention::KnockOut(_, KnockOut { query, .. }) if *query >= positions => {
            candle_core::bail!("position {query}: the model has positions 0 to {}", positions - 1)
        }
        Intervention::KnockOut(_, KnockOut { query, key, .. }) if key > query => candle_core::bail!(
            "knock-out from position {query} to {key}: a query sees the positions up to its own, 0 to {query}"
        ),
        _ => Ok(()),
    }
}

impl Hooks for Interventions {
    fn wants(&self, point: Point) -> bool {
        matches!(point, Point::Z(layer) if self.of_layer(layer).next().is_some())
    }

    fn at(&self, at: At, z: &Tensor) -> Result<Option<Tensor>> {
        self.change(at, z, |_, _| Ok(()))
    }

    fn knocked_out(&self, layer: usize) -> Vec<KnockOut> {
        let pair = |one: &Intervention| match one {
            Intervention::KnockOut(only, pair) if only.is_none_or(|only| only == layer) => Some(*pair),
            _ => None,
        };
        self.list.iter().filter_map(pair).collect()
    }
}
