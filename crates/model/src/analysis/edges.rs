//! Edge attribution patching: which head feeds which.

use super::Contrast;
use super::attribution::gradients_under;
use super::wide::wide;
use crate::Gpt2LMHeadModel;
use crate::hooks::{Point, Recorder, on};
use candle_core::{DType, Device, Result, Tensor};

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
