//! Attribution patching, of parts of the model and of edges between heads: activation patching to first order.

use super::metric::{Metric, wide};
use super::patching::Contrast;
use crate::Gpt2LMHeadModel;
use crate::hooks::{At, Chain, Hooks, Point, Recorder, on};
use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Result, Tensor, Var};
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

/// The values at `points` in a run over a text, and there the gradients of the metric of its last position: a pair for each point,
/// in order.
///
/// # Shapes
/// (1, T, ..) each: see [`Point::shape`]
///
/// # Errors
/// As for [`activation_patching`](super::activation_patching), and when the pass does not reach a point.
pub fn gradients(
    model: &Gpt2LMHeadModel,
    input_ids: &Tensor,
    metric: Metric,
    points: &[Point],
    hooks: Option<&dyn Hooks>,
) -> Result<Vec<(Tensor, Tensor)>> {
    let contrast = Contrast { clean: input_ids, corrupt: input_ids, metric, hooks };
    contrast.check()?;
    let found = gradients_under(model, &contrast, input_ids, &Chain(&[]), points.to_vec())?;
    points.iter().map(|&point| found.of(point)).collect()
}

/// The metric's gradients in a run over `ids` under the contrast's hooks, then `before`, then taps at `points`.
pub(super) fn gradients_under(
    model: &Gpt2LMHeadModel,
    contrast: &Contrast,
    ids: &Tensor,
    before: &dyn Hooks,
    points: Vec<Point>,
) -> Result<Gradients> {
    let taps = Taps { points, found: RefCell::default() };
    let logits = contrast.logits(model, ids, &Chain(&[before, &taps]))?;
    let store = contrast.metric.of(&logits)?.sum_all()?.backward()?;
    Ok(Gradients { found: taps.found.into_inner(), store })
}

/// Where to take the gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EdgeGradients {
    /// In the corrupted run (EAP: Syed et al. 2023, "Attribution Patching Outperforms Automated Circuit Discovery").
    #[default]
    Corrupt,
    /// The mean over `steps` runs whose token embeddings lead from the corrupted text's to the clean one's, at `k / steps` for k =
    /// 1 to `steps` (EAP-IG: Hanna et al. 2024, "Have Faith in Faithfulness"). Both texts have the same positions, so that only
    /// their tokens' embeddings differ.
    Integrated {
        /// At least 1; 5 in the paper.
        steps: usize,
    },
}

/// Estimates what patching each edge between two heads would add to the metric: the change of what the sending head adds to the
/// residual stream between the texts, times the gradient at what the receiving head reads for its queries, keys or values.
///
/// The memory for the inputs and results of all heads is 4·L·T·H·C numbers, and one pass takes H times the products of
/// `c_attn`: it is meant for small models and short texts.
///
/// # Shapes
/// -> f64 (3, L, H, L, H): for queries, keys and values, the sender's layer and head, then the receiver's. An edge that does
/// not lead to a later layer is 0.
///
/// # Errors
/// As for [`activation_patching`](super::activation_patching), for heads that share keys, and for 0 steps.
pub fn edge_attribution(
    model: &Gpt2LMHeadModel,
    contrast: &Contrast,
    gradients: EdgeGradients,
) -> Result<Tensor> {
    contrast.check()?;
    let (layers, heads) = (model.config().n_layer, model.config().n_head);
    if model.config().heads().key_heads != heads {
        candle_core::bail!("edges between heads: heads that share keys and values are not supported")
    }
    let results = |ids: &Tensor| -> Result<(Tensor, Tensor)> {
        let recorder = Recorder::new((0..layers).map(Point::Result).chain([Point::Embed]));
        contrast.logits(model, ids, &recorder)?;
        let of_layer = |layer| wide(&recorder.value(Point::Result(layer))?.squeeze(0)?); // (T, H, C)
        let all = (0..layers).map(of_layer).collect::<Result<Vec<_>>>()?;
        Ok((Tensor::stack(&all, 0)?, recorder.value(Point::Embed)?)) // (L, T, H, C), (1, T, C)
    };
    let ((clean, clean_embedded), (corrupt, corrupt_embedded)) =
        (results(contrast.clean)?, results(contrast.corrupt)?);
    let change = (clean - corrupt)?; // (L, T, H, C)
    let shares: Vec<f64> = match gradients {
        EdgeGradients::Corrupt => vec![0.0],
        EdgeGradients::Integrated { steps } => (1..=steps).map(|k| k as f64 / steps as f64).collect(),
    };
    if shares.is_empty() {
        candle_core::bail!("integrated gradients need at least one step")
    }
    let inputs: [fn(usize) -> Point; 3] = [Point::QInput, Point::KInput, Point::VInput];
    let mut scores = Tensor::zeros((3, layers, heads, layers, heads), DType::F64, &Device::Cpu)?;
    for share in &shares {
        let mixed = (&corrupt_embedded + ((&clean_embedded - &corrupt_embedded)? * *share)?)?;
        let mix = on([Point::Embed], |_, _| Ok(Some(mixed.clone())));
        let points = inputs.iter().flat_map(|input| (1..layers).map(input)).collect();
        let gradients = gradients_under(model, contrast, contrast.corrupt, &mix, points)?;
        let of_input = |input: &fn(usize) -> Point| {
            let of_receiver = |receiver: usize| -> Result<Tensor> {
                if receiver == 0 {
                    return Tensor::zeros((layers, heads, heads), DType::F64, &Device::Cpu);
                }
                let gradient = wide(&gradients.of(input(receiver))?.1.squeeze(0)?)?; // (T, H, C)
                edges_into(&change, &gradient, receiver)
            };
            let receivers = (0..layers).map(of_receiver).collect::<Result<Vec<_>>>()?;
            Tensor::stack(&receivers, 2) // (L, H, L, H)
        };
        let these = Tensor::stack(&inputs.iter().map(of_input).collect::<Result<Vec<_>>>()?, 0)?;
        scores = (scores + (these / shares.len() as f64)?)?;
    }
    Ok(scores)
}

/// The edges from all heads of earlier layers into the heads of one: `change` (L, T, H, C) and `gradient` (T, H, C) -> (L, H,
/// H), with 0 for the other layers.
fn edges_into(change: &Tensor, gradient: &Tensor, receiver: usize) -> Result<Tensor> {
    let (layers, t, heads, c) = change.dims4()?;
    let flat = |x: &Tensor| x.transpose(0, 1)?.contiguous()?.reshape((heads, t * c)); // (T, H, C) -> (H, T·C)
    let gradient = flat(gradient)?.t()?.contiguous()?;
    let of_sender = |sender: usize| {
        if sender < receiver {
            flat(&change.get(sender)?)?.matmul(&gradient) // (H, H)
        } else {
            Tensor::zeros((heads, heads), DType::F64, &Device::Cpu)
        }
    };
    Tensor::stack(&(0..layers).map(of_sender).collect::<Result<Vec<_>>>()?, 0)
}
