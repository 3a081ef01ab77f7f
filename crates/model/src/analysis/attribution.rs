//! Attribution patching: activation patching of every part at once, to first order.

use super::Contrast;
use super::wide::wide;
use crate::Gpt2LMHeadModel;
use crate::hooks::{At, Chain, Hooks, Point, Recorder};
use candle_core::backprop::GradStore;
use candle_core::{D, Result, Tensor, Var};
use std::cell::RefCell;

/// The first-order estimate of what patching each part would add to the metric.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Attribution {
    /// Of each head's context z at each position, f64 (L, H, T); a sum over T estimates the patch at all positions.
    pub heads: Tensor,
    /// Of the residual stream before each block, f64 (L, T).
    pub streams: Tensor,
    /// Of what each attention block adds, f64 (L, T).
    pub attention: Tensor,
    /// Of what each MLP adds, f64 (L, T).
    pub mlps: Tensor,
}

/// Estimates what [`activation_patching`](super::activation_patching) measures from two forward passes and one backward
/// pass: `(clean - corrupt) · gradient`, with the gradient of the metric in the corrupted run (Nanda 2023, "Attribution
/// Patching"; Syed et al. 2023, "Attribution Patching Outperforms Automated Circuit Discovery").
///
/// # Errors
/// As for [`activation_patching`](super::activation_patching). An operation without a gradient, as in a linear layer of
/// one's own, counts as one on which the metric does not depend.
pub fn attribution_patching(model: &Gpt2LMHeadModel, contrast: &Contrast) -> Result<Attribution> {
    contrast.check()?;
    let layers = model.config().n_layer;
    let kinds: [fn(usize) -> Point; 4] = [Point::Z, Point::ResidPre, Point::AttnOut, Point::MlpOut];
    let points: Vec<Point> = kinds.iter().flat_map(|kind| (0..layers).map(kind)).collect();
    let clean = Recorder::new(points.iter().copied());
    contrast.logits(model, contrast.clean, &clean)?;
    let gradients = gradients_under(model, contrast, contrast.corrupt, &Chain(&[]), points)?;
    let estimate = |kind: fn(usize) -> Point| -> Result<Tensor> {
        let of_layer = |layer: usize| {
            let (value, gradient) = gradients.of(kind(layer))?;
            // (1, T, H, D) or (1, T, C)
            let product = wide(&(clean.value(kind(layer))? - value)?)?.mul(&wide(&gradient)?)?;
            product.sum(D::Minus1)?.squeeze(0) // (T, H) or (T)
        };
        Tensor::stack(&(0..layers).map(of_layer).collect::<Result<Vec<_>>>()?, 0)
    };
    Ok(Attribution {
        heads: estimate(Point::Z)?.transpose(1, 2)?.contiguous()?,
        streams: estimate(Point::ResidPre)?,
        attention: estimate(Point::AttnOut)?,
        mlps: estimate(Point::MlpOut)?,
    })
}

/// Adds a variable of zeros to the value at each point, so that its gradient is that of the value, whatever the graph
/// before and after it is.
struct Taps {
    points: Vec<Point>,
    found: RefCell<Vec<(Point, Tensor, Var)>>,
}

impl Taps {
    fn at(points: Vec<Point>) -> Self {
        Self { points, found: RefCell::default() }
    }

    /// The gradients of `metric`, which has one element.
    fn gradients(self, metric: &Tensor) -> Result<Gradients> {
        let store = metric.sum_all()?.backward()?;
        Ok(Gradients { found: self.found.into_inner(), store })
    }
}

impl Hooks for Taps {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let zeros = Var::from_tensor(&value.zeros_like()?.detach())?;
        let tapped = (value + zeros.as_tensor())?;
        self.found.borrow_mut().push((at.point, value.detach(), zeros));
        Ok(Some(tapped))
    }
}

/// The value at each tapped point, and its gradient.
pub(super) struct Gradients {
    found: Vec<(Point, Tensor, Var)>,
    store: GradStore,
}

impl Gradients {
    pub(super) fn of(&self, point: Point) -> Result<(Tensor, Tensor)> {
        let Some((_, value, zeros)) = self.found.iter().find(|(at, ..)| *at == point) else {
            candle_core::bail!("no pass has reached {point}")
        };
        // What the last position's logits do not depend on has no gradient.
        let gradient = self.store.get(zeros).map_or_else(|| value.zeros_like(), |g| Ok(g.clone()))?;
        Ok((value.clone(), gradient))
    }
}

/// The metric's gradients in a run over `ids` under the contrast's hooks, then `before`, then taps at `points`.
pub(super) fn gradients_under(
    model: &Gpt2LMHeadModel,
    contrast: &Contrast,
    ids: &Tensor,
    before: &dyn Hooks,
    points: Vec<Point>,
) -> Result<Gradients> {
    let taps = Taps::at(points);
    let logits = contrast.logits(model, ids, &Chain(&[before, &taps]))?;
    taps.gradients(&contrast.metric.of(&logits)?)
}
