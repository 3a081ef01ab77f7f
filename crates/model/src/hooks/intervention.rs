//! A change to heads, attention or the residual stream, as data.

use super::features::FeatureChange;
use super::hook::{At, Hooks, KnockOut};
use super::point::Point;
use candle_core::{Result, Tensor};
use std::sync::Arc;

/// A head of a layer, both counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Head {
    /// The layer.
    pub layer: usize,
    /// The head.
    pub head: usize,
}

/// A part of a run that a [`Patch`] replaces: a head's context, a layer's attention output or MLP output, or the
/// residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A head's context z, [`Point::Z`].
    Head(Head),
    /// The residual stream before a layer's block, [`Point::ResidPre`].
    Stream(usize),
    /// A layer's attention output, [`Point::AttnOut`].
    Attention(usize),
    /// A layer's MLP output, [`Point::MlpOut`].
    Mlp(usize),
}

impl Place {
    /// The layer, counted from 0.
    #[must_use]
    pub fn layer(self) -> usize {
        match self {
            Self::Head(head) => head.layer,
            Self::Stream(layer) | Self::Attention(layer) | Self::Mlp(layer) => layer,
        }
    }

    /// The hook point of this place; a head's point holds all heads of its layer.
    #[must_use]
    pub fn point(self) -> Point {
        match self {
            Self::Head(head) => Point::Z(head.layer),
            Self::Stream(layer) => Point::ResidPre(layer),
            Self::Attention(layer) => Point::AttnOut(layer),
            Self::Mlp(layer) => Point::MlpOut(layer),
        }
    }
}

/// Another run's value in place of this run's: activation patching (Vig et al. 2020, "Investigating Gender Bias in Language
/// Models Using Causal Mediation Analysis"; Wang et al. 2022).
#[derive(Debug, Clone)]
pub struct Patch {
    /// The part to replace.
    pub place: Place,
    /// The position to replace; all of them for `None`.
    pub position: Option<usize>,
    /// The other run's value at the place's point: (B, T, H, D) for a head, otherwise (B, T, C). A batch of 1 serves every
    /// row. Without a cache, both texts must have the same length if all positions are replaced; with one, positions from
    /// T on stay unchanged.
    pub from: Tensor,
}

/// Custom hooks among interventions, such as a run with a circuit's edges alone. They get whole values: all heads at once.
#[derive(Clone)]
pub struct CustomHooks {
    /// Their name.
    pub name: String,
    /// The hooks. Several runs may call them at once, each on a thread of its own.
    pub hooks: Arc<dyn Hooks + Send + Sync>,
}

impl std::fmt::Debug for CustomHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CustomHooks").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A change to one head, to attention or to the residual stream. Changes to a head apply to its context z, before `c_proj`, at
/// every position, unless they say otherwise.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Intervention {
    /// z becomes 0 (Michel et al. 2019, "Are Sixteen Heads Really Better than One?").
    ZeroAblate(Head),
    /// z becomes its own mean over the batch and the positions of this run that are not padding, the same vector
    /// at each position. This removes what the head says about this text and keeps its average (mean ablation of
    /// Wang et al. 2022, "Interpretability in the Wild"; they take the mean over other texts, see
    /// [`Interventions::with_means_over`](super::Interventions::with_means_over)). It does not work with a cache; see [`Interventions::with_means_of`](super::Interventions::with_means_of).
    MeanAblate(Head),
    /// z becomes this vector (D) at every position.
    Replace(Head, Tensor),
    /// z is multiplied by a factor.
    Scale(Head, f64),
    /// A value becomes that of another run.
    Patch(Patch),
    /// A vector (C) is added to the residual stream before a layer's block, at one position or at all: steering (Turner et al.
    /// 2023, "Activation Addition").
    Add {
        /// The layer, counted from 0.
        layer: usize,
        /// The position, or all.
        position: Option<usize>,
        /// (C)
        vector: Tensor,
    },
    /// A feature of a dictionary gets another activation.
    Feature(FeatureChange),
    /// The head's scores are divided by a temperature above 0 before the softmax: below 1, its attention gets sharper. The
    /// fused kernels stay in use.
    Temperature(Head, f64),
    /// Whatever custom hooks do.
    Custom(CustomHooks),
    /// Knocks out attention between two positions, in one layer or in all.
    KnockOut(Option<usize>, KnockOut),
}

/// The word for a head whose output is replaced by its mean.
pub(super) const MEAN_ABLATED: &str = "mean-ablated";

impl Intervention {
    /// Whether it acts at a point. A knock-out acts inside attention, at none.
    pub(crate) fn acts_at(&self, point: Point) -> bool {
        let only = match self {
            Self::ZeroAblate(head)
            | Self::MeanAblate(head)
            | Self::Replace(head, _)
            | Self::Scale(head, _) => Point::Z(head.layer),
            Self::Patch(patch) => patch.place.point(),
            Self::Add { layer, .. } => Point::ResidPre(*layer),
            Self::Feature(change) => return change.site.acts_at(point),
            Self::Temperature(head, _) => Point::Q(head.layer),
            Self::Custom(custom) => return custom.hooks.wants(point),
            Self::KnockOut(..) => return false,
        };
        only == point
    }

