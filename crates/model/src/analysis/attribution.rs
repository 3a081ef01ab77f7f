//! Attribution patching: activation patching to first order.

use super::metric::{Metric, wide};
use super::patching::Contrast;
use crate::gpt2::args_and_outputs::ForwardArgs;
use crate::gpt2::lm_head_model::Gpt2LMHeadModel;
use crate::hooks::{At, Chain, Hooks, Point, Recorder};
use candle_core::backprop::GradStore;
use candle_core::{D, Result, Tensor, Var};
use std::cell::RefCell;

/// First-order estimates of the change of the metric when a part is patched.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Attribution {
    /// The estimate for each head's context z at each position, f64 (L, H, T); a sum over T estimates the patch at all
    /// positions.
    pub heads: Tensor,
    /// The estimate for the residual stream before each block, f64 (L, T).
    pub streams: Tensor,
    /// The estimate for each attention block's output, f64 (L, T).
    pub attention: Tensor,
    /// The estimate for each MLP's output, f64 (L, T).
    pub mlps: Tensor,
}

/// Estimates what [`activation_patching`](crate::analysis::activation_patching) measures from two forward passes and one backward
/// pass: `(clean - corrupt) · gradient`, with the gradient of the metric in the corrupted run (Nanda 2023, "Attribution
/// Patching"; Syed et al. 2023, "Attribution Patching Outperforms Automated Circuit Discovery").
///
/// # Errors
/// Returns the errors of [`activation_patching`](crate::analysis::activation_patching). An operation without a backward pass, as
/// in a custom linear layer, is no error: the gradient through it counts as 0.
pub fn attribution_patching(model: &Gpt2LMHeadModel, contrast: &Contrast) -> Result<Attribution> {
    contrast.check()?;
    let layers = model.config().n_layer;
    let kinds: [fn(usize) -> Point; 4] = [Point::Z, Point::ResidPre, Point::AttnOut, Point::MlpOut];
    let points: Vec<Point> = kinds.iter().flat_map(|kind| (0..layers).map(kind)).collect();
    let clean = Recorder::new(points.iter().copied());
    contrast.logits(model, contrast.clean, &clean)?;
    let gradients = gradients_under(model, contrast, contrast.corrupt, points)?;
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

/// Hooks that add a variable of zeros to the value at each point, so that its gradient is that of the value, whatever the graph
/// before and after it is. They come after hooks that change the value.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_model::analysis::GradientHooks;
/// use gpt2_model::hooks::Point;
/// use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init};
///
/// # fn main() -> candle_core::Result<()> {
/// # let config = Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
/// # let model = Gpt2LMHeadModel::load(init::seeded(1, DType::F32, &Device::Cpu), &config)?;
/// let input_ids = Tensor::new(&[[3u32, 1, 4], [1, 5, 9]], &Device::Cpu)?;
/// let taps = GradientHooks::new([Point::Z(1)]);
/// let logits = model.forward(&input_ids, ForwardArgs { hooks: Some(&taps), ..Default::default() })?.logits;
/// let (z, gradient) = taps.gradients(&logits.sum_all()?)?.of(Point::Z(1))?;
/// assert_eq!(z.dims(), gradient.dims());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GradientHooks {
    points: Vec<Point>,
    found: RefCell<Vec<(Point, Tensor, Var)>>,
}

impl GradientHooks {
    /// Taps at these points.
    pub fn new(points: impl IntoIterator<Item = Point>) -> Self {
        Self { points: points.into_iter().collect(), found: RefCell::default() }
    }

    /// The gradients of a number that the pass led to.
    ///
    /// # Errors
    /// When an operation on the way refuses to be differentiated.
    pub fn gradients(self, of: &Tensor) -> Result<Gradients> {
        Ok(Gradients { store: of.backward()?, found: self.found.into_inner() })
    }
}

impl Hooks for GradientHooks {
    fn wants(&self, point: Point) -> bool {
        self.points.contains(&point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let zeros = Var::from_tensor(&value.zeros_like()?.detach())?;
        let tapped = (value + zeros.as_tensor())?;
        let mut found = self.found.borrow_mut();
        found.retain(|(point, ..)| *point != at.point); // those of the latest pass
        found.push((at.point, value.detach(), zeros));
        Ok(Some(tapped))
    }
}

/// The value at each tapped point, and its gradient.
#[derive(Debug)]
pub struct Gradients {
    found: Vec<(Point, Tensor, Var)>,
    store: GradStore,
}

impl Gradients {
    /// The value at a point, and the gradient there, in the same shape.
    ///
    /// # Errors
    /// When the pass did not reach the point.
    pub fn of(&self, point: Point) -> Result<(Tensor, Tensor)> {
        let Some((_, value, zeros)) = self.found.iter().find(|(at, ..)| *at == point) else {
            candle_core::bail!("no pass has reached {point}")
        };
        // What the logits do not depend on has no gradient.
        let gradient = self.store.get(zeros).map_or_else(|| value.zeros_like(), |g| Ok(g.clone()))?;
        Ok((value.clone(), gradient))
    }
}

/// The values at `points` in a run over a text, and there the gradients of the metric of its last position: a pair for each point,
/// in order.
///
/// # Shapes
/// (1, T, ..) each: see [`Point::shape`]
///
/// # Errors
/// Returns the errors of [`activation_patching`](crate::analysis::activation_patching), and an error when the pass does not reach
/// a point.
pub fn gradients(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    metric: &Metric,
    points: &[Point],
    hooks: Option<&dyn Hooks>,
) -> Result<Vec<(Tensor, Tensor)>> {
    let contrast = Contrast { clean: input_ids, corrupt: input_ids, metric, hooks };
    contrast.check()?;
    let found = gradients_under(model, &contrast, input_ids, points.to_vec())?;
    points.iter().map(|&point| found.of(point)).collect()
}

/// A metric of several texts, and its gradients.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BatchGradients {
    /// The metric of each text, or the only one of all, in f64.
    pub metric: Vec<f64>,
    /// The logits that the metric read: (B, T, V), or (B, 1, V).
    pub logits: Tensor,
    /// For each point its value and there the gradient of the metrics' sum, which is that of each text's own metric.
    pub at: Vec<(Tensor, Tensor)>,
}

/// The values at `points` in a run over texts, and there the gradients of their metrics.
///
/// # Shapes
/// `input_ids` (B, T) -> (B, T, ..) at each point: see [`Point::shape`]. `args` has the padding.
///
/// # Errors
/// Returns the errors of [`Gpt2LMHeadModel::forward`] and of the metric, and an error when the pass does not reach a point.
pub fn batch_gradients(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    args: ForwardArgs,
    metric: &Metric,
    points: &[Point],
) -> Result<BatchGradients> {
    metric.check(model.config().vocab_size)?;
    let taps = GradientHooks::new(points.iter().copied());
    let all: Vec<&dyn Hooks> = args.hooks.into_iter().chain([&taps as &dyn Hooks]).collect();
    let chain = Chain(&all);
    let last_logits_only = !metric.reads_all_positions();
    let logits =
        model.forward(input_ids, ForwardArgs { hooks: Some(&chain), last_logits_only, ..args })?.logits;
    let found = metric.of_texts(&logits)?;
    let gradients = taps.gradients(&found.sum_all()?)?;
    Ok(BatchGradients {
        metric: wide(&found)?.to_vec1()?,
        logits: logits.detach(),
        at: points.iter().map(|&point| gradients.of(point)).collect::<Result<_>>()?,
    })
}

/// The metric's gradients at `points` in a run over `ids` under the contrast's hooks.
fn gradients_under(
    model: &Gpt2LMHeadModel,
    contrast: &Contrast,
    ids: &Tensor,
    points: Vec<Point>,
) -> Result<Gradients> {
    let taps = GradientHooks::new(points);
    let logits = contrast.logits(model, ids, &taps)?;
    taps.gradients(&contrast.metric.of_texts(&logits)?.sum_all()?)
}