    /// The head, if it changes a single one.
    #[must_use]
    pub fn head(&self) -> Option<Head> {
        match self {
            Self::ZeroAblate(head)
            | Self::MeanAblate(head)
            | Self::Replace(head, _)
            | Self::Scale(head, _)
            | Self::Temperature(head, _)
            | Self::Patch(Patch { place: Place::Head(head), .. }) => Some(*head),
            Self::Patch(_) | Self::Add { .. } | Self::Feature(_) | Self::Custom(_) | Self::KnockOut(..) => {
                None
            }
        }
    }

    /// A word for how this replaces a head's own output at all of `tokens` positions: "ablated", "mean-ablated", "scaled to
    /// 0", "replaced" or "patched". `None` if it does not. What the head attends to then changes nothing that follows, except
    /// through its own mean.
    #[must_use]
    pub fn silences(&self, head: Head, tokens: usize) -> Option<&'static str> {
        match self {
            Self::ZeroAblate(of) if *of == head => Some("ablated"),
            Self::MeanAblate(of) if *of == head => Some(MEAN_ABLATED),
            Self::Scale(of, factor) if *of == head && *factor == 0.0 => Some("scaled to 0"),
            Self::Replace(of, _) if *of == head => Some("replaced"),
            Self::Patch(Patch { place, position: None, from }) => {
                let replaces = match *place {
                    Place::Head(of) => of == head,
                    Place::Attention(layer) => head.layer == layer,
                    // The stream before a block holds what the blocks before it made.
                    Place::Stream(layer) => head.layer < layer,
                    Place::Mlp(_) => false,
                };
                (replaces && from.dims().get(1).is_some_and(|&known| known >= tokens)).then_some("patched")
            }
            _ => None,
        }
    }

    /// The value at its point after the change: q or z (B, T, 1, D) of its head, a stream (B, T, C), or for custom hooks the whole value.
    pub(super) fn changed(&self, at: At, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::ZeroAblate(_) => x.zeros_like(),
            Self::MeanAblate(head) if at.cached => candle_core::bail!(
                "mean ablation of head {head}: a pass with a cache does not see the whole text; fix the mean \
                 beforehand (Interventions::with_means_of)"
            ),
            Self::MeanAblate(_) => mean(x, at)?.broadcast_as(x.shape())?.contiguous(),
            Self::Replace(_, value) => value
                .to_dtype(x.dtype())?
                .reshape((1, 1, 1, x.dim(3)?))?
                .broadcast_as(x.shape())?
                .contiguous(),
            Self::Scale(_, factor) => x * *factor,
            Self::Temperature(_, temperature) => x * temperature.recip(),
            Self::Patch(patch) => patch.onto(at, x),
            Self::Add { position, vector, .. } => {
                let vector = vector.to_dtype(x.dtype())?.to_device(x.device())?.reshape((1, 1, ()))?;
                match position {
                    None => x.broadcast_add(&vector),
                    Some(position) => replaced(x, at.past, *position, |row| row.broadcast_add(&vector)),
                }
            }
            Self::Feature(change) => FeatureChange::all_on(&[change], at, x),
            Self::Custom(custom) => Ok(custom.hooks.at(at, x)?.unwrap_or_else(|| x.clone())),
            Self::KnockOut(..) => Ok(x.clone()),
        }
    }
}

impl Patch {
    /// `x` (B, T, 1, D) or (B, T, C), with the other run's value.
    fn onto(&self, at: At, x: &Tensor) -> Result<Tensor> {
        let from = match self.place {
            Place::Head(head) => self.from.narrow(2, head.head, 1)?, // (B, T, 1, D)
            _ => self.from.clone(),
        };
        let b = x.dim(0)?;
        let t = x.dim(1)?;
        let other_t = from.dim(1)?;
        let fits = at.cached || self.position.is_some() || at.past + t == other_t;
        if (from.dim(0)? != 1 && from.dim(0)? != b) || from.dims()[2..] != x.dims()[2..] || !fits {
            candle_core::bail!(
                "patch of {}: this run's value is {:?}, the other run's is {:?}",
                self.place,
                x.dims(),
                self.from.dims()
            )
        }
        let rows = |first: usize, count: usize| -> Result<Tensor> {
            let rows = from.narrow(1, first, count)?.to_dtype(x.dtype())?.to_device(x.device())?;
            let mut shape = x.dims().to_vec();
            shape[1] = count;
            rows.broadcast_as(shape)?.contiguous()
        };
        if let Some(position) = self.position {
            return replaced(x, at.past, position, |_| rows(position, 1));
        }
        let known = other_t.saturating_sub(at.past).min(t);
        if known == 0 {
            return Ok(x.clone());
        }
        joined(&[rows(at.past, known)?, x.narrow(1, known, t - known)?])
    }
}

/// `x` (B, T, ..), which begins at position `past`, with what `change` makes of the row at `position`, if it is in `x`.
fn replaced(
    x: &Tensor,
    past: usize,
    position: usize,
    change: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let t = x.dim(1)?;
    let Some(at) = position.checked_sub(past).filter(|&at| at < t) else { return Ok(x.clone()) };
    let row = change(&x.narrow(1, at, 1)?)?;
    joined(&[x.narrow(1, 0, at)?, row, x.narrow(1, at + 1, t - at - 1)?])
}

/// Runs of positions, one after another. Candle's `cat` also copies from an empty run, which fails for one that begins at the
/// end of a head's view: that place is beyond the end of the buffer, by the width of the heads before it.
fn joined(runs: &[Tensor]) -> Result<Tensor> {
    let runs: Vec<&Tensor> = runs.iter().filter(|run| run.elem_count() > 0).collect();
    Tensor::cat(&runs, 1)
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
